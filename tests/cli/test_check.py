"""``vmtool check``: the first look at a machine."""

import json
from dataclasses import replace
from functools import partial

import pytest
from printed import printed
from stored_runs import described

from vmtool.check import run_check
from vmtool.machine import read_facts
from vmtool.memory.cuda.errors_and_diagnosis import DeviceLostError
from vmtool.report.check import advice, answer, to_html, to_markdown, to_text
from vmtool.report.check_sentences import summarize
from vmtool.report.recommendation_and_advice import method_option_words
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.stress.safe_memory import measure_room
from vmtool.units import MIB


def _run(**options):
    facts = read_facts()
    return run_check(
        facts,
        ["host"],
        room_of=lambda opened: measure_room(opened, facts, workers=1),
        device_findings=(),
        seed=1,
        hang_ns=30 * 10**9,
        stress_ns=2 * 10**9,
        matrix_ns=10**9,
        **options,
    )


@pytest.fixture(scope="module")
def result():
    return _run()


def test_every_question_of_a_first_visit_is_answered(result):
    (host,) = result.memory

    assert result.complete
    assert host.recommendation.method in host.recommendation.cycle_ns
    assert [choice.granule_bytes for choice in host.granules][-1] == 2 * MIB
    assert host.best_granule in host.granules
    cycle_ns = host.recommendation.cycle_ns[host.granules[-1].method]
    assert host.granules[-1].per_gib_ns == 512 * cycle_ns  # of the same run, not measured again
    names = {check.name.partition(".")[0] for check in host.checks}
    assert {"contents", "counters", "leak", "guard", "released"} <= names
    assert not [check for check in host.checks if check.outcome is CheckOutcome.FAILED]
    assert result.machine["system"]["os"]


def test_it_commits_no_more_than_it_says(result):
    assert result.memory[0].stress.peak_committed_bytes <= 256 * MIB


def test_the_reports_say_the_same(result):
    text = "\n".join(printed(lambda console: to_text(result, console), 240))
    markdown = to_markdown(result)
    page = to_html(result, command=["vmtool", "check"])

    assert "best method" in text
    assert summarize(result.memory[0].checks) in " ".join(text.split())
    assert "do this:" in text
    for report in (text, markdown, page):
        assert method_option_words(result.memory[0].recommendation.method) in report


def test_the_first_line_says_that_leaks_were_not_looked_for(result):
    def too_short(check):
        if not check.name.startswith("leak."):
            return check
        return Check(check.name, CheckOutcome.NOT_DONE, {"reason": "too few checkpoints"})

    (host,) = result.memory
    host = replace(host, checks=tuple(map(too_short, host.checks)))
    short = replace(result, memory=(host,), findings=())

    assert answer(short).endswith("in RAM; the run was too short to look for leaks")
    assert advice(short)[-1].startswith("run `vmtool stress --duration 1m --require leaks`")
    assert "leaks" not in answer(replace(short, memory=result.memory))


def test_an_interrupt_leaves_what_was_done():
    asked = iter([False, False])
    steps = []
    stopped = _run(
        stopping=lambda: next(asked, True),
        name_host=False,
        progress=lambda *step: steps.append(step),
    )

    assert not stopped.complete
    assert steps[0][:3] == ("methods and leaks", 0, 3)
    assert all(left_ns > 0 for *_, left_ns in steps)
    inner = [memory.stress.conditions for memory in stopped.memory]
    assert [found.host for found in (stopped.conditions, *inner)] == [None] * (1 + len(inner))


def test_the_document_is_what_its_schema_says(vmtool, result, monkeypatch):
    monkeypatch.setattr("vmtool.check.run_check", lambda *_, **__: result)  # the same, made once
    ran = vmtool("check", "--json", "--backing", "host", "-q")

    assert ran.code in {0, 3}  # 3 where this machine has a problem
    assert ran.document["schema"] == "vmtool.check"
    described(ran.document)


def test_markdown_and_json_contradict_each_other(vmtool):
    ran = vmtool("check", "--json", "--markdown")

    assert ran.code == 2
    assert "cannot be used together" in ran.stderr


def test_a_device_whose_granules_are_all_alike_is_measured_once(run_on_standin, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the run of stress has measured it")

    monkeypatch.setattr("vmtool.check.run_matrix", never)
    monkeypatch.setattr("vmtool.check.run_check", partial(run_check, stress_ns=10**8))
    ran = run_on_standin(["check", "--backing", "cuda:0", "--json", "-q"])
    document = json.loads(ran.stdout)

    assert document["complete"]
    (device,) = document["memory"]
    (granule,) = device["granules"]
    assert granule["granule_bytes"] == 2 * MIB
    assert device["best_granule"] == granule


def test_what_was_found_before_the_device_was_lost_is_reported(run_on_standin, monkeypatch):
    def lost(*_, **__):
        raise DeviceLostError("cuMemMap", "1", code=719, symbol="CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr("vmtool.check.run_matrix", lost)
    monkeypatch.setattr("vmtool.check.run_check", partial(run_check, stress_ns=10**8))
    ran = run_on_standin(["check", "--backing", "cuda:0", "--json"], granularity="64KiB")
    assert ran.returncode == 3
    (memory,) = json.loads(ran.stdout)["memory"]
    assert memory["stress"]["outcome"] == "complete"
    assert memory["checks"][-1]["name"] == "run"
    assert memory["checks"][-1]["values"]["cause"].startswith("cuMemMap(1) failed")


def test_a_device_that_takes_no_context_fails_alone(fakecuda):
    fakecuda.fail("cuDevicePrimaryCtxRetain:1+=46")
    facts = read_facts()
    found = run_check(
        facts,
        ["cuda:0"],
        room_of=lambda opened: measure_room(opened, facts, workers=1),
        device_findings=(),
        seed=1,
        hang_ns=30 * 10**9,
    )
    assert found.complete
    assert not found.passed
    text = " ".join(" ".join(printed(lambda console: to_text(found, console), 240)).split())
    assert "cuda:0: run failed: cuDevicePrimaryCtxRetain(0) failed" in text


@pytest.mark.parametrize("code", [46, 802, 803, 804, 999, 100])
def test_a_driver_that_does_not_start_is_a_problem_and_no_device_is_none(
    vmtool, fakecuda, monkeypatch, code
):
    fakecuda.fail(f"cuInit:1+={code}")
    tried = []

    def without_memory(facts, backings, **options):
        tried.extend(backings)
        return run_check(facts, [], **options)

    monkeypatch.setattr("vmtool.check.run_check", without_memory)
    ran = vmtool("check", "--json")
    problems = [each["kind"] for each in ran.document["findings"] if each["rating"] == "problem"]
    assert tried == ["host"]
    assert ("cuda" in problems) == (code != 100)
    if code != 100:
        assert ran.code == 3
        assert f"({code})" in next(
            each["message"] for each in ran.document["findings"] if each["kind"] == "cuda"
        )
        words = " ".join(vmtool("check").stdout.split())
        assert "cuInit(0) failed: CUDA_ERROR_" in words
        assert f"({code})" in words
    fakecuda.reset()
