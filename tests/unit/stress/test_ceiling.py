"""The search for a ceiling is bounded in memory where each try takes memory."""

import subprocess
import sys

import pytest

from vmtool.machine import read_facts
from vmtool.stress.ceiling import find_ceiling
from vmtool.stress.probe import Answer, ask
from vmtool.units import GIB

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

    monkeypatch.setattr("vmtool.stress.ceiling.ask", ask)
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
    monkeypatch.setattr("vmtool.stress.probe.start_child", lambda *_: child)
    asked = iter([False, False, True])
    assert ask("reserve", "host", "fixed", GIB, stopping=lambda: next(asked)) is None
    assert child.returncode
