"""Every driver call of the CUDA backing fails in turn, on the stand-in; B8 must hold."""

from __future__ import annotations

import gc

import pytest

from vmtool.errors import CallError, UsageError, VmtoolError
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.errors_and_diagnosis import DeviceLostError
from vmtool.memory.errors import QuarantineError

GRANULES = 16
STEPS = [
    ("commit", 0, 4),
    ("commit", 6, 2),
    ("release", 1, 2),
    ("commit", 1, 1),
    ("release", 0, 2),
    ("commit", 0, 3),
    ("release", 0, 8),
]
CALLS = [
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuCtxSynchronize",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
]


def run(backing, reservation, fake, *, retry):
    """Run STEPS; a call that fails leaves the map and the device's own counts as they were."""
    g = reservation.granularity
    for name, first, count in STEPS:
        operation = getattr(backing, name)
        wanted = (first * g, (first + count) * g)
        spans = list(
            reservation.blocks.spans(*wanted)
            if name == "release"
            else reservation.blocks.gaps(*wanted)
        )
        for start, end in spans:
            before = (list(reservation.blocks), state(fake))
            try:
                operation(reservation, start, end - start)
            except QuarantineError as error:
                assert reservation.quarantined.covers(*error.span)
                yield error
            except CallError as error:
                assert (list(reservation.blocks), state(fake)) == before
                yield error
                if retry:
                    operation(reservation, start, end - start)
            except VmtoolError:
                pass  # refused: it overlaps what is quarantined


def state(fake):
    live = fake.report()["live"]
    return {key: live[key] for key in ("mappings", "handles", "physical_bytes", "reservations")}


@pytest.mark.parametrize("call", CALLS)
def test_a_failing_call_changes_nothing_and_can_be_tried_again(fakecuda, call):
    for nth in range(1, 14):
        fakecuda.reset(granularity="64KiB")
        backing = CudaBacking(DeviceContext(0))
        reservation = backing.reserve(GRANULES * backing.granularity)
        fakecuda.fail(f"{call}:{nth}=999")
        failures = list(run(backing, reservation, fakecuda, retry=True))
        fakecuda.fail("")
        assert all(
            error.symbol == "CUDA_ERROR_UNKNOWN"
            for error in failures
            if isinstance(error, CallError)
        )
        backing.unreserve(reservation)
        assert reservation.closed
        lost = len(backing.source.lost)
        live = state(fakecuda)
        assert live["mappings"] == live["reservations"] == 0
        assert live["handles"] == lost
        for handle in backing.source.lost:
            backing.context.call("cuMemRelease", handle)
        del reservation
        gc.collect()
        backing.context.close()
        fakecuda.assert_clean()
        if not failures:
            break
    assert nth > 1, f"{call} was never reached"


def test_a_device_lost_in_an_unmap_is_reported_as_lost_and_not_as_a_quarantine(fakecuda):
    backing = CudaBacking(DeviceContext(0))
    reservation = backing.reserve(2 * backing.granularity)
    backing.commit(reservation, 0, 2 * backing.granularity)
    fakecuda.fail("cuMemUnmap:1=700")
    with pytest.raises(DeviceLostError, match="cuMemUnmap"):
        backing.release(reservation, 0, backing.granularity)
    assert reservation.quarantined.total == 0
    backing.unreserve(reservation)  # the driver has let go of it by itself: nothing is called
    assert reservation.closed
    fakecuda.reset()  # what a lost device held is no leak


def test_a_backing_is_not_closed_under_an_open_reservation(fakecuda):
    backing = CudaBacking(DeviceContext(0))
    reservation = backing.reserve(backing.granularity)
    backing.commit(reservation, 0, backing.granularity)
    with pytest.raises(UsageError, match="1 reservations of cuda:0 are still open"):
        backing.close()
    backing.unreserve(reservation)  # the context is there still, which unmapping needs
    forgotten = backing.reserve(backing.granularity)
    del forgotten
    backing.close()
    fakecuda.assert_clean()
