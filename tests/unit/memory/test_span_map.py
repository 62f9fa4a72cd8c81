"""SpanMap against a set of granules, and the size at which it must not slow down."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from vmtool.memory.span_map import SpanMap

CAPACITY = 40
SPANS = st.tuples(st.integers(0, CAPACITY - 1), st.integers(1, 12)).map(
    lambda pair: (pair[0], min(pair[0] + pair[1], CAPACITY))
)


def spans_of(granules):
    """Return the maximal runs of a set of integers."""
    runs = []
    for granule in sorted(granules):
        if runs and runs[-1][1] == granule:
            runs[-1] = (runs[-1][0], granule + 1)
        else:
            runs.append((granule, granule + 1))
    return runs


@settings(deadline=None, max_examples=300)
@given(st.lists(SPANS, max_size=40), SPANS, st.integers(0, CAPACITY - 1), st.integers(2, 8))
def test_it_is_a_set_of_offsets(operations, query, offset, bucket):
    blocks, model = SpanMap(bucket=bucket), set()
    for start, end in operations:
        wanted = set(range(start, end))
        assert (blocks.overlap(start, end) is None) == (not wanted & model)
        assert blocks.covers(start, end) == (wanted <= model)
        if not wanted & model:
            blocks.add(start, end)
            model |= wanted
        elif wanted <= model:
            blocks.remove(start, end)
            model -= wanted
        assert list(blocks) == spans_of(model)
        assert blocks.total == len(model)
        assert len(blocks) == len(spans_of(model))
    start, end = query
    wanted = set(range(start, end))
    assert list(blocks.spans(start, end)) == spans_of(wanted & model)
    assert list(blocks.gaps(start, end)) == spans_of(wanted - model)
    found = blocks.overlap(start, end)
    assert found is None or (found in spans_of(model) and max(found[0], start) < min(found[1], end))
    if offset not in model:
        free = spans_of(set(range(CAPACITY)) - model)
        around = blocks.gap_around(offset, CAPACITY)
        assert around == next(run for run in free if run[0] <= offset < run[1])


def test_an_empty_range_is_covered_by_an_empty_map():
    assert SpanMap().covers(0, 0)
    assert not SpanMap().covers(0, 1)


def lines_run(work):
    """Return how many lines of Python *work* runs: what it costs, without a clock."""
    count = 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cost_of_one_block(count):
    """Return what finding, adding and removing one block costs in the middle of *count* others."""
    blocks = SpanMap()
    for index in range(count):
        blocks.add(4 * index, 4 * index + 1)
    middle = 4 * (count // 2) + 2

    def work():
        assert blocks.overlap(middle, middle + 1) is None
        blocks.add(middle, middle + 1)
        assert blocks.covers(middle, middle + 1)
        blocks.remove(middle, middle + 1)

    return lines_run(work)


def test_a_block_costs_the_same_among_a_hundred_and_among_a_hundred_thousand():
    assert cost_of_one_block(100_000) <= cost_of_one_block(100) + 10


def test_many_spans_stay_sorted_through_bucket_splits_and_removals():
    count = 2560
    blocks = SpanMap(bucket=64)
    order = [(i * 7919) % count for i in range(count)]  # 7919 is prime: a full permutation
    for index in order:
        blocks.add(2 * index, 2 * index + 1)
    assert list(blocks) == [(2 * i, 2 * i + 1) for i in range(count)]
    for index in order[: count // 2]:
        blocks.remove(2 * index, 2 * index + 1)
    kept = sorted(order[count // 2 :])
    assert list(blocks) == [(2 * i, 2 * i + 1) for i in kept]
    for index in kept:
        blocks.remove(2 * index, 2 * index + 1)
    assert list(blocks) == []
    assert blocks.total == 0
    blocks.add(0, 10)
    assert list(blocks) == [(0, 10)]
