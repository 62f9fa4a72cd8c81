"""Copies to and from device memory check what the bindings do not, on the stand-in."""

from __future__ import annotations

import pytest

from vmtool.errors import UsageError
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.errors import ClosedError, NotCommittedError, OutOfRangeError

CHUNK = 64 << 10


@pytest.fixture
def device(fakecuda):
    fakecuda.reset(granularity="64KiB", poison=0xA5)
    backing = open_device("cuda")
    reservation = backing.reserve(4 * CHUNK)
    backing.commit(reservation, CHUNK, 2 * CHUNK)
    yield DeviceCopies(backing.context), reservation
    backing.unreserve(reservation)
    backing.close()


def test_what_is_written_is_read_across_two_handles(device):
    copies, reservation = device
    data = bytes(range(256)) * 8
    copies.write(reservation, 2 * CHUNK - 1000, data)
    into = bytearray(len(data))
    copies.read(reservation, 2 * CHUNK - 1000, into)
    assert into == data


def test_a_fill_repeats_its_32_bits(device):
    copies, reservation = device
    copies.fill(reservation, CHUNK, 2 * CHUNK, 0x04030201)
    into = bytearray(2 * CHUNK)
    copies.read(reservation, CHUNK, into)
    assert into == b"\x01\x02\x03\x04" * (CHUNK // 2)


def test_nothing_is_in_flight_afterwards(device, fakecuda):
    copies, reservation = device
    copies.write(reservation, CHUNK, b"x" * 100)
    copies.fill(reservation, 2 * CHUNK, 8, 1)
    assert fakecuda.report()["live"]["pending_streams"] == 0


@pytest.mark.parametrize(
    ("offset", "nbytes", "error"),
    [
        (CHUNK - 1, 2, NotCommittedError),
        (3 * CHUNK - 1, 2, NotCommittedError),
        (0, 1, NotCommittedError),
        (4 * CHUNK - 1, 2, OutOfRangeError),
        (-1, 2, OutOfRangeError),
    ],
)
def test_a_copy_stays_inside_what_is_committed(device, fakecuda, offset, nbytes, error):
    copies, reservation = device
    calls = fakecuda.report()["calls"]
    with pytest.raises(error):
        copies.write(reservation, offset, bytes(nbytes))
    with pytest.raises(error):
        copies.read(reservation, offset, bytearray(nbytes))
    assert fakecuda.report()["calls"] == calls


def test_host_memory_must_be_writable_and_contiguous(device):
    copies, reservation = device
    with pytest.raises(UsageError):
        copies.read(reservation, CHUNK, bytes(4))
    with pytest.raises(UsageError):
        copies.read(reservation, CHUNK, memoryview(bytearray(8))[::2])
    with pytest.raises(UsageError):
        copies.fill(reservation, CHUNK + 2, 4, 0)
    copies.write(reservation, CHUNK, b"")


def test_a_closed_reservation_has_no_bytes(device):
    copies, reservation = device
    reservation.closed = True
    with pytest.raises(ClosedError):
        copies.write(reservation, CHUNK, b"x")
    reservation.closed = False
