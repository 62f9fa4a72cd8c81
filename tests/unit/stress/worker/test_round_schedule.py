"""Schedules alternate between methods, end where they should, and warm up first."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.results.stress import StressSettings
from vmtool.stress.plan import settle
from vmtool.stress.safe_memory import Room
from vmtool.stress.worker.round_schedule import Schedule
from vmtool.units import GIB


def _rounds(settings):
    schedule, found = Schedule(settings), []
    while (turn := schedule.next()) is not None:
        found.append(turn)
        assert len(found) < 10_000
    return found


@pytest.mark.parametrize("cycles", [1, 2, 3, 59, 60, 1000])
def test_every_method_gets_exactly_the_given_cycles(make, cycles):
    measured = [r for r in _rounds(make(methods=host_methods(), cycles=cycles)) if not r.warm_up]
    total = Counter()
    for turn in measured:
        total[turn.method_index] += turn.commits
    assert dict(total) == dict.fromkeys(range(len(host_methods())), cycles)


def test_each_method_warms_up_once_before_anything_counts(make):
    rounds = _rounds(make(methods=host_methods(), cycles=10))
    count = len(host_methods())
    assert [turn.warm_up for turn in rounds[:count]] == [True] * count
    assert not any(turn.warm_up for turn in rounds[count:])


def test_methods_take_turns_and_each_lap_begins_with_another(make):
    rounds = [r for r in _rounds(make(methods=host_methods(), cycles=400)) if not r.warm_up]
    count = len(host_methods())
    laps = [
        tuple(turn.method_index for turn in rounds[at : at + count])
        for at in range(0, len(rounds), count)
    ]
    assert len(laps) >= 4
    assert all(sorted(lap) == list(range(count)) for lap in laps)
    assert len(set(laps)) == count


@given(st.integers(1, 10**6))
def test_a_run_by_cycles_always_ends(cycles):
    wanted = StressSettings(methods=host_methods()[:1], cycles=cycles, runs=1)
    settings = settle(wanted, open_backing(), Room(GIB))
    assert sum(turn.commits for turn in _rounds(settings) if not turn.warm_up) == cycles


def test_a_run_by_time_ends_after_a_whole_lap(make):
    rounds = _rounds(make(methods=host_methods(), duration_ns=1))
    count = len(host_methods())
    assert len(rounds) % count == 0
    assert all(turn.length_ns <= 10**9 for turn in rounds)
