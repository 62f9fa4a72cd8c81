"""Facts of a device that are measured, as nothing reports them: what calls cost, whether memory is zero."""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vmtool.memory.cuda.backing import CudaBacking


_BINDING_CALLS: Final = 201
_ACCESS_ROUNDS: Final = 9


def binding_ns() -> int:
    """Return what Python and the binding add to each driver call: the median of the cheapest one.

    Raises:
        UnavailableError: If there is no usable driver.
    """
    from vmtool.memory.cuda import driver

    call = driver.load().call
    samples = []
    for _ in range(_BINDING_CALLS):
        began = perf_counter_ns()
        call("cuDriverGetVersion")
        samples.append(perf_counter_ns() - began)
    return round(median(samples))


def is_fresh_zero(backing: str) -> bool | None:
    """Return whether the memory of a new handle reads as zero; ``None`` without room for one.

    It is committed after other memory of this process was released, if any was, which is what a
    driver would hand out again.

    Raises:
        CudaError: If the driver fails otherwise.
    """
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.cuda.copies import DeviceCopies
    from vmtool.memory.errors import OutOfMemoryError, Unwinding

    opened = open_device(backing, method="cold")
    nbytes = opened.granularity
    found = bytearray(nbytes)
    try:
        with Unwinding() as stack:
            stack.undo(opened.close)
            reservation = opened.reserve(nbytes)
            stack.undo(opened.unreserve, reservation)
            opened.commit(reservation, 0, nbytes)
            DeviceCopies(opened.context).read(reservation, 0, found)
    except OutOfMemoryError:
        return None
    return found == bytes(nbytes)


def access_costs(backing: CudaBacking) -> tuple[int, ...]:
    """Return what access costs: a median of cuMemSetAccess on one handle, in nanoseconds.

    The first is for the device alone, the next with one peer of the backing, with two, and so on. Each
    is on a new mapping, as the same access once more may cost less.

    Raises:
        CudaError: If the driver fails.
    """
    from vmtool.memory.errors import Unwinding

    call, nbytes = backing.context.call, backing.granularity
    ordinals = (backing.context.info.ordinal, *backing.peers)
    access = [backing.context.driver.access(ordinal) for ordinal in ordinals]
    samples: list[list[int]] = [[] for _ in access]
    with Unwinding() as stack:
        address = call("cuMemAddressReserve", nbytes, 0, 0, 0)
        stack.undo(call, "cuMemAddressFree", address, nbytes)
        handle = call("cuMemCreate", nbytes, backing.properties, 0)
        stack.undo(call, "cuMemRelease", handle)
        for _ in range(_ACCESS_ROUNDS):
            for count, kept in enumerate(samples, 1):
                call("cuMemMap", address, nbytes, 0, handle, 0)
                with Unwinding() as mapped:
                    mapped.undo(call, "cuMemUnmap", address, nbytes)
                    began = perf_counter_ns()
                    call("cuMemSetAccess", address, nbytes, access[:count], count)
                    kept.append(perf_counter_ns() - began)
    return tuple(round(median(each)) for each in samples)
