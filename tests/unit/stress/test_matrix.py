"""The matrix: a cell's interval, which method of a row is clearly the fastest, which granule."""

import gc
import math
from dataclasses import replace

import pytest
from printed import printed
from stored_runs import method, run

from vmtool.compare.confidence_intervals import median_interval
from vmtool.machine import read_facts
from vmtool.memory.errors import MisalignedError
from vmtool.report.matrix import to_text
from vmtool.results.matrix import MatrixCell, MatrixResult, MatrixRow
from vmtool.results.stress import MethodReason, StressSettings
from vmtool.stress import matrix
from vmtool.stress.matrix import best_granule, choose_granules, fastest
from vmtool.stress.safe_memory import Room
from vmtool.stress.worker.timed_operations import MAX_ROUNDS
from vmtool.units import GIB, MIB

CELL = MatrixCell("tail", 4096, "fixed", 9, 100, None, None, None, None, (), None, 90, 110)


def cell(name, low, middle, high, **changes):
    found = replace(CELL, method=name, cycle_ns=middle, cycle_low_ns=low, cycle_high_ns=high)
    return replace(found, **changes)


def test_the_fastest_has_an_interval_below_all_others():
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
    return matrix.cell_of(result, "fixed")


def test_a_cycle_is_the_sum_of_its_phases_with_the_interval_of_the_rounds():
    found = cell_of([10, 12, 14, 16])
    assert found.cycle_ns == 150
    assert (found.cycle_low_ns, found.cycle_high_ns) == (20, 32)
    few = cell_of([10, 12, 14])
    assert (few.cycle_low_ns, few.cycle_high_ns) == (None, None)


@pytest.mark.parametrize("rounds", range(4, MAX_ROUNDS + 1))
def test_chance_parts_two_equal_methods_in_fewer_than_5_percent_of_rows(rounds):
    # The cells' intervals go from one rank of the rounds to another. They are apart if, of all
    # rounds in order, one method has "high" before the other has "low": exactly, by counting.
    interval = median_interval(range(1, rounds + 1), matrix.CELL_CONFIDENCE)
    low, high = interval.low, interval.high
    first = high + low - 1
    ways = sum(
        math.comb(first, n) * math.comb(2 * rounds - first, rounds - n)
        for n in range(high, min(first, rounds) + 1)
    )
    assert 2 * ways / math.comb(2 * rounds, rounds) < 0.05


def result(cells, **fields):
    rows = {}
    for each in cells:
        rows.setdefault((each.pattern, each.granule_bytes), []).append(each)
    choices = choose_granules(cells, None)
    return MatrixResult(
        settings=StressSettings(methods=("fixed", "advise"), seed=7),
        cells=tuple(cells),
        complete=True,
        passed=True,
        rows=tuple(MatrixRow(*key, fastest(found)) for key, found in rows.items()),
        granules=choices,
        best=best_granule(choices),
        **fields,
    )


def some_cells():
    cells = [
        replace(
            found,
            pattern=pattern,
            granule_bytes=granule,
            per_gib_ns=found.cycle_ns * GIB // granule,
        )
        for granule in (4096, 65536)
        for pattern in ("tail", "block-grow-partial-shrink")
        for found in (cell("fixed", 190, 200, 210), cell("advise", 90, 100, 110))
    ]
    cells[-1] = replace(cells[-1], cycle_low_ns=None, cycle_high_ns=None)
    return cells


def test_the_report_of_a_matrix(golden):
    golden("matrix", lambda console: to_text(result(some_cells()), console))


@pytest.mark.parametrize(("chosen", "chunk"), [(None, 6 * MIB), (2 * MIB, 2 * MIB)])
def test_on_a_device_each_granule_is_one_handle(fakecuda, monkeypatch, chosen, chunk):
    class StartedError(Exception):
        pass

    def start(settings, *_, **__):
        raise StartedError(settings.chunk_bytes)

    monkeypatch.setattr(matrix, "run_stress", start)
    settings = StressSettings(backing="cuda:0", methods=("cold",), chunk_bytes=chosen)
    with pytest.raises(StartedError) as started:
        matrix.run_matrix(settings, Room(GIB), read_facts(), granules=(6 * MIB,), hang_ns=1)
    assert started.value.args == (chunk,)
    gc.collect()


def test_on_a_device_the_best_chunk_is_compared_with_larger_ones():
    found = replace(result(some_cells()), device="some GPU", model=None, context_tokens=None)
    best = replace(found.best, waste_share=None)
    lines = printed(lambda c: to_text(replace(found, best=best), c), 80)
    assert lines[1] == "no larger chunk is more than 5 % cheaper"


def test_the_matrix_of_one_method_names_no_winner():
    assert "fastest" not in "\n".join(printed(lambda c: to_text(result([CELL]), c), 80))


def test_the_best_granule_is_the_cheapest_and_the_smallest_of_equals():
    choices = choose_granules(some_cells(), None)
    assert [(c.granule_bytes, c.method) for c in choices] == [(4096, "advise"), (65536, "advise")]
    assert best_granule(choices).granule_bytes == 65536
    alike = [replace(choices[0], per_gib_ns=choices[1].per_gib_ns * 104 // 100), choices[1]]
    assert best_granule(alike).granule_bytes == 4096
    assert best_granule([]) is None


def test_a_granule_names_the_method_that_promises_more_where_none_is_clearly_faster():
    cells = [
        replace(found, per_gib_ns=found.cycle_ns * 1000, granule_bytes=65536)
        for found in (cell("fixed", 100, 115, 130), cell("advise", 90, 100, 110))
    ]
    (choice,) = choose_granules(cells, None)
    assert (choice.method, choice.fastest) == ("fixed", "advise")
    assert choice.reason is MethodReason.PROMISES_MORE
    assert (choice.per_gib_ns, choice.fastest_per_gib_ns) == (115_000, 100_000)
    assert printed(lambda c: to_text(result(cells), c), 200)[:2] == [
        "use granules of 64 KiB and fixed: 115 µs per GiB",
        "why this method: it is not clearly more than 25 % slower than advise, and unlike with advise,",
    ]
    several = [replace(found, pattern=pattern) for found in cells for pattern in ("tail", "random")]
    report = "\n".join(printed(lambda c: to_text(result(several), c), 200))
    assert "why this method: over all patterns it is not clearly more than 25 % slower" in report


def test_one_disturbed_cell_does_not_choose_the_method():
    cells = [
        replace(
            cell(name, cost - 10, cost, cost + 10),
            pattern=f"pattern {i}",
            granule_bytes=65536,
            per_gib_ns=cost * 1000,
        )
        for name, costs in (("fixed", (100, 100, 90_000)), ("advise", (200, 210, 220)))
        for i, cost in enumerate(costs)
    ]
    (choice,) = choose_granules(cells, None)
    assert (choice.method, choice.per_gib_ns) == ("fixed", 100_000)


def test_waste_can_make_a_larger_granule_cost_more():
    class Model:
        def waste_share(self, granule):
            return 0.99 if granule == 65536 else 0.0

    choices = choose_granules(some_cells(), Model())
    assert choices[1].per_used_gib_ns > choices[0].per_used_gib_ns
    assert best_granule(choices).granule_bytes == 4096


def test_a_granule_that_no_page_divides_is_refused_and_not_rounded():
    settings = StressSettings(methods=("fixed",))
    with pytest.raises(MisalignedError, match="granule 100 is not a multiple"):
        matrix.run_matrix(settings, Room(GIB), read_facts(), granules=(100,), hang_ns=1)
