"""The search for a ceiling is bounded in memory where each try takes memory."""

import io
import json
import mmap
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from vmtool.machine import read_facts
from vmtool.probes.child import Answer, ask
from vmtool.probes.limits import CeilingReport, MethodCeiling, find_ceiling
from vmtool.report.stress_modes import ceiling_text
from vmtool.units import GIB

linux = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
posix = pytest.mark.skipif(sys.platform == "win32", reason="the methods are those of POSIX")


@pytest.fixture
def tried(monkeypatch):
    """Return the numbers that a search tried on a machine that refuses nothing."""
    numbers = []

    def ask(_kind, _backing, _method, number, *, stopping):
        if stopping():
            return None
        numbers.append(number)
        return Answer(works=True, reached=number)

    monkeypatch.setattr("vmtool.probes.limits.ask", ask)
    return numbers


@posix
def test_what_a_commit_faults_in_stays_within_what_is_safe(tried):
    safe = read_facts().safe_bytes
    (found,) = find_ceiling("commit", "host", ["advise"], lambda _tries: None).methods
    assert found.refused is None
    assert found.reached == max(tried) <= safe


@posix
def test_what_takes_no_memory_is_tried_further_than_any_address_space(tried):
    find_ceiling("reserve", "host", ["advise"], lambda _tries: None)
    assert max(tried) > 1 << 50


@posix
def test_an_interrupted_search_keeps_what_it_found(tried):
    methods = ["advise", "fixed"]
    report = find_ceiling(
        *("reserve", "host", methods, lambda _: None), stopping=lambda: len(tried) == 3
    )
    assert tried == [GIB, 2 * GIB, 4 * GIB]
    assert not report.complete
    (found,) = report.methods  # the other was not begun
    assert (found.method, found.complete) == ("advise", False)
    assert (found.reached, found.refused, found.tries) == (4 * GIB, None, 3)


@posix
def test_an_interrupt_between_two_methods_leaves_the_second_out(tried):
    report = find_ceiling(
        *("mappings", "host", ["fixed", "advise"], lambda _: None),
        stopping=lambda: len(tried) == 1,
    )
    assert [(found.method, found.complete) for found in report.methods] == [("fixed", True)]
    assert not report.complete


@posix
def test_a_search_that_never_began_is_left_out(tried):
    report = find_ceiling("reserve", "host", ["fixed"], lambda _: None, stopping=lambda: True)
    assert (report.methods, report.complete, tried) == ((), False, [])


def test_a_probe_that_takes_long_is_ended_when_the_user_stops(monkeypatch):
    pipe = subprocess.PIPE
    program = [sys.executable, "-c", "import time; time.sleep(100)"]
    child = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8")
    monkeypatch.setattr("vmtool.probes.child.start_child", lambda *_: child)
    asked = iter([False, False, True])
    assert ask("reserve", "host", "fixed", GIB, stopping=lambda: next(asked)) is None
    assert child.returncode


@linux
def test_where_the_heuristic_refuses_is_found_in_two_tries_and_said(monkeypatch):
    facts = read_facts()
    total = facts.memory.total_bytes + facts.memory.swap_total_bytes
    heuristic = replace(facts, commit=replace(facts.commit, mode=0))
    monkeypatch.setattr("vmtool.probes.limits.read_facts", lambda: heuristic)

    def ask(_kind, _backing, _method, number, *, stopping):
        works = number <= total
        return Answer(works, number, None if works else "ENOMEM", cause=None if works else "why")

    monkeypatch.setattr("vmtool.probes.limits.ask", ask)
    (found,) = find_ceiling("commit", "host", ["fixed"], lambda _tries: None).methods
    assert (found.reached, found.refused, found.tries) == (total, total + mmap.PAGESIZE, 2)
    assert (found.error, found.cause) == ("ENOMEM", "why")


@linux
@pytest.mark.parametrize("offset", [-(1 << 30), 5 << 30])
def test_a_ceiling_that_is_not_the_likely_one_is_searched_for(monkeypatch, offset):
    memory = read_facts().memory
    limit = memory.total_bytes + memory.swap_total_bytes + offset

    def ask(_kind, _backing, _method, number, *, stopping):
        return Answer(works=number <= limit, reached=number)

    monkeypatch.setattr("vmtool.probes.limits.ask", ask)
    (found,) = find_ceiling("commit", "host", ["fixed"], lambda _tries: None).methods
    assert found.reached <= limit < found.refused
    assert found.refused - found.reached <= limit // 1000
    assert found.tries <= 28


@linux
def test_a_commit_after_which_nothing_works_is_no_ceiling():
    """One mmap may go past RLIMIT_DATA, and whatever comes next is refused."""
    program = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
from vmtool.probes.child import main
main(["commit", "host", "fixed", str(512 << 20)])
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    answer = json.loads(ran.stdout)
    assert not answer["works"]
    assert "RLIMIT_DATA is 256 MiB" in answer["cause"]


def test_the_text_names_cause_and_bounds():
    found = (
        MethodCeiling("fixed", GIB, GIB + 4096, 2, "ENOMEM", cause="too much", most=1 << 62),
        MethodCeiling("advise", GIB, None, 1, None, most=GIB),
    )
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False, legacy_windows=False)
    ceiling_text(CeilingReport("commit", found), console)
    text = " ".join(out.getvalue().split())
    assert "fixed: 1 GiB (1,073,741,824 bytes) works (2 tries, 4 EiB at most)" in text
    assert "cause: too much" in text
    assert "(1 try, 1 GiB at most) nothing was refused within the bounds" in text
    assert "half of what is safe" in text


@linux
def test_a_method_whose_commits_add_no_areas_has_no_ceiling_of_them():
    """It has as many areas after 5,000 commits as before; ``fixed`` adds two with each."""
    answer = ask("mappings", "host", "advise", 10_000)
    assert answer.works
    assert 0 < answer.reached < 5_000
    assert answer.cause == "its commits add no memory areas"
    other = ask("mappings", "host", "fixed", 10_000)
    assert (other.works, other.cause) == (True, None)
    assert other.reached > 9_900


def test_the_text_calls_no_number_a_ceiling_where_commits_add_no_areas():
    cause = "its commits add no memory areas"
    found = (MethodCeiling("advise", 117, None, 1, None, cause=cause, most=1 << 20),)
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False, legacy_windows=False)
    ceiling_text(CeilingReport("mappings", found), console)
    text = " ".join(out.getvalue().split())
    assert f"advise: no ceiling: {cause} (the process has 117)" in text
    assert "works" not in text
