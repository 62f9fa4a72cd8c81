"""Charts as SVG: bars in proportion, lines inside, ticks that differ and do not touch."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stored_runs import phase

from vmtool.histograms import Histogram
from vmtool.report.svg_chart import (
    WIDTH,
    RatioRow,
    Series,
    histogram_chart,
    ratio_chart,
    ratio_reach,
    timeline_chart,
)
from vmtool.units import format_size


@given(st.floats(1.3125, 16), st.integers(1, 80))
@example(1.5, 80)
def test_the_ticks_of_ratios_are_on_both_sides_of_one(end, letters):
    row = RatioRow("n" * letters, 1.1, 1.0, 1.2, "soft", "words")
    chart = str(ratio_chart("ratios", [row], 0.05, end))
    ticks = [float(text) for text in re.findall(r">([0-9.]+)×<", chart)]  # noqa: RUF001
    below, above = ([t for t in ticks if t < 1], [t for t in ticks if t > 1])
    assert ticks[0] == 1
    assert len(ticks) > 2
    for tick in above:
        assert any(tick * other == pytest.approx(1, rel=0.05) for other in below)
    assert len(below) == len(above)


def shape_values(chart, attribute):
    return [float(value) for value in re.findall(rf' {attribute}="(-?[\d.]+)"', chart)]


@settings(max_examples=100)
@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=30))
def test_bars_of_any_samples_stay_inside_the_chart_and_hold_all_of_them(samples):
    histogram = Histogram()
    histogram.extend(samples)
    chart = histogram_chart("x", [("first", histogram.data())], [("max", max(samples))])
    bars = re.findall(r'<rect class="first"[^>]*>', chart)
    assert 1 <= len(bars) <= 40
    for name, limit in (("x", 300), ("y", 170), ("x1", 300), ("height", 170)):
        assert all(0 <= value <= limit for value in shape_values(chart, name))


def test_bar_heights_are_shares_of_the_samples():
    data = phase("commit", [100_000] * 30 + [400_000] * 10).histogram
    chart = histogram_chart("x", [("first", data)])
    left = [h for h, x in zip(*_bars(chart), strict=True) if x < 150]
    right = [h for h, x in zip(*_bars(chart), strict=True) if x >= 150]
    assert sum(left) == pytest.approx(3 * sum(right), rel=0.03)


def _bars(chart):
    bars = "".join(re.findall(r'<rect class="first"[^>]*>', chart))
    return shape_values(bars, "height"), shape_values(bars, "x")


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 62), st.none() | st.integers(-(1 << 62), 1 << 62)),
        max_size=12,
    )
)
def test_a_timeline_of_any_values_stays_inside_the_chart(points):
    chart = timeline_chart("x", [Series("first", sorted(points, key=lambda p: p[0]))], format_size)
    for text in re.findall(r'points="([^"]*)"', chart):
        for pair in text.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 300
            assert 0 <= y <= 170


def test_an_unknown_reading_breaks_the_line_and_one_point_draws_nothing():
    points = [(0, 1), (1, 2), (2, None), (3, 2), (4, 1)]
    chart = timeline_chart("x", [Series("first", points)], str)
    assert chart.count("<polyline") == 2
    lone = timeline_chart("x", [Series("first", [(0, 1), (1, None), (2, 5), (3, None)])], str)
    assert lone.count("<polyline") == 2
    assert timeline_chart("x", [Series("first", [(0, None)])], str) == ""


def test_what_is_beyond_the_axis_of_ratios_is_an_arrow_and_ticks_are_exact():
    rows = [
        RatioRow("cycle", 1.1, 1.05, 1.15, "soft", "w"),
        RatioRow("p99", 9.0, 0.9, 40.0, "soft", "w"),
        RatioRow("lone", 0.01, None, None, "soft", "w"),
    ]
    chart = str(ratio_chart("x", rows, 0.05, 1.3))
    assert (chart.count("<circle"), chart.count("<polygon")) == (1, 2)
    assert ">0.0625×<" in str(ratio_chart("x", [replace(rows[0], name="x")], 0.05, 60))  # noqa: RUF001


@pytest.mark.parametrize(
    "change", [(1.0, None, None), (1e-9, 0.0, 0.0), (1e9, 1e8, 1e10), (1.1, 0.9, 1.3)]
)
def test_an_interval_of_any_size_stays_inside_the_chart(change):
    rows = [RatioRow("x", *change, "soft", "words"), RatioRow("y", 1.0, 0.99, 1.01, "soft", "w")]
    chart = ratio_chart("x", rows, 0.05, ratio_reach([*change, 0.99, 1.01]))
    for name in ("x1", "x2", "cx"):
        assert all(0 <= value <= WIDTH for value in shape_values(chart, name))
    assert "<title>words</title>" in chart


@pytest.mark.parametrize("most", [1, 2, 3, 100, 10**12])
def test_no_two_ticks_of_an_axis_of_counts_are_alike(most):
    chart = timeline_chart("", [Series("first", [(0, 0), (10, most)])], str)
    texts = re.findall(r'text-anchor="end">(\d+)<', chart)
    assert len(texts) > 1
    assert len(set(texts)) == len(texts)


def test_the_ticks_of_an_axis_of_time_share_a_unit():
    chart = timeline_chart("x", [Series("first", [(0, 1), (1_900_000_000, 2)])], str)
    assert re.findall(r">([\d.]+ m?s)</text>", chart) == ["0 s", "0.5 s", "1 s", "1.5 s"]
