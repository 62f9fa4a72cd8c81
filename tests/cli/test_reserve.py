"""``vmtool reserve`` takes addresses and nothing else."""

import mmap
import os
import signal
import subprocess
import sys

import pytest

from vmtool.cli import reserve as module
from vmtool.memory.counters import read_process
from vmtool.report.reserve import to_text
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.reserve import ReserveResult
from vmtool.units import GIB, TIB, align_up


def space():
    told = read_process().address_space_bytes
    if told is None:
        pytest.skip("the address space in use is not available on this platform")
    return told


def test_a_tebibyte_changes_address_space_only(vmtool):
    # Wine keeps a byte for each page of a reservation, which is resident: 256 MiB for 1 TiB.
    capacity = GIB if sys.platform == "win32" else TIB
    ran = vmtool("reserve", str(capacity), "--json")
    assert ran.code == 0
    document = ran.document
    assert document["schema"] == "vmtool.reserve"
    assert document["capacity_bytes"] == capacity
    assert document["passed"]
    if sys.platform == "linux":
        counters = {check["name"]: check["values"] for check in document["checks"]}
        assert counters["counters.address_space"]["in_range_bytes"] == TIB
        assert counters["counters.charge"]["in_range_bytes"] == 0
        assert counters["counters.resident"]["in_range_bytes"] == 0
        assert counters["counters.mappings"]["in_range"] == 1


@pytest.mark.parametrize("method", ["fixed", "protect", "advise"])
def test_every_method_and_huge_alignment_keep_the_promise(vmtool, method):
    if sys.platform == "win32":
        pytest.skip("these are the methods of POSIX hosts")
    assert vmtool("reserve", "4GiB", "--method", method).code == 0
    if sys.platform == "linux":
        document = vmtool("reserve", "4GiB", "--method", method, "--huge", "--json").document
        assert document["passed"]
        assert document["base"] % (2 << 20) == 0


def test_the_reservation_is_given_back(vmtool):
    vmtool("reserve", "1TiB")
    before = space()
    vmtool("reserve", "1TiB")
    assert space() - before < 1 << 30


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("0", "not positive"),
        ("-4096", "No such option"),
        ("10EiB", "10 EiB is larger than any address space"),
        ("99999999999999999999", "64 bits"),
        ("2QiB", "unknown unit"),
        ("1.5", "not a whole number"),
        ("", "not a size"),
    ],
)
def test_bad_sizes_are_exit_2_and_leave_nothing_reserved(vmtool, size, words):
    vmtool("reserve", size)
    before = space()
    ran = vmtool("reserve", size)
    assert ran.code == 2
    assert ran.stdout == ""
    assert words in ran.stderr
    assert space() - before < 1 << 20


def test_a_size_is_rounded_up_to_whole_granules(vmtool):
    document = vmtool("reserve", "5000", "--json").document
    assert document["requested_bytes"] == 5000
    assert document["capacity_bytes"] == align_up(5000, mmap.ALLOCATIONGRANULARITY)
    assert "5,000 bytes rounded up to whole granules" in vmtool("reserve", "5000").stdout


def test_more_than_the_address_space_names_the_call_the_code_and_the_cause(vmtool):
    if sys.platform != "linux":
        pytest.skip("the size is chosen for Linux's 47 and 48 bits")
    ran = vmtool("reserve", "1EiB")
    assert ran.code == 1
    assert "mmap(NULL, 1152921504606846976, PROT_NONE" in ran.stderr
    assert "ENOMEM (12)" in ran.stderr
    assert "memory did not run out" in ran.stderr


def test_over_rlimit_as_is_explained(vmtool_child):
    if sys.platform != "linux":
        pytest.skip("RLIMIT_AS holds for reservations on Linux")
    before = (
        "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 30, r.getrlimit(r.RLIMIT_AS)[1]))"
    )
    ran = vmtool_child("reserve", "4GiB", before=before)
    assert ran.code == 1
    assert "RLIMIT_AS is 1 GiB" in ran.stderr
    assert "ulimit -v unlimited" in ran.stderr or "LimitAS=" in ran.stderr


def counter(name, before, after, in_range, expected, unit="_bytes"):
    """Return the check of one counter, passed if the range is as expected."""
    values = (before, after, after - before, in_range, expected)
    names = (f"{each}{unit}" for each in ("before", "after", "change", "in_range", "expected"))
    return Check(
        f"counters.{name}",
        CheckOutcome.of(in_range == expected),
        dict(zip(names, values, strict=True)),
    )


def test_a_counter_that_changed_too_much_is_exit_3(vmtool, monkeypatch):
    bad = counter("charge", 0, 4096, 4096, 0)
    monkeypatch.setattr("vmtool.probes.reserve.check_counters", lambda *_, **__: (bad,))
    ran = vmtool("reserve", "64KiB")
    assert ran.code == 3
    assert "WRONG: 0 B expected" in ran.stdout
    assert "charge" in ran.stderr


def start_holding(stdin):
    return subprocess.Popen(
        [sys.executable, "-m", "vmtool", "reserve", "1GiB", "--hold", "--json"],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def wait_until_holding(child):
    """Return the document, which must be readable while the reservation is held."""
    import json

    lines = []
    while True:
        line = child.stdout.readline()
        assert line, child.stderr.read()
        lines.append(line)
        if line == "}\n":
            break
    assert "holding" in child.stderr.readline()
    return json.loads("".join(lines))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_hold_with_130_and_a_whole_document(number):
    with start_holding(subprocess.PIPE) as child:
        document = wait_until_holding(child)
        if sys.platform == "linux":
            with open(f"/proc/{child.pid}/maps", encoding="ascii", errors="replace") as maps:
                assert f"{document['base']:x}-" in maps.read()
        child.send_signal(number)
        assert child.wait(30) == 130
        assert "interrupted" in child.stderr.read()


def test_enter_ends_a_hold_with_0():
    with start_holding(subprocess.PIPE) as child:
        wait_until_holding(child)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(30) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="os.wait4 and signals are POSIX")
def test_the_end_of_stdin_does_not_end_a_hold_and_does_not_spin():
    child = start_holding(subprocess.DEVNULL)
    with child:
        wait_until_holding(child)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        before = cpu_ticks(child.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        assert cpu_ticks(child.pid) - before < os.sysconf("SC_CLK_TCK") // 2
        child.terminate()
        assert child.wait(30) == 130


def cpu_ticks(pid):
    import psutil

    times = psutil.Process(pid).cpu_times()
    return (times.user + times.system) * os.sysconf("SC_CLK_TCK")


def test_help_examples_are_two_and_the_first_works(vmtool, help_examples):
    examples = help_examples(module.command)
    assert examples == [["reserve", "1TiB"], ["reserve", "64GiB", "--hold", "--json"]]
    assert vmtool(*examples[0]).code == 0


def test_the_report(golden, machine_facts):
    result = ReserveResult(
        machine=machine_facts,
        backing="host",
        device=None,
        method="fixed",
        base=0x7E45C9200000,
        requested_bytes=TIB,
        capacity_bytes=TIB,
        reserve_ns=36_500,
        checks=(
            counter("address_space", 23_969_792, 23_969_792 + TIB, TIB, TIB),
            counter("charge", 15_138_816, 15_138_816, 0, 0),
            counter("resident", 20_209_664, 20_217_856, 0, 0),
            counter("mappings", 129, 130, 1, 1, unit=""),
        ),
        passed=True,
    )
    golden("reserve", lambda console: to_text(result, console))
