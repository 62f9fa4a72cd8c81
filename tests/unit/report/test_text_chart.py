"""The plot of a timeline in characters."""

from hypothesis import given
from hypothesis import strategies as st

from vmtool.report.text_chart import plot_lines
from vmtool.results.kv_replay import Point


def point(at, live=1, committed=2, refused=0):
    levels = (live, committed, committed, 1)
    return Point(at, *levels, live, *[committed] * 4, 1, 1, refused)


def test_the_plot_distinguishes_live_and_committed():
    points = [point(0, 0, 8), point(50, 4, 8), point(100, 8, 8)]
    lines = list(plot_lines(points, 100, 40))
    assert len(lines) == 9
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("8 B ░")
    assert lines[7].startswith("0 B ")
    assert lines[0].count("█") < lines[6].count("█")
    assert lines[8].endswith("100 ns")


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60)), min_size=2, max_size=50),
    st.integers(0, 1 << 61),
    st.integers(10, 200),
)
def test_any_timeline_fits_the_terminal(values, budget, width):
    points = [point(i * 7, min(a, b), max(a, b)) for i, (a, b) in enumerate(values)]
    lines = list(plot_lines(points, budget, width))
    assert max(map(len, lines)) <= max(width, 30)
    limited = 2 * budget <= 3 * max(max(pair) for pair in values)
    assert any("---" in line for line in lines) == limited


def test_the_plot_goes_up_to_a_budget_that_is_near_or_refused_something():
    points = [point(0, 0, 8), point(50, 4, 8), point(100, 8, 8)]
    assert "-" not in "".join(plot_lines(points, 13, 40))
    near = list(plot_lines(points, 12, 40))
    assert near[0].startswith("12 B ---")
    assert "░" not in near[1] + near[2]
    assert "░█" in near[4]
    refused = [*points[:2], point(100, 8, 8, refused=3)]
    assert next(iter(plot_lines(refused, 100, 40))).startswith("100 B ---")
    marks = list(plot_lines(refused, 100, 40))[-2]
    assert marks.strip() == "!" * 17
    assert len(marks) == 39


def test_a_peak_between_two_columns_is_seen():
    points = [point(0), point(500, 8, 80), point(10**6)]
    assert next(iter(plot_lines(points, 1000, 40))).startswith("80 B ░")
