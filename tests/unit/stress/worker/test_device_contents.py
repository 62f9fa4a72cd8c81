"""What is written to a device is verified, and differences are reported; on the stand-in."""

from __future__ import annotations

import pytest

from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.stress.worker.device_contents import DeviceContents
from vmtool.stress.worker.host_contents import CorruptionError

CHUNK = 64 << 10
GRANULE = 4 * CHUNK


@pytest.fixture
def rig(fakecuda):
    fakecuda.reset(granularity="64KiB", poison=0xA5)
    backing = open_device("cuda", method="pooled")
    reservation = backing.reserve(8 * GRANULE)
    backing.commit(reservation, 0, 4 * GRANULE)
    copies = DeviceCopies(backing.context)

    def contents(*, touch="full", verify="full", zeroes=True, buffer_id=3):
        return DeviceContents(
            copies,
            reservation,
            GRANULE,
            buffer_id=buffer_id,
            touch=touch,
            verify=verify,
            zeroes=zeroes,
        )

    yield contents, copies, reservation
    backing.unreserve(reservation)
    backing.close()


@pytest.mark.parametrize("touch", ["first", "full"])
@pytest.mark.parametrize("verify", ["sample", "full"])
def test_what_was_written_is_there(rig, touch, verify):
    contents = rig[0](touch=touch, verify=verify)
    assert contents.write_and_time(0, 3, 7) > 0
    assert contents.check(0, 3) > 0


def test_a_touch_is_the_launches_and_nothing_else(rig, monkeypatch):
    """Waiting, checks and the harness's own stamps are outside of the clock: a clock that they move."""
    clock = [0]
    make, copies, _ = rig
    contents = make()
    monkeypatch.setattr("vmtool.stress.worker.device_contents.perf_counter_ns", lambda: clock[0])
    real = {name: getattr(copies, name) for name in ("fill", "write", "wait", "read")}
    cost = {"fill": 1, "write": 100, "wait": 10_000, "read": 1_000_000}
    waits = []

    def slow(name):
        queued = name in {"fill", "write"}

        def call(*arguments, wait=queued):
            clock[0] += cost[name] + cost["wait"] * wait
            waits.extend([name] * (wait or name == "wait"))
            return real[name](*arguments, **{"wait": wait} if queued else {})

        return call

    for name in real:
        monkeypatch.setattr(copies, name, slow(name))
    pieces = 2 * GRANULE // CHUNK
    assert contents.write_and_time(0, 2, 1) == pieces * cost["fill"]
    assert waits == ["wait"]


@pytest.mark.parametrize("offset", [0, 23, 24, CHUNK - 1, GRANULE - 1])
def test_one_wrong_byte_is_found_where_it_is(rig, offset):
    make, copies, reservation = rig
    contents = make()
    contents.write_and_time(1, 1, 1)
    byte = bytearray(1)
    copies.read(reservation, GRANULE + offset, byte)
    copies.write(reservation, GRANULE + offset, bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptionError) as raised:
        contents.check(1, 1)
    corruption = raised.value.corruption
    assert (corruption.granule, corruption.offset) == (1, GRANULE + offset)


def test_another_granules_bytes_are_named(rig):
    make, copies, reservation = rig
    contents = make()
    contents.write_and_time(0, 2, 5)
    stolen = bytearray(GRANULE)
    copies.read(reservation, GRANULE, stolen)
    copies.write(reservation, 0, stolen)
    with pytest.raises(CorruptionError) as raised:
        contents.check(0, 1)
    assert raised.value.corruption.check == "isolation"
    assert raised.value.corruption.owner == (3, 1, 5)


def test_handles_in_the_wrong_order_are_found(rig):
    make, copies, reservation = rig
    contents = make()
    contents.write_and_time(0, 1, 5)
    second = bytearray(CHUNK)
    copies.read(reservation, CHUNK, second)
    copies.write(reservation, 2 * CHUNK, second)
    with pytest.raises(CorruptionError):
        contents.check(0, 1)


def test_fresh_memory_that_is_not_zero_is_found_where_zero_is_promised(rig):
    make, copies, reservation = rig
    copies.write(reservation, GRANULE - 1, b"\x01")
    make(zeroes=False).write_and_time(0, 1, 1)
    copies.fill(reservation, 0, GRANULE, 0)
    copies.write(reservation, GRANULE - 1, b"\x01")
    with pytest.raises(CorruptionError) as raised:
        make().write_and_time(0, 1, 1)
    assert (raised.value.corruption.check, raised.value.corruption.offset) == ("zero", GRANULE - 1)


def test_an_earlier_cycle_is_distinguished_from_this_one(rig):
    make, copies, reservation = rig
    contents = make()
    contents.write_and_time(0, 1, 1)
    old = bytearray(GRANULE)
    copies.read(reservation, 0, old)
    contents.check(0, 1)
    copies.fill(reservation, 0, GRANULE, 0)
    contents.write_and_time(0, 1, 2)
    copies.write(reservation, 0, old)
    with pytest.raises(CorruptionError) as raised:
        contents.check(0, 1)
    assert raised.value.corruption.check == "survival"
    assert raised.value.corruption.owner == (3, 0, 1)
