"""Histograms in text: bars in proportion, nothing hidden, nothing wider than the terminal."""

import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from stored_runs import method

from vmtool.report.chart import RatioRow, bar, histogram_rows, ratio_chart


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
