"""What a real run of ``vmtool stress`` writes: documents, pages and tables, and its gates."""

import csv
import json
import re

import pytest
from stored_runs import described

from vmtool.memory.backing_by_name import methods_of

RUN = ("stress", "--capacity", "8MiB", "--budget", "4MiB", "--cycles", "120", "--seed", "1")


def test_a_real_run_is_what_its_schema_says_to_the_last_key(vmtool):
    ran = vmtool(*RUN, "--method", "all", "--json", "--quiet")
    assert ran.code == 0
    described(ran.document)
    assert ran.document["checkpoints"]


def test_a_real_run_compared_with_itself_is_unchanged(vmtool, tmp_path):
    path = str(tmp_path / "run.json")
    assert vmtool(*RUN, "--json", "-o", path).code == 0
    ran = vmtool("compare", path, path, "--json", "--fail-on", "commit.p99>+0%")
    assert ran.code == 0
    assert ran.stderr == f"vmtool: warning: BEFORE and AFTER are the same: {path}\n"
    assert {c["direction"] for c in ran.document["changes"]} <= {"unchanged", "not proven"}
    described(ran.document)


def test_a_real_run_writes_its_page_and_its_table(vmtool, tmp_path):
    page, table = tmp_path / "run.html", tmp_path / "run.csv"
    ran = vmtool(*RUN, "--json", "--html", str(page), "--csv", str(table))
    assert ran.code == 0
    text = page.read_text(encoding="utf-8")
    assert re.search(r"checks: \d+ passed(, \d+ not done: [^<]*)?<", text)
    assert ran.document["machine"]["system"]["kernel"] in text
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counted = [
        int(r["value"])
        for r in rows
        if (r["record"], r["run"], r["subject"]) == ("histogram", "", "commit")
    ]
    assert sum(counted) == ran.document["methods"][0]["phases"][0]["summary"]["samples"]


def test_an_assertion_that_fails_is_exit_3_and_in_the_document(vmtool):
    ran = vmtool(*RUN, "--json", "--assert", "commit.p50<1ns", "--assert", "commit.p50<1h")
    assert ran.code == 3
    found = {check["name"]: check["outcome"] == "passed" for check in ran.document["checks"]}
    assert found["assert.commit.p50<1ns"] is False
    assert found["assert.commit.p50<1h"] is True
    assert "commit.p50<1ns" in ran.stderr


@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_a_file_that_cannot_be_written_is_reported_before_the_run(vmtool, tmp_path, option):
    ran = vmtool("stress", "--duration", "1h", option, str(tmp_path / "none" / "file"))
    assert ran.code == 2
    assert "cannot write" in ran.stderr


DEVICE_RUN = (
    *("stress", "--backing", "cuda", "--capacity", "16MiB", "--budget", "16MiB"),
    *("--cycles", "40", "--seed", "1", "--quiet", "--json"),
)


def test_a_run_on_a_device_names_it_and_its_driver_and_can_be_compared(
    run_on_standin, vmtool, tmp_path
):
    path = tmp_path / "run.json"
    ran = run_on_standin([*DEVICE_RUN, "-o", str(path)])
    assert ran.returncode == 0, ran.stderr
    document = json.loads(path.read_text(encoding="utf-8"))
    described(document)
    assert document["machine"]["device"]["name"] == document["device"]
    document["machine"]["device"] |= {"name": "another", "driver_version": 12040}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document), encoding="utf-8")
    ran = vmtool("compare", str(path), str(other))
    assert ran.code == 0
    assert "GPU: " in ran.stderr
    assert "CUDA version of the driver: 13.0 and 12.4" in ran.stderr


def test_metrics_are_openmetrics_text_with_phases_and_checks(vmtool, tmp_path):
    file = tmp_path / "vmtool.prom"

    ran = vmtool("stress", "--cycles", "40", "--capacity", "8MiB", "--metrics", str(file))

    text = file.read_text()
    assert ran.code == 0
    assert text.endswith("# EOF\n")
    labels = f'backing="host",method="{methods_of("host")[0]}",phase="commit",quantile="median"'
    sample = f"vmtool_phase_seconds{{{labels}}} "
    assert sample in text
    assert 'vmtool_check_passed{backing="host",check="contents"} 1' in text
    families = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(families) == len(set(families))
