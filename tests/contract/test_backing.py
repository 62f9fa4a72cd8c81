"""Invariants B1 to B11: the same tests for every backing."""

from __future__ import annotations

import gc
import threading

import pytest

from vmtool.errors import UsageError
from vmtool.memory.errors import (
    ClosedError,
    MisalignedError,
    NotCommittedError,
    OutOfRangeError,
    OverlapError,
)
from vmtool.memory.governor import Tier
from vmtool.units import MIB


def span(reservation, first, count):
    """Return offset and length in bytes of *count* granules from *first*."""
    return first * reservation.granularity, count * reservation.granularity


def writable(platform, reservation, offset, nbytes):
    """Write both ends of a span and read them back."""
    memory, base = platform.memory, reservation.base
    for at in (offset, offset + nbytes - 8):
        memory.write(base + at, b"\xa5" * 8)
        if memory.read(base + at, 8) != b"\xa5" * 8:
            return False
    return True


def test_b1_granularity_is_a_constant_power_of_two(platform):
    granule = platform.backing.granularity
    assert granule > 0
    assert granule & (granule - 1) == 0
    assert platform.backing.granularity == granule
    assert platform.backing.units.commit_bytes == granule


def test_b2_reserving_more_than_ram_commits_nothing(platform):
    reservation = platform.backing.reserve(256 << 30)
    try:
        assert reservation.capacity == 256 << 30
        assert reservation.blocks.total == 0
        assert reservation.base % platform.backing.units.reserve_bytes == 0
        if platform.backing.guards:
            assert platform.memory.faults(reservation.base)
            assert platform.memory.faults(reservation.base + reservation.capacity - 1)
    finally:
        platform.backing.unreserve(reservation)


def test_b3_the_base_never_changes(platform, reserved):
    base = reserved.base
    platform.backing.commit(reserved, *span(reserved, 0, 8))
    platform.backing.release(reserved, *span(reserved, 2, 3))
    platform.backing.commit(reserved, *span(reserved, 8, 56))
    assert reserved.base == base


def test_b4_committed_is_writable_and_the_rest_faults(platform, reserved):
    platform.backing.commit(reserved, *span(reserved, 3, 2))
    assert writable(platform, reserved, *span(reserved, 3, 2))
    if platform.backing.guards:
        granule = reserved.granularity
        assert platform.memory.faults(reserved.base + 3 * granule - 1)
        assert not platform.memory.faults(reserved.base + 3 * granule)
        assert not platform.memory.faults(reserved.base + 5 * granule - 1)
        assert platform.memory.faults(reserved.base + 5 * granule)


def test_b4_released_memory_faults_where_the_method_guards(platform, reserved):
    platform.backing.commit(reserved, *span(reserved, 0, 4))
    platform.backing.release(reserved, *span(reserved, 1, 1))
    assert platform.memory.faults(reserved.base + reserved.granularity) == platform.backing.guards
    assert not platform.memory.faults(reserved.base)


@pytest.mark.parametrize("operation", ["commit", "release"])
@pytest.mark.parametrize(("offset", "nbytes"), [(1, 0), (0, 1), (-1, 0), (0, -1)])
def test_b5_misaligned_is_refused_with_a_legal_value(platform, reserved, operation, offset, nbytes):
    granule = reserved.granularity
    call = getattr(platform.backing, operation)
    with pytest.raises(MisalignedError) as caught:
        call(reserved, 4 * granule + offset, 2 * granule + nbytes)
    assert caught.value.legal % granule == 0
    assert str(caught.value.legal) in caught.value.hint
    assert reserved.blocks.total == 0


@pytest.mark.parametrize("operation", ["commit", "release"])
def test_b5_out_of_range_names_the_overrun(platform, reserved, operation):
    call = getattr(platform.backing, operation)
    with pytest.raises(OutOfRangeError) as caught:
        call(reserved, *span(reserved, 63, 2))
    assert caught.value.overrun == reserved.granularity
    with pytest.raises(OutOfRangeError):
        call(reserved, *span(reserved, -1, 2))
    with pytest.raises(OutOfRangeError):
        call(reserved, *span(reserved, 1 << 60, 1))


@pytest.mark.parametrize("operation", ["commit", "release"])
@pytest.mark.parametrize("count", [0, -1])
def test_b5_empty_and_negative_lengths_are_refused(platform, reserved, operation, count):
    with pytest.raises(UsageError):
        getattr(platform.backing, operation)(reserved, *span(reserved, 2, count))


def test_b5_reserving_nothing_or_part_of_a_granule_is_refused(platform):
    for nbytes in (0, -platform.backing.granularity, platform.backing.granularity + 1, 1):
        with pytest.raises(UsageError):
            platform.backing.reserve(nbytes)


def test_b5_overlap_names_the_block(platform, reserved):
    platform.backing.commit(reserved, *span(reserved, 4, 4))
    platform.memory.write(reserved.base + 4 * reserved.granularity, b"kept")
    for first, count in ((4, 4), (3, 2), (7, 2), (5, 1), (0, 64)):
        with pytest.raises(OverlapError) as caught:
            platform.backing.commit(reserved, *span(reserved, first, count))
        assert caught.value.block == (4 * reserved.granularity, 8 * reserved.granularity)
    assert platform.memory.read(reserved.base + 4 * reserved.granularity, 4) == b"kept"
    assert reserved.blocks.total == 4 * reserved.granularity


