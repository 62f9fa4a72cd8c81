"""Invariants V1 to V3 of VirtualBuffer, on every backing."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest

from vmtool.errors import UsageError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.buffer_views import LiveViewError
from vmtool.memory.errors import CapacityError, ClosedError, NotCommittedError, OverlapError
from vmtool.memory.governor import BudgetError, Governor, Tier
from vmtool.units import two_sizes


@pytest.fixture
def granule(platform):
    return platform.backing.granularity


@pytest.fixture
def governor(platform, granule):
    platform.governor.set_limit(platform.backing.tier, 32 * granule)
    return platform.governor


@pytest.fixture
def buffer(platform, granule, governor):
    buffer = VirtualBuffer(platform.backing, 64 * granule, governor=governor)
    yield buffer
    gc.collect()
    buffer.close()


def test_v1_growth_rounds_up_and_commits_only_what_is_missing(platform, buffer, granule):
    buffer.grow_to(1)
    assert (len(buffer), buffer.committed) == (1, granule)
    platform.memory.write(buffer.base, b"kept")
    buffer.grow_to(granule)
    assert (len(buffer), buffer.committed) == (granule, granule)
    buffer.grow_to(2 * granule + 1)
    assert (len(buffer), buffer.committed) == (2 * granule + 1, 3 * granule)
    assert platform.memory.read(buffer.base, 4) == b"kept"


def test_v1_shrink_returns_only_whole_granules_above(platform, buffer, granule):
    buffer.grow_to(8 * granule)
    platform.memory.write(buffer.base + 2 * granule, b"kept")
    buffer.shrink_to(2 * granule + 1)
    assert (len(buffer), buffer.committed) == (2 * granule + 1, 3 * granule)
    assert platform.memory.read(buffer.base + 2 * granule, 4) == b"kept"
    buffer.shrink_to(0)
    assert (len(buffer), buffer.committed) == (0, 0)


def test_v1_growth_fills_holes(platform, buffer, granule):
    buffer.grow_to(8 * granule)
    platform.memory.write(buffer.base + 5 * granule, b"kept")
    buffer.release(granule, 2 * granule)
    buffer.release(6 * granule, granule)
    buffer.grow_to(10 * granule)
    assert buffer.committed == 10 * granule
    assert platform.memory.read(buffer.base + 5 * granule, 4) == b"kept"
    buffer.release(0, granule)
    buffer.shrink_to(3 * granule)
    assert buffer.committed == 2 * granule


def test_v2_only_committed_bytes_are_leased(platform, buffer, granule, governor):
    assert platform.leased() == 0
    buffer.grow_to(3 * granule - 1)
    assert platform.leased() == 3 * granule
    buffer.shrink_to(granule)
    assert platform.leased() == granule
    buffer.commit(10 * granule, 2 * granule)
    assert platform.leased() == 3 * granule
    buffer.close()
    assert platform.leased() == 0


def test_v2_a_refusal_commits_nothing(platform, buffer, granule, governor):
    buffer.grow_to(30 * granule)
    with pytest.raises(BudgetError):
        buffer.grow_to(33 * granule)
    assert (len(buffer), buffer.committed) == (30 * granule, 30 * granule)
    assert platform.leased() == 30 * granule
    buffer.grow_to(32 * granule)


def test_v2_a_refusal_in_the_middle_of_filling_holes_commits_nothing(
    platform, buffer, granule, governor
):
    buffer.grow_to(30 * granule)
    buffer.release(2 * granule, granule)
    buffer.release(4 * granule, granule)
    platform.trim()
    governor.set_limit(buffer.backing.tier, 29 * granule)
    with pytest.raises(BudgetError):
        buffer.grow_to(31 * granule)
    assert buffer.committed == platform.leased() == 28 * granule


def test_v2_an_illegal_span_leases_nothing(platform, buffer, granule, governor):
    buffer.grow_to(2 * granule)
    with pytest.raises(OverlapError):
        buffer.commit(granule, granule)
    with pytest.raises(NotCommittedError):
        buffer.release(granule, 2 * granule)
    with pytest.raises(UsageError):
        buffer.commit(granule, -granule)
    assert platform.leased() == 2 * granule


def test_v3_over_capacity_names_both_numbers(platform, granule):
    with VirtualBuffer(platform.backing, 4 * granule - 100) as buffer:
        with pytest.raises(CapacityError) as caught:
            buffer.grow_to(4 * granule)
        more, less = two_sizes(4 * granule, 4 * granule - 100)
        assert str(caught.value) == f"cannot grow to {more}: the capacity is {less}"
        assert caught.value.requested_bytes == 4 * granule
        assert caught.value.capacity_bytes == 4 * granule - 100
        assert buffer.committed == 0
        buffer.grow_to(buffer.capacity)
        assert buffer.committed == 4 * granule


def test_v3_no_ops_are_no_ops(buffer, granule):
    buffer.grow_to(4 * granule)
    for target in (0, 1, granule, 4 * granule):
        buffer.grow_to(target)
        assert len(buffer) == 4 * granule
    for target in (4 * granule, 5 * granule, 1 << 60):
        buffer.shrink_to(target)
        assert len(buffer) == 4 * granule
    assert buffer.committed == 4 * granule


@pytest.mark.parametrize("operation", ["grow_to", "shrink_to"])
def test_negative_lengths_are_refused(buffer, operation):
    with pytest.raises(UsageError):
        getattr(buffer, operation)(-1)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_owns_memory_cannot_be_duplicated(platform, duplicate):
    granule = platform.backing.granularity
    with VirtualBuffer(platform.backing, 4 * granule, governor=platform.governor) as buffer:
        buffer.grow_to(granule)
        for owner in (buffer, buffer.reservation, Governor().lease(Tier.HOST)):
            with pytest.raises(TypeError, match="cannot copy or pickle"):
                duplicate(owner)
        platform.memory.write(buffer.base, b"still mine")


@pytest.mark.parametrize("capacity", [0, -1, -(1 << 40)])
def test_a_capacity_must_be_positive(platform, capacity):
    with pytest.raises(UsageError, match=f"capacity of {capacity} bytes"):
        VirtualBuffer(platform.backing, capacity)


def test_a_closed_buffer_refuses_work_and_closes_again(buffer, granule):
    buffer.grow_to(granule)
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert (len(buffer), buffer.committed) == (0, 0)
    assert "closed" in repr(buffer)
    for work in (
        lambda: buffer.grow_to(1),
        lambda: buffer.shrink_to(1),
        lambda: buffer.commit(0, granule),
        lambda: buffer.release(0, granule),
        buffer.view,
        lambda: buffer.base,
    ):
        with pytest.raises(ClosedError):
            work()


def test_a_forgotten_buffer_gives_back_its_lease_and_memory(platform, granule, governor):
    buffer = VirtualBuffer(platform.backing, 4 * granule, governor=governor)
    buffer.grow_to(4 * granule)
    base = buffer.base
    del buffer
    gc.collect()
    assert platform.leased() == 0
    assert platform.memory.faults(base)


@pytest.fixture
def host_buffer(buffer):
    if buffer.backing.tier is not Tier.HOST:
        pytest.skip("device memory has no view on the CPU")
    return buffer


def test_a_view_is_writable_and_stays_valid_while_the_buffer_grows(host_buffer, granule):
    host_buffer.grow_to(granule + 5)
    view = host_buffer.view()
    assert (len(view), view.readonly, view.format) == (granule + 5, False, "B")
    view[0] = 7
    host_buffer.grow_to(8 * granule)
    assert view[0] == 7
    view[granule + 4] = 9
    assert host_buffer.view()[granule + 4] == 9
    del view


def test_closing_or_releasing_under_a_live_view_is_refused(host_buffer, granule):
    host_buffer.grow_to(4 * granule)
    view = host_buffer.view()[1:5]
    view[0] = 1
    for work in (
        host_buffer.close,
        lambda: host_buffer.shrink_to(granule),
        lambda: host_buffer.release(2 * granule, granule),
    ):
        with pytest.raises(LiveViewError):
            work()
        assert host_buffer.committed == 4 * granule
        assert view[0] == 1
    host_buffer.grow_to(6 * granule)
    host_buffer.release(5 * granule, granule)  # the view does not reach it
    view.release()
    del view
    gc.collect()
    host_buffer.shrink_to(granule)


def test_a_live_view_does_not_hide_the_error_that_left_the_block(platform, granule, governor):
    if platform.backing.tier is not Tier.HOST:
        pytest.skip("device memory has no view on the CPU")
    with (
        pytest.raises(ZeroDivisionError) as caught,
        VirtualBuffer(platform.backing, 4 * granule, governor=governor) as buffer,
    ):
        buffer.grow_to(granule)
        base, view = buffer.base, buffer.view()
        view[0] //= 0
    assert "a live view shows" in caught.value.__notes__[0]
    assert not buffer.closed
    del view, buffer, caught
    gc.collect()
    assert governor.ledger(Tier.HOST).used_bytes == 0
    assert platform.memory.faults(base)


def test_numpy_takes_the_memory_without_a_copy(host_buffer, granule):
    numpy = pytest.importorskip("numpy")
    host_buffer.grow_to(2 * granule)
    array = numpy.frombuffer(host_buffer.view(), dtype=numpy.uint32)
    array[:] = 0xDEADBEEF
    host_buffer.grow_to(8 * granule)
    assert array.ctypes.data == host_buffer.base
    assert host_buffer.view()[:4].tobytes() == array[:1].tobytes()
    with pytest.raises(LiveViewError):
        host_buffer.close()
    del array


def test_a_view_outlives_a_forgotten_buffer(platform, granule):
    if platform.backing.tier is not Tier.HOST:
        pytest.skip("device memory has no view on the CPU")
    buffer = VirtualBuffer(platform.backing, granule)
    buffer.grow_to(granule)
    view = buffer.view()
    base = buffer.base
    del buffer
    gc.collect()
    view[0] = 3
    assert view[0] == 3
    del view
    gc.collect()
    assert platform.memory.faults(base)


def test_a_view_over_released_memory_is_refused(host_buffer, granule):
    host_buffer.grow_to(4 * granule)
    host_buffer.release(granule, granule)
    with pytest.raises(UsageError):
        host_buffer.view()


def test_an_empty_view(host_buffer):
    assert len(host_buffer.view()) == 0
