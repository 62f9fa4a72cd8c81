"""``vmtool grow`` on real memory."""

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from vmtool.cli import grow as module
from vmtool.histograms import summarize_samples
from vmtool.memory.counters import read_process
from vmtool.report.grow import bar, picked_rows, to_text
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.grow import CopyResult, GrowResult, GrowSteps
from vmtool.units import KIB, MIB, format_duration


def test_a_growth_is_reported_with_every_step_and_beside_copying(vmtool):
    ran = vmtool("grow", "--to", "4MiB", "--step", "100KiB", "--json")
    assert ran.code == 0
    document = ran.document
    assert document["schema"] == "vmtool.grow"
    assert document["passed"]
    assert document["complete"]
    steps = document["steps"]
    assert len(steps["length_bytes"]) == len(steps["elapsed_ns"]) == document["planned_steps"]
    assert max(steps["length_bytes"]) == 4 * MIB
    assert all(type(ns) is int for ns in steps["elapsed_ns"])
    assert document["copying"]["steps"] == document["growing"]["samples"]


def test_the_text_has_a_picture_latencies_and_checks(vmtool):
    ran = vmtool("grow", "--to", "4MiB")
    assert ran.code == 0
    assert ran.stderr == ""
    for words in ("█", "growing", "by copying", "contents survive", "ok"):
        assert words in ran.stdout


def test_a_step_may_be_tokens_of_a_model(vmtool):
    # Llama 3.1 8B keeps 2 x 2048 bytes in each of 32 layers: 128 KiB a token.
    options = ("--model", "llama-3.1-8b", "--tokens", "4", "--against", "nothing", "--json")
    lengths = vmtool("grow", "--to", "2MiB", *options).document["steps"]["length_bytes"]
    assert lengths[:4] == [512 * KIB, 1024 * KIB, 1536 * KIB, 2048 * KIB]


def test_against_nothing_does_not_copy(vmtool):
    document = vmtool("grow", "--to", "1MiB", "--against", "nothing", "--json").document
    assert document["copying"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "0"], "not positive"),
        (["--to", "-1"], "not a size"),
        (["--to", "2QB"], "unknown unit"),
        (["--to", "99999999999999999999"], "64 bits"),
        (["--to", "1MiB", "--step", "0"], "not positive"),
        (["--to", "1MiB", "--step", "2MiB"], "a step of 2 MiB is larger than the peak of 1 MiB"),
        (["--to", "100MiB", "--step", "1"], "steps of 1 B are more than 262,144"),
        (["--to", "1MiB", "--pattern", "spiral"], "spiral"),
        (["--to", "1MiB", "--tokens", "4"], "belong together"),
        (["--to", "1MiB", "--model", "llama-3.1-8b"], "belong together"),
        (["--to", "9MiB", "--tokens", "4", "--model", "llama-3.1-8b", "--step", "1MiB"], "both"),
        (["--to", "1MiB", "--tokens", "4", "--model", "no-such-model"], "no-such-model"),
        (["--to", "1MiB", "--tokens", "4", "--model", "falcon-mamba-7b"], "stops growing"),
        (["--to", "1MiB", "--method", "magic"], "unknown method"),
        ([], "--to"),
    ],
)
def test_bad_input_is_exit_2_with_nothing_left_mapped(vmtool, arguments, words):
    vmtool("grow", *arguments)
    before = read_process().address_space_bytes
    ran = vmtool("grow", *arguments)
    assert ran.code == 2
    assert ran.stdout == ""
    assert words in ran.stderr
    if before is not None:
        assert read_process().address_space_bytes - before < MIB


def test_over_the_budget_is_exit_5_with_the_number_that_works(vmtool):
    ran = vmtool("grow", "--to", "2MiB", "--budget", "1000000")
    assert ran.code == 5
    assert ran.stdout == ""
    works = ran.stderr.split("use --to ")[1].split()[0]
    assert int(works) <= 1000000
    assert vmtool("grow", "--to", works, "--budget", "1000000", "--against", "nothing").code == 0


def test_more_than_the_machine_has_is_exit_5_before_anything_is_mapped(vmtool):
    ran = vmtool("grow", "--to", "1EiB")
    assert ran.code == 5
    assert ran.stdout == ""
    assert "or less" in ran.stderr
    assert re.search(r"hint: use --to \d+ ", ran.stderr)


