"""Charts in text: bars in proportion, a plot over time, nothing hidden or wider than the terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from stored_runs import method

from vmtool.report.text_chart import bar, histogram_rows, plot_lines
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


def _text(made, width=80):
    out = io.StringIO()
    Console(file=out, width=width).print(histogram_rows(made, width))
    return out.getvalue()


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(4, 40))
def test_a_bar_is_as_long_as_its_share(count, most, size):
    count = min(count, most)
    drawn = bar(count, most, size)
    assert len(drawn) <= size
    assert abs(drawn.count("█") - count * size / most) <= 1
    assert bool(drawn) == (count > 0)


def test_a_full_bar_fills_its_column():
    assert bar(7, 7, 5) == "█████"
    assert bar(1, 2, 4) == "██"
    assert bar(1, 16, 4) == "▎"


def test_every_sample_is_in_some_row():
    text = _text(method("fixed", commit=[3000] * 1200 + [70_000] * 34, release=[900] * 5))
    counts = [int(line.split()[-1].replace(",", "")) for line in text.splitlines() if line.strip()]
    assert sum(counts) == 1239
    assert "1,200" in text


def test_empty_octaves_between_are_one_row():
    text = _text(method("fixed", commit=[1000, 10**9]))
    assert len(text.splitlines()) == 3
    assert "1.02 µs\N{EN DASH}537 ms" in text


def test_the_harness_own_phase_is_left_out():
    assert "verify" not in _text(method("fixed", commit=[5], verify=[5]))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_row_is_wider_than_the_terminal(width):
    samples = [10**n for n in range(1, 11) for _ in range(12_345)]
    text = _text(method("fixed", commit=samples, touch=samples, release=samples), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert text.count("12,345") == 30
    assert "…" not in text