def test_b5_releasing_what_is_not_committed_names_the_gap(platform, reserved):
    platform.backing.commit(reserved, *span(reserved, 0, 2))
    platform.backing.commit(reserved, *span(reserved, 4, 2))
    platform.memory.write(reserved.base, b"kept")
    with pytest.raises(NotCommittedError) as caught:
        platform.backing.release(reserved, *span(reserved, 0, 6))
    assert caught.value.gap == (2 * reserved.granularity, 4 * reserved.granularity)
    assert platform.memory.read(reserved.base, 4) == b"kept"


def test_b6_partial_shrink_after_one_large_commit(platform, reserved):
    """A design that finds blocks by their exact start would miss the partial release."""
    platform.backing.commit(reserved, *span(reserved, 0, 64))
    platform.memory.write(reserved.base + 15 * reserved.granularity, b"kept")
    platform.backing.release(reserved, *span(reserved, 16, 48))
    assert reserved.blocks.total == 16 * reserved.granularity
    assert platform.memory.read(reserved.base + 15 * reserved.granularity, 4) == b"kept"
    platform.backing.commit(reserved, *span(reserved, 16, 48))
    assert writable(platform, reserved, *span(reserved, 16, 48))
    assert platform.memory.read(reserved.base + 15 * reserved.granularity, 4) == b"kept"


def test_b6_release_across_blocks_committed_apart(platform, reserved):
    for first in (2, 0, 1, 3):
        platform.backing.commit(reserved, *span(reserved, first, 1))
    platform.backing.release(reserved, *span(reserved, 1, 2))
    platform.backing.commit(reserved, *span(reserved, 1, 2))
    platform.backing.release(reserved, *span(reserved, 0, 4))
    assert reserved.blocks.total == 0


def test_b6_large_commit_after_small_ones_were_released(platform, reserved):
    """Free neighbours must have become one range again."""
    for first in range(0, 64, 2):
        platform.backing.commit(reserved, *span(reserved, first, 1))
    for first in range(0, 64, 2):
        platform.backing.release(reserved, *span(reserved, first, 1))
    platform.backing.commit(reserved, *span(reserved, 0, 64))
    assert writable(platform, reserved, *span(reserved, 0, 64))


def test_b7_committed_again_shows_nobodys_bytes(platform, reserved):
    granule = reserved.granularity
    platform.backing.commit(reserved, *span(reserved, 0, 4))
    platform.memory.write(reserved.base + granule, b"\x5a" * (2 * granule))
    platform.backing.release(reserved, *span(reserved, 1, 2))
    platform.backing.commit(reserved, *span(reserved, 1, 2))
    if platform.backing.zeroes:
        offset, nbytes = span(reserved, 1, 2)
        assert not any(platform.memory.read(reserved.base + offset, nbytes))
    elif platform.backing.tier is Tier.HOST:  # macOS takes pages away when memory is short
        assert set(platform.memory.read(reserved.base + granule, 2 * granule)) <= {0, 0x5A}
    else:
        assert platform.memory.read(reserved.base + granule, 2 * granule) != b"\x5a" * (2 * granule)


def test_b9_unreserve_gives_back_everything_once(platform):
    reservation = platform.backing.reserve(8 * platform.backing.granularity)
    platform.backing.commit(reservation, *span(reservation, 2, 4))
    platform.backing.unreserve(reservation)
    platform.backing.unreserve(reservation)
    assert reservation.closed
    assert reservation.blocks.total == 0
    assert platform.memory.faults(reservation.base + 2 * reservation.granularity)
    for operation in (platform.backing.commit, platform.backing.release):
        with pytest.raises(ClosedError):
            operation(reservation, *span(reservation, 0, 1))


def test_b9_a_forgotten_reservation_is_reclaimed(platform):
    reservation = platform.backing.reserve(8 * platform.backing.granularity)
    platform.backing.commit(reservation, *span(reservation, 0, 8))
    base = reservation.base
    del reservation
    gc.collect()
    assert platform.memory.faults(base)


def test_b10_addresses_are_integers(platform, reserved):
    assert type(reserved.base) is int
    assert type(reserved.capacity) is int


def test_b11_reservations_of_one_backing_are_independent(platform, reserved):
    other = platform.backing.reserve(reserved.capacity)
    try:
        platform.backing.commit(reserved, *span(reserved, 0, 4))
        platform.backing.commit(other, *span(other, 2, 4))
        platform.memory.write(reserved.base, b"mine")
        platform.backing.release(other, *span(other, 2, 4))
        assert platform.memory.read(reserved.base, 4) == b"mine"
        assert other.blocks.total == 0
    finally:
        platform.backing.unreserve(other)


def test_distinct_reservations_in_several_threads(platform):
    failures = []

    def work(stamp):
        try:
            reservation = platform.backing.reserve(16 * platform.backing.granularity)
            mark = bytes([stamp]) * 16
            for _ in range(50 if reservation.granularity < MIB else 12):
                platform.backing.commit(reservation, *span(reservation, 0, 16))
                platform.memory.write(reservation.base + 8 * reservation.granularity, mark)
                platform.backing.release(reservation, *span(reservation, 0, 8))
                data = platform.memory.read(reservation.base + 8 * reservation.granularity, 16)
                assert data == mark
                platform.backing.release(reservation, *span(reservation, 8, 8))
            platform.backing.unreserve(reservation)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(stamp,)) for stamp in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