def test_copying_that_would_not_be_safe_is_left_out_or_refused(vmtool, monkeypatch):
    from dataclasses import replace

    from vmtool.machine import read_facts
    from vmtool.machine.facts import MemoryFacts

    # Of 5 MiB two are kept in reserve: enough for one block of 2 MiB, and not for two.
    small = replace(read_facts(), memory=MemoryFacts(1 << 30, 5 * MIB))
    monkeypatch.setattr("vmtool.machine.read_facts", lambda: small)
    ran = vmtool("grow", "--to", "2MiB", "--json")
    assert ran.code == 0
    assert ran.document["copying"] is None
    assert "not compared with copying" in ran.stderr
    refused = vmtool("grow", "--to", "2MiB", "--against", "realloc")
    assert refused.code == 5
    works = refused.stderr.split("use --to ")[1].split()[0]
    assert vmtool("grow", "--to", works, "--against", "realloc").code == 0


def test_a_limit_on_the_address_space_is_refused_by_the_preflight(vmtool_child):
    if sys.platform != "linux":
        pytest.skip("RLIMIT_AS holds for reservations on Linux")
    before = "import resource; resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))"
    ran = vmtool_child("grow", "--to", "512MiB", before=before)
    assert ran.code == 5
    assert "RLIMIT_AS is 256 MiB" in ran.stderr


def test_a_broken_promise_is_exit_3_and_names_it(vmtool, monkeypatch):
    from vmtool.probes.grow_stamps import Stamps

    monkeypatch.setattr(Stamps, "find_nonzero", lambda *_: 4096)
    ran = vmtool("grow", "--to", "1MiB")
    assert ran.code == 3
    assert "FAILED" in ran.stdout
    assert "new memory is zero: the byte at offset 4096 is not zero" in ran.stderr


def test_a_call_that_fails_has_its_exit_code_and_a_partial_result(vmtool, monkeypatch):
    from vmtool.errors import CallError
    from vmtool.memory.buffer import VirtualBuffer

    real = VirtualBuffer.grow_to

    def grow_to(self, nbytes):
        if nbytes > 2 * MIB:
            raise CallError("mmap", "4096", code=12, symbol="ENOMEM", cause="full", hint="less")
        real(self, nbytes)

    monkeypatch.setattr(VirtualBuffer, "grow_to", grow_to)
    ran = vmtool("grow", "--to", "4MiB", "--step", "1MiB", "--json")
    assert ran.code == 1
    assert "error: mmap(4096) failed: ENOMEM (12)\n  cause: full\n  hint: less" in ran.stderr
    document = ran.document
    assert document["steps"]["length_bytes"] == [MIB, 2 * MIB]
    assert not document["complete"]
    assert document["ended_by"] == {
        "operation": "grow",
        "step": 3,
        "length_bytes": 3 * MIB,
        "call": "mmap",
        "symbol": "ENOMEM",
        "message": "mmap(4096) failed: ENOMEM (12)",
        "cause": "full",
        "hint": "less",
    }
    text = vmtool("grow", "--to", "4MiB", "--step", "1MiB").stdout
    assert "stopped after 2 steps" in text
    words = "failed in grow of step 3, to 3 MiB: mmap(4096) failed: ENOMEM (12)"
    assert f"{words}\ncause: full\nhint: less\n" in text


def test_a_refused_lease_has_its_exit_code_and_a_partial_result(vmtool, monkeypatch):
    from vmtool.memory.governor import BudgetError, Lease, Tier

    real = Lease.grow

    def grow(self, nbytes):
        if self.nbytes:
            raise BudgetError(Tier.HOST, nbytes, self.nbytes, self.nbytes)
        real(self, nbytes)

    monkeypatch.setattr(Lease, "grow", grow)
    ran = vmtool("grow", "--to", "2MiB", "--step", "1MiB", "--json")
    assert ran.code == 5
    assert ran.document["ended_by"]["symbol"] == "BudgetError"
    assert ran.document["steps"]["length_bytes"] == [MIB]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
