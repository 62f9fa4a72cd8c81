"""The matrix of stress: a cell's interval, and which method of a row is clearly the fastest."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console
from stored_runs import method, run

from vmtool.compare.intervals import median_interval
from vmtool.report.stress_modes import matrix_text
from vmtool.stress import matrix
from vmtool.stress.matrix import MatrixCell, MatrixReport, fastest
from vmtool.stress.worker.recorder import MAX_ROUNDS

CELL = MatrixCell("tail", 4096, "fixed", 9, 100, None, None, None, None, (), None, 90, 110)


def cell(name, low, middle, high, **changes):
    found = replace(CELL, method=name, cycle_ns=middle, cycle_low_ns=low, cycle_high_ns=high)
    return replace(found, **changes)


def test_the_fastest_is_that_whose_interval_lies_below_all_others():
    cells = [cell("a", 120, 130, 140), cell("b", 90, 100, 110), cell("c", 111, 150, 900)]
    assert fastest(cells) == "b"
    assert fastest([*cells, cell("d", 110, 140, 150)]) is None


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [cell("a", 90, 100, 110)],
        [cell("a", 99, 100, 101), cell("b", 102, 104, 106)],  # less than a change
        [cell("a", 90, 100, 110), cell("b", None, 200, None)],  # too few rounds
        [cell("a", None, 100, None), cell("b", 190, 200, 210)],
        [cell("a", 90, 100, 110, failed=("zero",)), cell("b", 190, 200, 210)],
        [cell("a", 90, 100, 110), cell("b", None, None, None, refused="too much")],
    ],
)
def test_no_winner_is_named_where_none_is_clear(cells):
    assert fastest(cells) is None


def cell_of(rounds):
    """The cell of a run whose commits and releases take what *rounds* say."""
    found = method(commit=[100] * 400, release=[50] * 400)
    phases = tuple(replace(phase, round_medians_ns=tuple(rounds)) for phase in found.phases)
    result = run(replace(found, phases=phases))
    return matrix._cell(result.settings, result, "fixed")


def test_a_cycle_is_its_phases_together_and_its_interval_is_that_of_the_rounds():
    found = cell_of([10, 12, 14, 16])
    assert found.cycle_ns == 150
    assert (found.cycle_low_ns, found.cycle_high_ns) == (20, 32)
    few = cell_of([10, 12, 14])
    assert (few.cycle_low_ns, few.cycle_high_ns) == (None, None)


@pytest.mark.parametrize("rounds", range(4, MAX_ROUNDS + 1))
def test_chance_parts_two_equal_methods_in_fewer_than_5_percent_of_rows(rounds):
    # The cells' intervals go from one rank of the rounds to another. They are apart if, of all
    # rounds in order, one method has "high" before the other has "low": exactly, by counting.
    interval = median_interval(range(1, rounds + 1), matrix._CONFIDENCE)
    low, high = interval.low, interval.high
    first = high + low - 1
    ways = sum(
        math.comb(first, n) * math.comb(2 * rounds - first, rounds - n)
        for n in range(high, min(first, rounds) + 1)
    )
    assert 2 * ways / math.comb(2 * rounds, rounds) < 0.05


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_matrix_is_a_table_of_patterns_and_methods(width):
    rows = [
        replace(found, pattern=pattern)
        for pattern in ("tail", "block-grow-partial-shrink")
        for found in (cell("fixed", 190, 200, 210), cell("advise", 90, 100, 110))
    ]
    rows[-1] = replace(rows[-1], cycle_low_ns=None, cycle_high_ns=None)
    file = io.StringIO()
    console = Console(file=file, width=width, markup=False)
    matrix_text(MatrixReport(tuple(rows), seed=7, complete=True), console)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    if width >= 80:
        table = lines[lines.index("") + 1 :]
        assert [line.split() for line in table[:3]] == [
            ["granule", "pattern", "fixed", "advise", "fastest"],
            ["4", "KiB", "tail", "200", "ns", "100", "ns", "advise"],
            [
                "4",
                "KiB",
                "block-grow-partial-shrink",
                "200",
                "ns",
                "100",
                "ns",
                "no",
                "clear",
                "winner",
            ],
        ]


def test_the_matrix_of_one_method_names_no_winner():
    file = io.StringIO()
    matrix_text(MatrixReport((CELL,), seed=7, complete=True), Console(file=file, width=80))
    assert "fastest" not in file.getvalue()
