"""CUDA_ERROR_OUT_OF_MEMORY means several things; the device's own numbers tell them apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.diagnosis import (
    Situation,
    diagnose_device,
    diagnose_pinning,
    explain_code,
    limits_below_free,
)
from vmtool.memory.cuda.errors import CudaOutOfMemoryError
from vmtool.units import GIB, MIB

MANY = 523_404
CASES = [
    ("device-address-range", "cuMemAddressReserve", 32 * GIB, 40 * GIB, 0, None),
    ("device-memory", "cuMemCreate", 2 * GIB, GIB, 0, None),
    ("device-memory", "cuMemCreate", 2 * GIB, None, 0, None),
    ("device-memory", "cuMemSetAccess", 2 * GIB, GIB, MANY, None),
    ("mapping-descriptors", "cuMemSetAccess", 2 * MIB, 40 * GIB, MANY, None),
    ("limited-below-free", "cuMemSetAccess", 2 * MIB, 40 * GIB, 24, None),
    ("limited-below-free", "cuMemCreate", 2 * MIB, 8 * GIB, 9, None),
    ("wddm-budget", "cuMemSetAccess", 2 * MIB, 40 * GIB, MANY, "wddm"),
    ("wddm-budget", "cuMemCreate", 2 * MIB, 40 * GIB, 0, "wsl"),
]


@pytest.mark.parametrize(("kind", "call", "nbytes", "free", "mappings", "model"), CASES)
def test_each_refusal_has_the_cause_that_the_numbers_prove(
    kind, call, nbytes, free, mappings, model
):
    found = diagnose_device(Situation(call, nbytes, free, mappings, model))
    assert found.kind == kind
    assert found.remedy


def test_an_address_limit_is_named_and_half_of_it_is_not_advised():
    at = Situation("cuMemAddressReserve", 8 * GIB, 40 * GIB, 0, None, address_limit_bytes=4 * GIB)
    found = diagnose_device(at)
    assert found.kind == "address-space-limit"
    assert "RLIMIT_AS" in found.cause
    assert "half" not in found.remedy


def test_limits_below_the_free_memory_are_named(monkeypatch):
    for name in ("LD_PRELOAD", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    assert "MPS" in " ".join(limits_below_free(mps=True, integrated=False))
    assert "integrated" in " ".join(limits_below_free(mps=False, integrated=True))
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G")
    monkeypatch.setenv("LD_PRELOAD", "libvgpu.so")
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "3G")  # HAMi's
    found = " ".join(limits_below_free(mps=True, integrated=False))
    assert "0=2G" in found
    assert "libvgpu.so" in found
    assert "CUDA_DEVICE_MEMORY_LIMIT_0 is 3G" in found


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc of Linux")
def test_limits_of_the_process_are_named_only_where_they_may_bind(monkeypatch):
    """Each exportable handle is a descriptor; addresses of a device count against RLIMIT_AS."""
    import resource

    for name in ("LD_PRELOAD", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    used = len(list(Path("/proc/self/fd").iterdir()))
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_NOFILE: used + 100}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    assert limits_below_free(mps=False, integrated=False) == ()
    limits |= {resource.RLIMIT_AS: 64 * GIB, resource.RLIMIT_NOFILE: used + 4}
    addresses, descriptors = limits_below_free(mps=False, integrated=False)
    assert addresses == "RLIMIT_AS is 64 GiB"
    assert f"of {used + 4:,} file descriptors are in use" in descriptors


@pytest.mark.parametrize(
    ("call", "code", "mode", "word"),
    [
        ("cuDevicePrimaryCtxRetain", 46, 3, "exclusive-process"),
        ("cuDevicePrimaryCtxRetain", 46, 2, "prohibited"),
        ("cuDevicePrimaryCtxRetain", 46, 0, "another process"),
        ("cuDevicePrimaryCtxRetain", 2, None, "context"),
        ("cuMemCreate", 800, None, "IMEX"),
        ("cuMemUnmap", 600, None, "finished"),
        ("cuMemCreate", 304, None, "operating system"),
        ("cuDeviceGet", 101, None, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_codes_have_causes(call, code, mode, word):
    cause, hint = explain_code(call, code, mode)
    assert word in cause
    assert hint


def test_the_hint_of_a_failed_query_is_not_to_request_less():
    assert explain_code("cuDeviceGetAttribute", 2, None) == (
        None,
        "run nvidia-smi: it shows what uses the device",
    )


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemFree"])
def test_a_failed_release_is_not_asked_to_be_smaller(call):
    _, hint = explain_code(call, 2, None)
    assert "request less" not in hint
    assert "gives everything back" in hint


def test_where_a_device_takes_no_process_fewer_workers_are_not_advised():
    assert "--workers" not in explain_code("cuDevicePrimaryCtxRetain", 46, 2)[1]


@pytest.mark.parametrize("model", ["wddm", "wsl", "tcc", None])
def test_only_windows_is_blamed_for_a_limit_of_pinned_memory(model):
    cause = diagnose_pinning(model).cause
    assert ("Windows" in cause) == (model in {"wddm", "wsl"})


def test_what_ran_out_is_read_before_the_rollback_gives_it_back(fakecuda):
    fakecuda.reset(memory="64MiB")
    backing = open_device("cuda")
    reservation = backing.reserve(64 * MIB)
    try:
        fakecuda.fail("cuMemSetAccess:1=2")
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.commit(reservation, 0, 48 * MIB)
        assert caught.value.cause == "48 MiB was requested and 16 MiB is free on the device"
        fakecuda.fail("cuMemSetAccess:1=2")
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.commit(reservation, 0, 2 * MIB)
        assert "something limits this process below that" in caught.value.cause
        assert "mappings" not in caught.value.cause
    finally:
        backing.unreserve(reservation)
        backing.close()


def test_the_limit_of_mappings_is_distinguished_from_a_full_device(fakecuda):
    """Seen on an H100: the 523,405th mapping is refused by cuMemSetAccess, with memory to spare."""
    fakecuda.reset(granularity="4KiB", memory="1GiB", max_mappings=10_000)
    backing = open_device("cuda")
    g = backing.granularity
    reservation = backing.reserve(10_016 * g)
    try:
        backing.commit(reservation, 0, 10_000 * g)
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.commit(reservation, 10_000 * g, g)
        assert caught.value.call == "cuMemSetAccess"
        assert caught.value.symbol == "CUDA_ERROR_OUT_OF_MEMORY"
        assert "10,001 mappings" in caught.value.cause
        assert "--chunk" in caught.value.hint
        assert list(reservation.blocks) == [(0, 10_000 * g)]
        backing.release(reservation, 0, g)  # one descriptor is free again
        backing.commit(reservation, 10_000 * g, g)
    finally:
        backing.unreserve(reservation)
        backing.close()
