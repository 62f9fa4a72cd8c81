"""``vmtool stress``: what it prints, what it refuses, and the exit code that says how it went."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from printed import printed
from stored_runs import described, gaussian, method, run

from vmtool.cli.stress import command
from vmtool.cli.stress_options import PATTERNS as OFFERED
from vmtool.json_documents import decode
from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import host_methods
from vmtool.report.matrix import to_text as matrix_text
from vmtool.report.stress import to_text
from vmtool.results.matrix import MatrixResult
from vmtool.stress.workloads import PATTERNS

SMALL = ("--capacity", "4MiB", "--granule", "64KiB")
FEW = (*SMALL, "--cycles", "40", "--runs", "1")
posix = pytest.mark.skipif(sys.platform == "win32", reason="the faults name POSIX calls")


def test_a_run_prints_latencies_histograms_and_checks(vmtool):
    ran = vmtool("stress", *FEW, "--seed", "5", "--explain")
    assert ran.code == 0
    for word in (
        "median",
        "p90",
        "p99",
        "max",
        "commit",
        "touch",
        "release",
        "█",
        "seed 5",
        "harness overhead",
        "resident memory",
        "checks: contents",
    ):
        assert word in ran.stdout
    assert "p99.9" not in ran.stdout  # 40 samples cannot tell it from the maximum
    assert "\r" not in ran.stderr  # no progress where there is no terminal


def test_json_is_one_document_that_its_schema_accepts(vmtool):
    ran = vmtool("stress", *FEW, "--json", "--method", "all", "--verify", "full")
    assert ran.code == 0
    document = ran.document
    described(document)
    assert document["outcome"] == "complete"
    names = [m["method"] for m in document["methods"]]
    assert [name for name in names if not name.endswith("+huge")] == list(host_methods())
    assert all(m["cycles"] == 40 for m in document["methods"])
    assert document["recommendation"]["method"] in names
    assert document["command"][:2] == ["vmtool", "stress"]
    assert document["machine"]["system"]["python"]
    assert not [c for c in document["checks"] if c["outcome"] == "failed"]
    assert {c["name"] for c in document["checks"]} >= {"contents", "zero", "released", "budget"}


def test_a_run_can_be_repeated_from_its_document(vmtool):
    first = vmtool("stress", *FEW, "--json", "--pattern", "random").document
    seed = str(first["settings"]["seed"])
    again = vmtool("stress", *FEW, "--json", "--pattern", "random", "--seed", seed).document
    assert first["settings"] == again["settings"]


def test_the_patterns_offered_are_the_patterns_there_are():
    assert set(OFFERED) == set(PATTERNS)


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_every_pattern_runs_with_every_method(vmtool, pattern):
    ran = vmtool("stress", *FEW, "--pattern", pattern, "--method", "all", "-q")
    assert ran.code == 0
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--cycles", "0"], 2),
        (["--cycles", "-5"], 2),
        (["--cycles", "many"], 2),
        (["--duration", "0s"], 2),
        (["--duration", "5 parsecs"], 2),
        (["--runs", "0"], 2),
        (["--runs", "101"], 2),
        (["--require", "luck"], 2),
        (["--soak", "5s", "--duration", "5s"], 2),
        (["--granule", "1000"], 2),
        (["--granule", "0"], 2),
        (["--granule", "99999999999999999999"], 2),
        (["--capacity", "5MiB", "--granule", "2MiB"], 2),
        (["--capacity", "1MiB", "--granule", "2MiB"], 2),
        (["--capacity", "4MiB", "--budget", "1GiB"], 2),
        (["--capacity", "2QB"], 2),
        (["--capacity", "16EiB"], 2),
        (["--method", "malloc"], 2),
        (["--backing", "tape"], 2),
        (["--touch", "none", "--verify", "full"], 2),
        (["--threads", "0"], 2),
        (["--workers", "99999999"], 2),
        (["--seed", "-1"], 2),
        (["--inject", "mmap"], 2),
        (["--inject", "nosuchcall:1"], 2),
        (["--assert", "nonsense"], 2),
        (["--assert", "fixd.commit.p99<30us"], 2),
        (["--touch", "none", "--assert", "touch.median<30us"], 2),
        (["--touch", "none", "--assert", "cycle.median<30us"], 2),
        (["--verify", "off", "--assert", "verify.median<30us"], 2),
        (["--method", ""], 2),
        (["--budget", "1MiB"], 5),
        (["--capacity", "8MiB", "--granule", "64KiB", "--budget", "64KiB", "--threads", "2"], 5),
    ],
)
def test_bad_input_is_refused_before_anything_starts(vmtool, monkeypatch, arguments, code):
    def started(*_arguments, **_options):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("vmtool.stress.parent.run_workers.run_workers", started)
    ran = vmtool("stress", *arguments)
    assert ran.code == code
    assert ran.stdout == ""
    assert ran.stderr


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--matrix"], "vmtool matrix"),
        (["--find-ceiling", "commit"], "vmtool limits"),
        (["--prove-faults"], "vmtool guards"),
    ],
)
def test_an_option_that_became_a_command_names_it(vmtool, arguments, name):
    ran = vmtool("stress", *arguments)
    assert ran.code == 2
    assert f"use {name}" in ran.stderr
    assert arguments[0] not in vmtool("stress", "-h").stdout


def test_a_run_with_cycles_and_a_duration_ends_at_the_first_reached(vmtool):
    few = vmtool("stress", *FEW, "--duration", "10m", "--json").document
    assert few["methods"][0]["cycles"] == 40
    many = vmtool(
        "stress", *SMALL, "--runs", "1", "--cycles", "900m", "--duration", "200ms", "--json"
    )
    assert many.code == 0
    assert 0 < many.document["methods"][0]["cycles"] < 10**8


def test_several_runs_are_kept_in_the_document_with_label_and_host(vmtool):
    arguments = (*SMALL, "--cycles", "40", "--runs", "2", "--label", "before-upgrade", "--json")
    document = vmtool("stress", *arguments).document
    described(document)
    assert [run["index"] for run in document["runs"]] == [0, 1]
    assert [run["methods"][0]["cycles"] for run in document["runs"]] == [20, 20]
    assert document["methods"][0]["cycles"] == 40
    assert document["settings"]["label"] == "before-upgrade"
    assert document["conditions"]["host"]
    assert vmtool("stress", *FEW, "--json", "--no-host").document["conditions"]["host"] is None


def test_required_checks_that_were_not_done_fail_the_run(vmtool):
    assert vmtool("stress", *FEW, "--require", "contents").code == 0
    ran = vmtool("stress", *FEW, "--verify", "off", "--require", "contents")
    assert ran.code == 3
    assert "require.contents failed: not done: contents" in ran.stderr
    assert "hint: leave out --verify off" in ran.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms lack some counters")
def test_one_cycle_is_too_few_for_leaks_and_a_short_default_run_is_not(vmtool):
    ran = vmtool("stress", *SMALL, "--cycles", "1", "--require", "leaks")
    assert ran.code == 3
    assert "hint: run for longer: --duration 10s, or more --cycles" in ran.stdout
    assert vmtool("stress", *SMALL, "--duration", "1s", "--require", "leaks").code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on areas is a Linux one")
def test_a_plan_over_the_mapping_limit_is_refused_with_a_safe_number_unless_forced(
    vmtool, monkeypatch
):
    facts = read_facts()
    tight = replace(facts, process=replace(facts.process, mappings=100, max_mappings=150))
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: tight)
    plan = ("stress", *FEW, "--cycles", "200", "--pattern", "random")
    refused = vmtool(*plan)
    assert refused.code == 5
    assert "memory areas" in refused.stderr
    assert re.search(r"use \d+ areas or fewer", refused.stderr)
    forced = vmtool(*plan, "--force")
    assert forced.code == 0
    assert "--force was given" in forced.stderr


@posix
def test_a_failed_call_is_exit_1_with_every_invariant_intact(vmtool):
    ran = vmtool("stress", *FEW, "--method", "fixed", "--inject", "mmap:9=ENOMEM", "--json")
    assert ran.code == 1
    document = ran.document
    described(document)
    assert document["outcome"] == "call-failed"
    assert document["failures"][0]["injected"]
    assert not [c for c in document["checks"] if c["outcome"] == "failed"]
    assert "ENOMEM" in ran.stderr


@posix
def test_a_crash_is_exit_1_and_names_the_operation(vmtool):
    ran = vmtool("stress", *FEW, "--method", "fixed", "--inject", "mmap:9=SIGSEGV")
    assert ran.code == 1
    assert "SIGSEGV in commit of granule 7, cycle 7" in ran.stdout
    assert "granule 7" in ran.stderr


@posix
def test_a_crash_is_told_also_where_a_check_failed(vmtool):
    crash = ("--method", "fixed", "--inject", "mmap:9=SIGSEGV", "--runs", "4")
    ran = vmtool("stress", *FEW, *crash, "--assert", "commit.p50<1s")
    assert ran.code == 3
    told = [line for line in ran.stderr.splitlines() if line.startswith("vmtool: error: ")]
    assert len(told) == 2
    assert "SIGSEGV" in told[0]
    assert "assert.commit.p50<1s failed" in told[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux promises zeroes after madvise")
def test_a_release_that_was_only_pretended_is_exit_3(vmtool):
    ran = vmtool(
        "stress",
        *FEW,
        "--method",
        "protect",
        "--inject",
        "madvise:45=SKIP",
        "--verify",
        "full",
        "--cycles",
        "200",
    )
    assert ran.code == 3
    assert "zero FAILED" in ran.stdout
    assert "zero failed" in ran.stderr


@posix
def test_a_fault_that_did_not_happen_is_reported(vmtool):
    ran = vmtool("stress", *FEW, "--method", "protect", "--inject", "mmap:500")
    assert ran.code == 0
    assert "mmap:500=ENOMEM did not happen" in ran.stdout


def test_an_assertion_that_does_not_hold_is_exit_3(vmtool):
    ran = vmtool("stress", *SMALL, "--cycles", "40", "--assert", "commit.median<1ns")
    assert ran.code == 3
    assert "commit.median" in ran.stderr


def test_a_budget_without_a_unit_is_explained(vmtool):
    ran = vmtool("stress", "--budget", "16")
    assert ran.code == 5
    assert "write 16GiB" in ran.stderr


def test_an_assertion_needs_four_runs(vmtool):
    ran = vmtool("stress", *FEW, "--assert", "commit.median<1h")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--assert needs 4 runs, and this would make 1" in ran.stderr


def _wait_for_a_worker(pid):
    """Return once *pid* has a child: from then on it hears signals."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        time.sleep(3)  # another platform
        return
    deadline = time.monotonic() + 30
    while not children.read_text(encoding="ascii") and time.monotonic() < deadline:
        time.sleep(0.01)


