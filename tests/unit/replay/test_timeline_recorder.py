"""The timeline of a replay stays small and covers all of it."""

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from vmtool.replay.timeline_recorder import MOST_POINTS, Recorder
from vmtool.results.kv_replay import Point


@given(st.integers(1, 10**7), st.integers(1000, 4000))
def test_a_timeline_of_any_length_keeps_few_points_over_all_of_it(gap, count):
    recorder = Recorder()
    for index in range(count):
        if index * gap >= recorder.due_ns:
            recorder.add(astuple(Point(index * gap, *range(1, 13))))
    points = recorder.points
    assert len(points) < MOST_POINTS
    assert points[0].at_ns == 0
    assert points[-1].at_ns >= count * gap * 9 // 10 - 10**7
    assert [p.at_ns for p in points] == sorted({p.at_ns for p in points})