def test_ctrl_c_is_exit_130_with_a_valid_partial_document():
    program = (
        "import sys, vmtool.probes.grow as g, os, signal\n"
        "real = g._MeasuredGrowth.change_to\n"
        "def step(self, length):\n"
        "    real(self, length)\n"
        "    if len(self.elapsed) == 3: os.kill(os.getpid(), signal.SIGINT)\n"
        "g._MeasuredGrowth.change_to = step\n"
        "from vmtool.cli.app import run\n"
        "sys.exit(run(['grow', '--to', '4MiB', '--json']))\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert child.returncode == 130
    import json

    document = json.loads(child.stdout)
    assert document["interrupted"]
    assert not document["complete"]
    assert len(document["steps"]["elapsed_ns"]) == 3
    assert "interrupted after 3 steps" in child.stderr


def test_a_budget_below_one_granule_is_refused_with_one_that_works(vmtool):
    ran = vmtool("grow", "--to", "1MiB", "--budget", "1")
    assert ran.code == 5
    need = ran.stderr.partition("raise --budget to ")[2].split()[0]
    assert need == str(MIB)
    assert vmtool("grow", "--to", need, "--budget", need).code == 0


def test_signals_mean_what_they_did_afterwards(vmtool):
    before = signal.getsignal(signal.SIGINT)
    vmtool("grow", "--to", "1MiB")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_digit_is_cut_at_any_width(width):
    from vmtool.machine import read_facts
    from vmtool.memory.backing_by_name import open_backing
    from vmtool.probes.grow import GrowPlan, plan_lengths, run_growth

    plan = GrowPlan(
        tuple(plan_lengths("linear", 2 * MIB, 100 * KIB)), 16 * MIB, against_copying=True
    )
    result, _ = run_growth(open_backing(), plan, read_facts())
    out = io.StringIO()
    to_text(result, Console(file=out, width=width, highlight=False, legacy_windows=False))
    assert "…" not in out.getvalue()
    words = out.getvalue().split()
    assert f"{result.base:#x}" in words
    assert format_duration(result.copying.copying_ns).split()[0] in words
    assert format_duration(result.shrinking.max_ns).split()[0] in words
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= width


def summary(*samples):
    return summarize_samples(samples)


def test_the_report(golden, machine_facts):
    compared = {"base": 4, "committed": 4, "contents": 2056, "zero": 2}
    failed = Check("released", CheckOutcome.FAILED, {"compared": 1, "unreleased_bytes": 8192})
    result = GrowResult(
        machine=machine_facts,
        backing="host",
        device=None,
        method="fixed",
        complete=True,
        interrupted=False,
        passed=False,
        base=0x7E45C9200000,
        capacity_bytes=2 * MIB,
        granule_bytes=4096,
        budget_bytes=64 * MIB,
        planned_steps=4,
        steps=GrowSteps(
            (700_000, 2 * MIB, 700_000, 0), (700_416, 2 * MIB, 700_416, 0), (9, 8, 7, 6)
        ),
        growing=summary(21_000, 20_000),
        shrinking=summary(11_000, 10_000),
        checks=(
            *(Check(name, CheckOutcome.PASSED, {"compared": n}) for name, n in compared.items()),
            failed,
        ),
        copying=CopyResult(
            1, 2, 700_000, summary(900_000), summary(21_000), 900_000, 21_000, "time limit", 700_000
        ),
        ended_by=None,
    )
    golden("grow", lambda console: to_text(result, console))


def test_the_picture_has_the_first_and_the_last_step_and_at_most_16():
    assert picked_rows(3) == [0, 1, 2]
    rows = picked_rows(1000)
    assert (rows[0], rows[-1], len(rows)) == (0, 999, 16)


def test_a_bar_distinguishes_length_rounding_and_reserve():
    assert bar(25, 50, 100, 8) == "██▒▒····"
    assert bar(0, 0, 100, 4) == "····"
    assert bar(100, 100, 100, 4) == "████"
    assert bar(1, 1, 100, 4) == "█···"  # a little is still visible


def test_help_examples_work(vmtool, help_examples):
    examples = help_examples(module.command)
    assert len(examples) == 2
    for example in examples:
        assert vmtool(*example, "--against", "nothing").code == 0


@pytest.mark.skipif(
    sys.platform != "linux" or not Path("/sys/devices/system/node/online").exists(),
    reason="this kernel has no NUMA",
)
def test_a_node_is_bound_and_checked(vmtool):
    ran = vmtool("grow", "--to", "1MiB", "--node", "0", "--against", "nothing", "--json", "-q")
    if "EPERM" in ran.stderr:
        pytest.skip("a seccomp filter forbids mbind")
    assert ran.code == 0, ran.stderr
    document = ran.document
    assert document["node"] == 0
    assert {check["name"]: check["outcome"] for check in document["checks"]}["node"] == "passed"


@pytest.mark.skipif(sys.platform != "linux", reason="reserved huge pages are Linux's")
def test_reserved_huge_pages_that_cannot_be_had_are_not_available(vmtool):
    ran = vmtool("grow", "--to", "1GiB", "--huge", "16GiB", "--against", "nothing")
    assert ran.code == 4
    assert "no reserved huge page of 16 GiB is available: mmap(NULL" in ran.stderr
    assert "hint: " in ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="transparent huge pages are Linux's")
@pytest.mark.parametrize("huge", [["--huge", "--to", "4MiB"], ["--to", "4MiB", "--huge"]])
def test_huge_alone_asks_for_transparent_ones(vmtool, huge):
    ran = vmtool("grow", *huge, "--against", "nothing", "-q")
    assert ran.code == 0 or "CONFIG_TRANSPARENT_HUGEPAGE" in ran.stderr
