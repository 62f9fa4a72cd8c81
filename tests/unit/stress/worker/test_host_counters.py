"""What is expected of the counters agrees with the kernel at every step; a difference is found."""

import sys
from random import Random

import pytest

from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.counters import Counters, read_split
from vmtool.memory.span_map import SpanMap
from vmtool.stress.worker.host_contents import FillData, HostContents
from vmtool.stress.worker.host_counters import compare, counting_rules, expect, process_rest
from vmtool.stress.workloads import PATTERNS, Kind, Quota
from vmtool.units import KIB, MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all four counters")

GRANULE = 64 * KIB


class Watched:
    """A buffer, what was ever committed in it, and what the kernel counts of it."""

    def __init__(self, method, settings, capacity=2 * MIB, **options):
        self.buffer = VirtualBuffer(open_backing(method=method, **options), capacity)
        self.ever = SpanMap()
        self.rules = counting_rules(method, settings, read_facts())
        self.contents = HostContents(
            self.buffer.base,
            capacity,
            GRANULE,
            FillData(GRANULE, 1),
            buffer_id=0,
            touch=settings.touch,
            verify="off",
            zeroes=True,
        )
        self._touch = settings.touch

    def commit(self, first, count):
        start, end = first * GRANULE, (first + count) * GRANULE
        self.buffer.commit(start, end - start)
        for gap in list(self.ever.gaps(start, end)):
            self.ever.add(*gap)
        if self._touch != "none":
            self.contents.write_and_time(first, count, 1)

    def release(self, first, count):
        self.buffer.release(first * GRANULE, count * GRANULE)

    def readings(self):
        reservation = self.buffer.reservation
        span = (reservation.base, reservation.base + reservation.capacity)
        _, kernel = read_split([span])
        return compare([expect(reservation, self.ever, GRANULE, self.rules)], kernel)


@pytest.fixture
def watch(make):
    watched = []

    def start(method, touch="full", **options):
        watched.append(Watched(method, make(touch=touch, **options), **options))
        return watched[-1]

    yield start
    for each in watched:
        each.buffer.close()


@pytest.mark.parametrize("touch", ["none", "first", "full"])
@pytest.mark.parametrize("method", host_methods())
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_the_expectation_agrees_with_the_kernel_after_every_operation(
    watch, pattern, method, touch
):
    watched = watch(method, touch)
    for kind, first, count in PATTERNS[pattern](32, 16, Quota(12), Random(4)):
        (watched.commit if kind is Kind.COMMIT else watched.release)(first, count)
        wrong = [reading for reading in watched.readings() if not reading.agrees]
        assert not wrong


@pytest.mark.parametrize("method", host_methods())
def test_huge_pages_do_not_break_it(watch, method):
    watched = watch(method, huge=True)
    for first in (0, 5, 9):
        watched.commit(first, 1)
    watched.release(5, 1)
    assert all(reading.agrees for reading in watched.readings())


@pytest.mark.parametrize("method", host_methods())
def test_memory_that_was_not_released_is_a_difference(watch, method):
    watched = watch(method)
    watched.commit(0, 2)
    # The kernel still holds both; believing that one was released must be found out.
    watched.buffer.reservation.blocks.remove(GRANULE, 2 * GRANULE)
    wrong = {reading.counter for reading in watched.readings() if not reading.agrees}
    watched.buffer.reservation.blocks.add(GRANULE, 2 * GRANULE)
    assert "resident" in wrong
    assert ("charge" in wrong) == (method == "fixed")


def test_a_mapping_that_is_gone_is_a_difference(watch):
    watched = watch("fixed")
    reservation = watched.buffer.reservation
    expected = expect(reservation, watched.ever, GRANULE, watched.rules)
    readings = compare([expected], [Counters(reservation.capacity - 4096, 0, 0, 2)])
    assert [r.agrees for r in readings] == [False, True, True, True]


def test_what_is_not_available_cannot_differ(watch):
    watched = watch("fixed")
    expected = expect(watched.buffer.reservation, watched.ever, GRANULE, watched.rules)
    readings = compare([expected], [Counters()])
    assert all(r.observed is None and r.agrees for r in readings)


def test_the_rest_is_the_process_without_its_buffers():
    rest = process_rest(Counters(100, 50, 40, 9), [Counters(30, 20, 10, 2), Counters(5, 5, 5, 1)])
    assert rest == {"address_space": 65, "charge": 25, "resident": 25, "mappings": 6}
    assert process_rest(Counters(100, None, 40, 9), [])["charge"] is None
