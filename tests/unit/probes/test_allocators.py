"""A device's allocators compared, on the stand-in: what is measured and concluded."""

from __future__ import annotations

import gc

import pytest

from vmtool.errors import RefusedError
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, DeviceLostError
from vmtool.probes.allocators import (
    AllocatorOptions,
    faster_from,
    knee,
    measure_allocators,
)
from vmtool.results.allocators import AllocationTiming, ChunkCost

MIB = 1 << 20
SMALL = AllocatorOptions(most_bytes=4 * MIB, budget_bytes=16 * MIB, rounds=2)


def test_every_allocator_is_measured_at_every_size_and_gives_all_back(fakecuda):
    fakecuda.reset(granularity="64KiB")
    result, _ = measure_allocators(0, SMALL)
    sizes = sorted({each.nbytes for each in result.timings})
    assert sizes == [64 << 10, 256 << 10, MIB, 4 * MIB]
    for nbytes in sizes:
        methods = [each.method for each in result.timings if each.nbytes == nbytes]
        assert methods == ["cold", "pooled", "malloc", "async"]
    assert all(each.total_ns > 0 and each.error is None for each in result.timings)
    assert [each.from_bytes for each in result.growth] == sizes
    assert 6 * 32 << 10 in [each.chunk_bytes for each in result.chunks]  # no power of two
    assert result.knee_bytes in [each.chunk_bytes for each in result.chunks]
    assert set(result.chunks[0].calls_ns) >= {"cuMemCreate", "cuMemMap", "cuMemUnmap"}
    assert result.device.binding_ns > 0
    assert result.device.fresh_zero
    fakecuda.assert_clean()


def test_the_slow_calls_of_a_driver_decide(fakecuda):
    fakecuda.reset(granularity="64KiB", latency="cuMemAlloc:3000000")
    result, _ = measure_allocators(0, AllocatorOptions(256 << 10, 4 * MIB, rounds=1))
    assert result.faster_from_bytes["cold<malloc"] == 64 << 10
    assert all(each.copying_ns > each.in_place_ns for each in result.growth)


def test_the_pool_of_the_device_keeps_everything_meanwhile_and_nothing_afterwards(fakecuda):
    fakecuda.reset(granularity="64KiB")
    measure_allocators(0, AllocatorOptions(64 << 10, 4 * MIB, rounds=1))
    calls = fakecuda.report()["calls"]
    assert calls["cuMemPoolSetAttribute"]["calls"] == 2  # the threshold set, and put back
    assert calls["cuMemPoolTrimTo"]["calls"] == 1


def test_growth_that_fails_leaves_nothing_allocated(fakecuda):
    fakecuda.reset(granularity="64KiB")
    for call in ("cuMemcpyDtoD", "cuMemAlloc", "cuMemFree"):
        at = {"cuMemAlloc": 4, "cuMemFree": 3}.get(call, 1)
        fakecuda.fail(f"{call}:{at}=304")
        result, failed = measure_allocators(0, AllocatorOptions(64 << 10, 4 * MIB, rounds=1))
        assert isinstance(failed, CudaError)
        assert failed.call == call
        assert (result.complete, result.error, result.growth) == (False, str(failed), ())
        assert len(result.timings) == 4
        del failed
        gc.collect()
        if call != "cuMemFree":  # which leaves its own
            fakecuda.assert_clean()
    fakecuda.reset()


def test_a_device_lost_in_the_middle_of_the_rounds_keeps_those_before(fakecuda):
    fakecuda.reset(granularity="64KiB")
    fakecuda.fail("cuMemAllocAsync:3=719")  # one to warm up, one round
    result, failed = measure_allocators(0, AllocatorOptions(64 << 10, 4 * MIB, rounds=9))
    assert "cuMemAllocAsync" in str(failed)
    assert "Xid" in failed.hint
    rounds = {each.method: each.rounds for each in result.timings}
    assert rounds == {"cold": 2, "pooled": 2, "malloc": 2, "async": 1}
    assert not getattr(failed, "__notes__", ())  # every later call answers the same
    fakecuda.forgive()


def test_a_size_that_not_every_allocator_was_measured_at_is_left_out(fakecuda):
    fakecuda.reset(granularity="64KiB")
    fakecuda.fail("cuMemAllocAsync:4=719")  # the warm-up of the second size
    result, failed = measure_allocators(0, AllocatorOptions(256 << 10, 4 * MIB, rounds=2))
    assert failed is not None
    assert {each.nbytes for each in result.timings} == {64 << 10}
    fakecuda.forgive()


def test_a_device_lost_before_anything_is_measured_is_an_error(fakecuda):
    fakecuda.reset(granularity="64KiB")
    fakecuda.fail("cuMemAllocAsync:1=719")
    with pytest.raises(DeviceLostError, match="cuMemAllocAsync"):
        measure_allocators(0, AllocatorOptions(64 << 10, 4 * MIB, rounds=1))
    fakecuda.forgive()


def test_an_allocator_that_a_driver_lacks_does_not_hide_the_others(fakecuda):
    fakecuda.reset(granularity="64KiB")
    fakecuda.fail("cuDeviceGetDefaultMemPool:1+=801")
    result, _ = measure_allocators(0, AllocatorOptions(64 << 10, 4 * MIB, rounds=1))
    found = {each.method: each for each in result.timings}
    assert "CUDA_ERROR_NOT_SUPPORTED" in found["async"].error
    assert found["malloc"].error is None
    assert result.faster_from_bytes["cold<async"] is None


def test_a_budget_that_is_too_small_is_refused(fakecuda):
    with pytest.raises(RefusedError):
        measure_allocators(0, AllocatorOptions(64 * MIB, 2 * MIB))


def test_from_which_size_needs_every_larger_size_too():
    def timing(method, nbytes, ns):
        return AllocationTiming(method, nbytes, 1, ns, 0)

    timings = [
        *(timing("cold", size, ns) for size, ns in ((1, 5), (4, 5), (16, 5), (64, 5))),
        *(timing("malloc", size, ns) for size, ns in ((1, 9), (4, 4), (16, 6), (64, 9))),
    ]
    assert faster_from(timings)["cold<malloc"] == 16
    assert faster_from(timings[:-1])["cold<malloc"] is None


def test_the_knee_is_the_smallest_chunk_close_to_the_cheapest():
    costs = {2: 1000, 4: 600, 6: 330, 8: 310, 16: 300}
    chunks = [ChunkCost(chunk, 64, {}, ns) for chunk, ns in costs.items()]
    assert knee(chunks) == 6
    assert knee([]) is None
