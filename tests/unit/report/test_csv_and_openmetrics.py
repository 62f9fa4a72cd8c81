"""The cells of every CSV table, and the numbers of a stress result in it."""

import csv
import io
from pathlib import Path

from stored_runs import eventful, gaussian, method, run

import vmtool
from vmtool.report.csv_and_openmetrics import STRESS_COLUMNS, csv_table, stress_csv


def test_no_text_is_a_formula_and_numbers_stay():
    cells = ["=A1", "+1", "-cmd", "@x", "a=b", "", None, -1, -1.5]
    (row,) = csv.reader(io.StringIO(csv_table((), [cells]).removeprefix("\n")))
    assert row == ["'=A1", "'+1", "'-cmd", "'@x", "a=b", "", "", "-1", "-1.5"]


def test_every_table_is_written_by_that_rule():
    files = Path(vmtool.__file__).parent.rglob("*.py")
    writers = [path.stem for path in files if "csv.writer" in path.read_text(encoding="utf-8")]
    assert writers == ["csv_and_openmetrics"]


def rows(result):
    table = list(csv.DictReader(io.StringIO(stress_csv(result))))
    assert all(set(row) == set(STRESS_COLUMNS) and row["value"] for row in table)
    return table


def test_histograms_count_every_sample_between_its_edges():
    samples = gaussian(1, 50_000, 2000)
    table = [r for r in rows(run(method(commit=samples))) if r["record"] == "histogram"]
    assert sum(int(r["value"]) for r in table) == len(samples)
    for row in table:
        low, high = int(row["from_ns"]), int(row["to_ns"])
        assert int(row["value"]) == sum(low <= sample < high for sample in samples)


def test_percentiles_are_the_summarys_and_missing_ones_are_left_out():
    result = run(method("protect", commit=gaussian(1, 50_000, 2000)))
    found = {r["statistic"]: int(r["value"]) for r in rows(result) if r["record"] == "latency"}
    summary = result.methods[0].phases[0].summary
    assert found["p99_ns"] == summary.p99_ns
    assert found["samples"] == 2000
    assert "p999_ns" not in found


def test_the_timeline_has_belief_and_count_of_each_ledger_at_each_checkpoint():
    result = eventful()
    table = [r for r in rows(result) if r["record"] == "counter"]
    assert len(table) == len(result.checkpoints) * 4 * 4
    point, reading = result.checkpoints[3], result.checkpoints[3].buffers[1]
    row = next(
        r
        for r in table
        if (r["subject"], r["statistic"], r["cycle"]) == (reading.counter, "observed", "150")
    )
    assert (int(row["from_ns"]), int(row["value"])) == (point.at_ns, reading.observed)
    beyond = {r["subject"]: r["value"] for r in rows(result) if r["record"] == "process"}
    assert beyond == {"address_space": "0", "charge": "4096", "resident": "-4096"}
