"""The search for a ceiling is bounded in memory where each try takes memory."""

import sys

import pytest

from vmtool.machine import read_facts
from vmtool.stress.ceiling import find_ceiling
from vmtool.stress.probe import Answer

posix = pytest.mark.skipif(sys.platform == "win32", reason="the methods are those of POSIX")


@pytest.fixture
def tried(monkeypatch):
    """Return the numbers that a search tried on a machine that refuses nothing."""
    numbers = []

    def ask(_kind, _backing, _method, number):
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