def _signalled(name, *arguments):
    """Run a command, send it a signal when it has a child; return its code, document and words."""
    # Whoever runs the tests may ignore the signal, as nohup does, and children inherit that.
    program = (
        f"import signal, sys; signal.signal(signal.{name}, signal.default_int_handler)\n"
        "from vmtool.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        _wait_for_a_worker(child.pid)
        os.killpg(child.pid, getattr(signal, name))  # as a terminal and timeout(1) do
        stdout, stderr = child.communicate(timeout=60)
    finally:
        child.kill()
    document = json.loads(stdout)
    described(document)
    return child.returncode, document, stderr


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_it_with_130_and_a_valid_partial_result(name):
    code, document, stderr = _signalled(name, "stress", *SMALL, "--duration", "10m")
    assert document["schema"] == "vmtool.stress"
    assert code == 130
    assert document["outcome"] == "interrupted"
    assert not [c for c in document["checks"] if c["outcome"] == "failed"]
    assert "interrupted" in stderr


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("arguments", [("limits", "reserve"), ("guards",)])
def test_a_signal_leaves_a_partial_result_of_probes_as_well(name, arguments):
    code, document, stderr = _signalled(name, *arguments)
    assert code == 130
    assert not document["complete"]
    assert "interrupted" in stderr


@pytest.mark.skipif(sys.platform == "win32", reason="the host's guards are tried as signals")
def test_guards_are_proved_in_children(vmtool):
    ran = vmtool("guards", "--json")
    assert ran.code == 0
    described(ran.document)
    values = [check["values"] for check in ran.document["checks"]]
    found = {(each["method"], each["case"]): each["faulted"] for each in values}
    for name in ("fixed", "protect"):
        assert found[name, "never"]
        assert found[name, "released"]
        assert not found[name, "committed"]
    assert not any(faulted for (name, _), faulted in found.items() if name == "advise")


def test_the_matrix_covers_every_pattern_method_and_granule_with_the_waste_of_a_model(vmtool):
    model = ("--model", "llama-3.1-8b", "--context", "1k")
    ran = vmtool("matrix", "--duration", "1s", "--json", "--capacity", "4MiB", *model)
    assert ran.code == 0
    described(ran.document)
    cells = {(c["pattern"], c["method"], c["granule_bytes"]) for c in ran.document["cells"]}
    granules = {cell[2] for cell in cells}
    assert len(granules) >= 2
    plain = {cell for cell in cells if not cell[1].endswith("+huge")}
    assert plain == {(p, m, g) for p in PATTERNS for m in host_methods() for g in granules}
    assert ran.document["best"]["granule_bytes"] in granules
    assert all(cell["cycles"] > 0 and not cell["failed"] for cell in ran.document["cells"])

    result = decode(MatrixResult, ran.document)
    first, *more = printed(partial(matrix_text, result), 200)
    assert "use granules of" in first
    reasons = "\n".join(more)
    assert "a sequence of 1,024 tokens of llama-3.1-8b wastes" in reasons
    assert "% of what it commits" in reasons
    assert "per used GiB" in reasons


@pytest.mark.parametrize("arguments", [("--context", "1k"), ("--granule", "64KiB,")])
def test_half_a_question_of_a_matrix_is_wrong_usage(vmtool, arguments):
    assert vmtool("matrix", *arguments).code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on areas is a Linux one")
def test_the_limit_of_mappings_is_the_limit_of_the_kernel(vmtool):
    limit = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    if limit > 1 << 17:
        pytest.skip(f"vm.max_map_count is {limit}: reaching it takes too long")
    ran = vmtool("limits", "mappings", "--method", "fixed", "--json")
    described(ran.document)
    (found,) = ran.document["kinds"][0]["methods"]
    assert abs(found["reached"] - limit) <= 4
    assert "ENOMEM" in found["error"]


def test_the_limit_of_reservations_is_found_in_bounded_tries(vmtool):
    ran = vmtool("limits", "reserve", "--method", host_methods()[0], "--json")
    described(ran.document)
    (found,) = ran.document["kinds"][0]["methods"]
    assert found["tries"] <= 28
    assert found["reached"] > 1 << 30
    assert found["refused"] is None or found["refused"] > found["reached"]


@pytest.mark.parametrize("width", [40, 80, 120, 240])
def test_no_digit_is_cut_at_any_width(width):
    samples = [1_234_567 + 1001 * n for n in range(12_000)] + [9_876_543_210]
    phases = dict.fromkeys(("commit", "touch", "verify", "release"), samples)
    result = run(method("fixed", **phases))
    lines = printed(lambda console: to_text(result, console, explain=True), width)
    text = "\n".join(lines)
    assert "…" not in text
    assert max(map(len, lines)) <= width
    assert "p99.9" in text
    assert text.count("9.88 s") >= 4
    assert text.count("█") > 4


def test_the_report_of_a_run(golden):
    samples = {
        name: gaussian(seed, mean, 12_000)
        for seed, (name, mean) in enumerate(
            [("commit", 9_000), ("touch", 220_000), ("verify", 30_000), ("release", 40_000)]
        )
    }
    result = run(method("fixed", **samples), recommendation=None)
    golden("stress", lambda console: to_text(result, console))


def test_no_colour_codes_without_a_terminal(vmtool):
    assert "\x1b" not in vmtool("stress", *FEW).stdout


def test_help_opens_with_a_sentence_and_examples_and_names_every_default(vmtool, help_examples):
    text = vmtool("stress", "-h").stdout
    assert "Commit, touch and release real memory" in text
    assert len(help_examples(command)) >= 2
    for word in ("[default: 256MiB]", "[default: 2MiB]", "[default: 3s]"):
        assert word in " ".join(text.split())


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
def test_the_hint_at_a_limit_of_address_space_can_be_followed(vmtool_child):
    limit = "import resource as r; r.setrlimit(r.RLIMIT_AS, (300_000 << 10,) * 2)"
    refused = vmtool_child("stress", before=limit)
    assert refused.code == 5
    capacity = re.search(r"hint: use --capacity (\d+) ", refused.stderr)[1]
    more = ("--cycles", "20", "--touch", "none")
    assert vmtool_child("stress", "--capacity", capacity, *more, before=limit).code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
def test_where_a_limit_leaves_nothing_safe_it_is_named(vmtool, monkeypatch):
    facts = read_facts()
    full = replace(facts.process, data_limit_bytes=50_000 << 10, data_bytes=49_000 << 10)
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: replace(facts, process=full))
    refused = vmtool("stress")
    assert refused.code == 5
    assert "nothing is safe to commit here" in refused.stderr
    assert "cause: RLIMIT_DATA is 48.83 MiB" in refused.stderr
    assert "hint: ulimit -d unlimited" in refused.stderr or "LimitDATA=" in refused.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "--budget 10TiB",
            "the budget of 10 TiB is more than the capacity of all buffers together, 256 MiB",
        ),
        (
            "--capacity 64KiB --granule 2MiB",
            "the capacity of 64 KiB is less than one granule of 2 MiB",
        ),
    ],
)
def test_a_refused_size_is_told_as_a_size(vmtool, line, words):
    ran = vmtool("stress", *line.split())
    assert (ran.code, words in ran.stderr) == (2, True)
