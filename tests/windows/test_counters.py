"""The counters of Windows, and the facts of the machine that are made from them."""

from __future__ import annotations

import ctypes
import sys

import pytest

if sys.platform != "win32":
    pytest.skip("the Windows counters need Windows, or Wine", allow_module_level=True)

from vmtool.errors import UsageError
from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.counters import (
    Counters,
    count_mappings,
    read_limits,
    read_process,
    read_range,
    read_split,
)
from vmtool.memory.errors import OutOfMemoryError
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import FaultyCalls
from vmtool.memory.windows.counters import read_system_memory
from vmtool.memory.windows.large_pages import large_page_bytes, may_lock_memory
from vmtool.memory.windows.wine import wine_version


def test_the_ledgers_of_a_range_follow_every_step(method):
    backing = open_backing("host", method=method)
    g = backing.granularity
    reservation = backing.reserve(1 << 30)
    # Each granule of a placeholder is its own mapping, and so is the gap on either side.
    alone = method == "decommit"

    def ledgers():
        return read_range(reservation.base, reservation.capacity)

    assert ledgers() == Counters(1 << 30, 0, 0, 1)
    backing.commit(reservation, 16 * g, 8 * g)
    assert ledgers() == Counters(1 << 30, 8 * g, 0, 1 if alone else 10)
    ctypes.memset(reservation.base + 16 * g, 1, 4 * g)
    assert ledgers() == Counters(1 << 30, 8 * g, 4 * g, 1 if alone else 10)
    backing.release(reservation, 18 * g, 4 * g)
    assert ledgers() == Counters(1 << 30, 4 * g, 2 * g, 1 if alone else 7)
    backing.unreserve(reservation)
    assert ledgers() == Counters(0, 0, 0, 0)


def test_a_range_is_clipped_to_the_given_one():
    backing = open_backing("host", method="private")
    g = backing.granularity
    reservation = backing.reserve(8 * g)
    backing.commit(reservation, 0, 8 * g)
    ctypes.memset(reservation.base, 1, 8 * g)
    inside = read_range(reservation.base + 4096, 2 * g)
    assert inside == Counters(2 * g, 2 * g, 2 * g, 3)
    backing.unreserve(reservation)


def test_the_process_and_several_ranges_are_read_together():
    backing = open_backing("host")
    first, second = (backing.reserve(1 << 24) for _ in range(2))
    before = read_process()
    backing.commit(second, 0, backing.granularity)
    spans = [(r.base, r.base + r.capacity) for r in (first, second)]
    process, parts = read_split(spans)
    assert [part.charge_bytes for part in parts] == [0, backing.granularity]
    assert (process - before).mappings == 1
    assert process.address_space_bytes >= 2 << 24
    assert process.resident_bytes > 1 << 20
    for reservation in (first, second):
        backing.unreserve(reservation)


def test_areas_are_counted_as_the_ledger_counts_them():
    backing = open_backing("host", method="private")
    reservation = backing.reserve(4 * backing.granularity)
    found = []
    for _ in range(5):  # the interpreter's own heap may change in between, once in a while
        before = count_mappings()
        backing.commit(reservation, backing.granularity, backing.granularity)
        found.append(count_mappings() - before)
        backing.release(reservation, backing.granularity, backing.granularity)
    backing.unreserve(reservation)
    assert sorted(found)[2] == 2


def test_the_charge_of_the_process_is_complete_or_not_available():
    """Wine and older Windows leave out the counters that it is made of."""
    charge = read_process().charge_bytes
    if wine_version():
        assert charge is None
    elif charge is not None:
        backing = open_backing("host", method="view")
        reservation = backing.reserve(1 << 26)
        backing.commit(reservation, 0, 1 << 26)
        assert read_process().charge_bytes - charge >= 1 << 26
        backing.unreserve(reservation)


def test_the_machine_has_ram_and_a_commit_limit():
    counters = read_system_memory()
    assert 0 < counters.available_bytes <= counters.total_bytes
    assert 0 < counters.charge_bytes <= counters.charge_limit_bytes
    pressure = read_limits()
    assert pressure.charge_limit_bytes == counters.charge_limit_bytes
    assert pressure.available_bytes > 0


def test_facts_name_wine_and_not_windows():
    facts = read_facts()
    if wine_version():
        assert (facts.system.os, facts.system.kernel) == ("Wine", wine_version())
        assert not facts.commit.is_enforced
    else:
        assert facts.system.os == "Windows"
        assert facts.commit.is_enforced
    assert facts.commit.headroom_bytes == facts.commit.limit_bytes - facts.commit.charge_bytes
    assert facts.memory.total_bytes > 0


def test_large_pages_and_the_privilege_for_them_are_read():
    assert large_page_bytes() in {None, 2 << 20, 4 << 20}
    assert may_lock_memory() in {True, False}
    huge = read_facts().huge_pages
    assert (huge.large_bytes, huge.large_privilege) == (large_page_bytes(), may_lock_memory())


@pytest.mark.parametrize("effect", ["", "=1455", "=ERROR_COMMITMENT_LIMIT"])
def test_a_fault_on_request_is_the_commit_limit_by_default(effect):
    faults = FaultyCalls([parse_fault(f"VirtualAlloc2:2{effect}")])
    backing = open_backing("host", method="private", faults=faults)
    reservation = backing.reserve(1 << 20)
    with pytest.raises(OutOfMemoryError, match="ERROR_COMMITMENT_LIMIT"):
        backing.commit(reservation, 0, backing.granularity)
    backing.commit(reservation, 0, backing.granularity)
    backing.unreserve(reservation)
    assert faults.counts["VirtualAlloc2"] == 3


def test_a_skipped_call_reports_success_and_does_nothing(kernel):
    skipped = [parse_fault(f"{call}:1=SKIP") for call in ("MapViewOfFile3", "UnmapViewOfFile2")]
    backing = open_backing("host", method="view", faults=FaultyCalls(skipped))
    reservation = backing.reserve(1 << 20)
    backing.commit(reservation, 0, backing.granularity)
    assert kernel.region(reservation.base).state == kernel.reserved
    backing.unreserve(reservation)


@pytest.mark.parametrize("text", ["VirtualAlloc2:1=ENOMEM", "VirtualAlloc2:1=99999", "mmap:1"])
def test_faults_of_other_platforms_are_refused(text):
    with pytest.raises(UsageError):
        open_backing("host", faults=FaultyCalls([parse_fault(text)]))
