"""Every system call of the POSIX backing fails in turn; a failed call changes nothing (B8)."""

from __future__ import annotations

import ctypes
import errno
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("the POSIX backing needs a POSIX system", allow_module_level=True)

from vmtool.errors import CallError, UnavailableError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.errors import OutOfMemoryError, QuarantineError
from vmtool.memory.governor import Governor, Tier
from vmtool.memory.posix.backing import METHODS, PosixBacking
from vmtool.memory.posix.calls import CALLS, PROT_NONE

GRANULES = 16
OPTIONS = {
    "plain": {},
    "prefault": {"prefault": True},
    "huge": {"huge": True},
    "label": {"label": "vmtool-test"},
    "all": {"prefault": True, "huge": True, "label": "vmtool-test"},
}
STEPS = [
    ("commit", 0, 4),
    ("commit", 6, 2),
    ("release", 1, 2),
    ("commit", 1, 1),
    ("release", 0, 2),
    ("commit", 0, 3),
    ("release", 0, 8),
]


def make(method, options, calls=CALLS):
    if "huge" in OPTIONS[options] and not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("this kernel has no transparent huge pages")
    try:
        return PosixBacking(method, calls=calls, **OPTIONS[options])
    except UnavailableError as error:
        pytest.skip(str(error))


def snapshot(reservation, kernel_map):
    """Return the contents and mapping of a reservation, and what vmtool believes of it."""
    g = reservation.granularity
    contents = {
        s // g: ctypes.string_at(reservation.base + s, e - s) for s, e in reservation.blocks
    }
    return (
        kernel_map(reservation.base, reservation.capacity),
        list(reservation.blocks),
        list(reservation.degraded),
        list(reservation.quarantined),
        contents,
    )


