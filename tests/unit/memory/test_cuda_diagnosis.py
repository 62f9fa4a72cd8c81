"""CUDA_ERROR_OUT_OF_MEMORY means several things; the device's own numbers tell them apart."""

from __future__ import annotations

import pytest

from vmtool.memory import open_device
from vmtool.memory.cuda.diagnosis import DeviceOutOfMemoryError, diagnose_device
from vmtool.units import GIB, MIB

CASES = [
    ("device-address-range", "cuMemAddressReserve", 32 * GIB, 40 * GIB, None),
    ("device-memory", "cuMemCreate", 2 * GIB, GIB, None),
    ("device-memory", "cuMemCreate", 2 * GIB, None, None),
    ("device-memory", "cuMemSetAccess", 2 * GIB, GIB, None),
    ("mapping-descriptors", "cuMemSetAccess", 2 * MIB, 40 * GIB, None),
    ("wddm-budget", "cuMemSetAccess", 2 * MIB, 40 * GIB, "wddm"),
]


@pytest.mark.parametrize(("kind", "call", "nbytes", "free", "model"), CASES)
def test_each_refusal_has_the_cause_that_the_numbers_prove(kind, call, nbytes, free, model):
    found = diagnose_device(call, nbytes, free, 523_404, model)
    assert found.kind == kind
    assert found.remedy


def test_the_ceiling_of_mappings_is_told_from_a_full_device(fakecuda):
    """Seen on an H100: the 523,405th mapping is refused by cuMemSetAccess, with memory to spare."""
    fakecuda.reset(granularity="64KiB", memory="1GiB", max_mappings=8)
    backing = open_device("cuda")
    g = backing.granularity
    reservation = backing.reserve(16 * g)
    try:
        backing.commit(reservation, 0, 8 * g)
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            backing.commit(reservation, 8 * g, g)
        assert caught.value.call == "cuMemSetAccess"
        assert caught.value.symbol == "CUDA_ERROR_OUT_OF_MEMORY"
        assert "8 mappings" in caught.value.cause
        assert "--chunk" in caught.value.hint
        assert list(reservation.blocks) == [(0, 8 * g)]
        backing.release(reservation, 0, g)  # one descriptor is free again
        backing.commit(reservation, 8 * g, g)
    finally:
        backing.unreserve(reservation)
        backing.close()
