"""Hours of checkpoints stay bounded, evenly spaced, and keep the first difference."""

from itertools import pairwise

import pytest
from stored_runs import checkpoint

from vmtool.stress.worker.checkpoint import SlopePoints, Timeline


@pytest.mark.parametrize("count", [0, 1, 8, 9, 1000])
def test_a_timeline_keeps_evenly_spaced_checkpoints_in_order(count):
    timeline = Timeline(most=8)
    for index in range(count):
        timeline.add(checkpoint(index))
    cycles = [kept.cycle for kept in timeline.kept()]
    assert len(cycles) <= 8
    assert len(cycles) >= min(count, 4)
    assert len({b - a for a, b in pairwise(cycles)}) <= 1
    assert not cycles or cycles[0] == 0


def test_the_first_difference_is_kept_whatever_follows():
    timeline = Timeline(most=8)
    for index in range(1000):
        timeline.add(checkpoint(index, observed=-1 if index in {333, 400} else None))
    differing = [c.cycle for c in timeline.kept() if not all(r.agrees for r in c.buffers)]
    assert differing == [checkpoint(333).cycle]


def test_points_of_slopes_are_thinned_and_keep_what_they_say():
    points = SlopePoints(most=16)
    for index in range(5000):
        points.add(10 * index, {"resident": -4096 * index, "charge": None})
    kept = points.points()
    assert 8 <= len(kept) <= 16
    assert all(counts == {"resident": -4096 * (c // 10), "charge": None} for c, counts in kept)
    assert kept[0][0] == 0
    assert len({b[0] - a[0] for a, b in pairwise(kept)}) == 1


def test_no_points_are_an_empty_list():
    assert SlopePoints().points() == []