def run(backing, reservation, kernel_map, *, retry):
    """Run STEPS, filling what is committed; return how many calls of the backing failed."""
    g, failures, done = reservation.granularity, 0, set()
    for name, first, count in STEPS:
        operation = getattr(backing, name)
        if name == "release" and not all(i in done for i in range(first, first + count)):
            spans = list(reservation.blocks.spans(first * g, (first + count) * g))
        else:
            spans = [(first * g, (first + count) * g)]
        for start, end in spans:
            before = snapshot(reservation, kernel_map)
            try:
                operation(reservation, start, end - start)
            except CallError:
                failures += 1
                assert snapshot(reservation, kernel_map) == before
                if retry:
                    operation(reservation, start, end - start)
                else:
                    continue
            if name == "commit":
                address = reservation.base + start
                assert ctypes.string_at(address, end - start) == bytes(end - start)
                ctypes.memset(address, 0x40 + first, end - start)
                done |= set(range(start // g, end // g))
    return failures


def count_calls(method, options, kernel_map, failing):
    counter = failing(CALLS, nth=1 << 30)
    backing = make(method, options, counter.calls)
    reservation = backing.reserve(GRANULES * backing.granularity)
    run(backing, reservation, kernel_map, retry=False)
    backing.unreserve(reservation)
    return len(counter.seen)


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL], ids=["ENOMEM", "EINVAL"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_one_failing_call_changes_nothing_and_can_be_tried_again(
    method, options, code, kernel_map, failing
):
    total = count_calls(method, options, kernel_map, failing)
    assert total >= len(STEPS)
    for nth in range(1, total + 1):
        fault = failing(CALLS, nth=nth, code=code)
        backing = make(method, options, fault.calls)
        try:
            reservation = backing.reserve(GRANULES * backing.granularity)
        except CallError as error:
            assert error.symbol == errno.errorcode[code]
            reservation = backing.reserve(GRANULES * backing.granularity)
        base, capacity = reservation.base, reservation.capacity
        run(backing, reservation, kernel_map, retry=True)
        assert reservation.blocks.total == 0
        assert reservation.quarantined.total == 0
        try:
            backing.unreserve(reservation)
        except CallError:
            assert not reservation.closed
            backing.unreserve(reservation)
        assert reservation.closed
        assert not any(mode.startswith("rw") for *_, mode in kernel_map(base, capacity))


@pytest.mark.parametrize("more", [1, 2, 3])
@pytest.mark.parametrize("options", ["plain", "all"])
@pytest.mark.parametrize("method", METHODS)
def test_a_failing_undo_quarantines_what_cannot_be_put_back(
    method, options, more, kernel_map, failing
):
    for nth in range(2, count_calls(method, options, kernel_map, failing) + 1):
        fault = failing(CALLS, nth=nth, more=more)
        backing = make(method, options, fault.calls)
        try:
            reservation = backing.reserve(GRANULES * backing.granularity)
        except CallError:
            continue
        g = reservation.granularity
        for name, first, count in STEPS:
            for start, end in list(
                reservation.blocks.spans(first * g, (first + count) * g)
                if name == "release"
                else reservation.blocks.gaps(first * g, (first + count) * g)
            ):
                try:
                    getattr(backing, name)(reservation, start, end - start)
                except QuarantineError as error:
                    assert reservation.quarantined.covers(*error.span)
                    assert isinstance(error.__cause__, CallError)
                except (CallError, ValueError):
                    pass  # refused: it overlaps what is quarantined, or the fault was undone
                assert all(
                    reservation.quarantined.overlap(*span) is None for span in reservation.blocks
                )
        for _ in range(more + 2):
            if not reservation.closed:
                try:
                    backing.unreserve(reservation)
                except CallError:
                    continue
        assert reservation.closed
        assert reservation.quarantined.total == 0


def test_a_hole_left_by_a_failed_replacement_is_filled(kernel_map, replaceable):
    """Until Linux 6.12 a failing MAP_FIXED unmapped the old range first: do that here."""
    table = replaceable(CALLS)
    backing = PosixBacking("fixed", calls=table.calls)
    reservation = backing.reserve(GRANULES * backing.granularity)
    g = reservation.granularity

    def hole_then_fail(address, nbytes, prot, flags, fd, offset):
        if flags & 0x10 and flags & 0x100000 == 0 and prot != PROT_NONE:
            CALLS.munmap(address, nbytes)
            ctypes.set_errno(errno.ENOMEM)
            return -1
        return CALLS.mmap(address, nbytes, prot, flags, fd, offset)

    before = kernel_map(reservation.base, reservation.capacity)
    table.replace(mmap=hole_then_fail)
    with pytest.raises(OutOfMemoryError):
        backing.commit(reservation, 4 * g, 2 * g)
    assert kernel_map(reservation.base, reservation.capacity) == before
    assert reservation.quarantined.total == 0
    table.replace()
    backing.commit(reservation, 4 * g, 2 * g)
    backing.unreserve(reservation)


def test_a_release_that_lost_its_mapping_still_ends_guarded(kernel_map, replaceable):
    table = replaceable(CALLS)
    backing = PosixBacking("fixed", calls=table.calls)
    reservation = backing.reserve(GRANULES * backing.granularity)
    g = reservation.granularity
    backing.commit(reservation, 0, 4 * g)

    def hole_then_fail(address, nbytes, prot, flags, fd, offset):
        if flags & 0x10:
            CALLS.munmap(address, nbytes)
            ctypes.set_errno(errno.ENOMEM)
            return -1
        return CALLS.mmap(address, nbytes, prot, flags, fd, offset)

    table.replace(mmap=hole_then_fail)
    backing.release(reservation, g, 2 * g)
    table.replace()
    assert list(reservation.blocks) == [(0, g), (3 * g, 4 * g)]
    assert (g, 3 * g, "---p") in kernel_map(reservation.base, reservation.capacity)
    backing.commit(reservation, g, 2 * g)
    backing.unreserve(reservation)


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_a_refused_commit_gives_back_its_lease(method, failing):
    fault = failing(CALLS, nth=1, select=lambda name, args: name != "munmap" and 3 in args[2:3])
    backing = PosixBacking(method, calls=fault.calls)
    governor = Governor({Tier.HOST: 1 << 20})
    with VirtualBuffer(backing, 1 << 20, governor=governor) as buffer:
        with pytest.raises(OutOfMemoryError) as caught:
            buffer.grow_to(1 << 16)
        assert governor.ledger(Tier.HOST).used_bytes == 0
        assert (len(buffer), buffer.committed) == (0, 0)
        error = caught.value
        assert error.symbol == "ENOMEM"
        assert f"{buffer.base:#x}, 65536, PROT_READ|PROT_WRITE" in str(error)
        assert error.cause
        assert error.hint
        buffer.grow_to(1 << 16)


def test_quarantined_bytes_stay_leased_until_close(replaceable):
    table = replaceable(CALLS)
    backing = PosixBacking("fixed", calls=table.calls)
    governor = Governor({Tier.HOST: 1 << 20})
    buffer = VirtualBuffer(backing, 1 << 20, governor=governor)
    buffer.grow_to(1 << 16)

    def refuse(*_arguments):
        ctypes.set_errno(errno.ENOMEM)
        return -1

    def lose(address, nbytes, _advice):
        CALLS.munmap(address, nbytes)
        return refuse()

    table.replace(mmap=refuse, madvise=lose)
    with pytest.raises(QuarantineError):
        buffer.shrink_to(0)
    assert governor.ledger(Tier.HOST).used_bytes == 1 << 16
    assert buffer.reservation.quarantined.total == 1 << 16
    table.replace()
    buffer.close()
    assert governor.ledger(Tier.HOST).used_bytes == 0
