"""The CSV table: every sample counted, every reading kept, one number per row."""

import csv
import io

from stored_runs import eventful, gaussian, method, run

from vmtool.report.stress_export import COLUMNS, to_csv


def rows(result):
    table = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert all(set(row) == set(COLUMNS) and row["value"] for row in table)
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
