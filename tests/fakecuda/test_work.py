"""Work in flight, streams, events and contexts on the stand-in (U3, S1, S3, X1..X3, E1)."""

import threading

import pytest
from cuda.bindings import driver
from fakecuda.rig import GRANULE

INVALID_CONTEXT, DESTROYED, INVALID_HANDLE, NOT_READY = 201, 709, 400, 600


def in_flight(rig, fakecuda, granule=0):
    """Unmap *granule* and tell whether the stand-in saw work in flight there."""
    assert rig.unmap(granule) == 0
    broken = fakecuda.forgive()
    assert [text for text in broken if not text.startswith("U3")] == []
    return broken != []


WORK = {
    "fill": lambda r: r.fill(0, 1),
    "fill by words": lambda r: r.ok("cuMemsetD32", r.base, 1, 1),
    "host to device": lambda r: r.ok("cuMemcpyHtoD", r.base, b"x", 1),
    "device to device, target": lambda r: r.ok("cuMemcpyDtoD", r.base, r.at(1), 1),
    "device to device, source": lambda r: r.ok("cuMemcpyDtoD", r.at(1), r.base, 1),
    "device to host, asynchronous": lambda r: r.ok("cuMemcpyDtoHAsync", bytearray(1), r.base, 1, 0),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_unmapping_under_work_in_flight_is_reported(rig, fakecuda, work):
    rig.commit(0, 2)
    work(rig)
    assert in_flight(rig, fakecuda)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_unmapping_after_synchronising_is_clean(rig, fakecuda, work):
    rig.commit(0, 2)
    work(rig)
    rig.ok("cuCtxSynchronize")
    assert not in_flight(rig, fakecuda)


def test_a_copy_to_the_host_waits_for_what_came_before(rig, fakecuda):
    rig.commit(0)
    rig.fill(0, 1)
    rig.read(0)
    assert not in_flight(rig, fakecuda)


def test_only_the_range_in_use_is_guarded(rig, fakecuda):
    rig.commit(0, 2)
    rig.fill(0, 1)
    assert not in_flight(rig, fakecuda, granule=1)
    assert in_flight(rig, fakecuda, granule=0)


def test_waiting_for_another_stream_proves_nothing(rig, fakecuda):
    used, other = (rig.get("cuStreamCreate", 1) for _ in range(2))
    rig.commit(0)
    rig.fill(0, 1, stream=used)
    for stream in (other, 0):
        rig.ok("cuStreamSynchronize", stream)
    assert in_flight(rig, fakecuda)
    rig.commit(0)
    rig.fill(0, 1, stream=used)
    rig.ok("cuStreamSynchronize", used)
    assert not in_flight(rig, fakecuda)


def test_an_event_proves_only_what_came_before_it(rig, fakecuda):
    stream = rig.get("cuStreamCreate", 1)
    event = rig.get("cuEventCreate", 2)
    rig.commit(0, 2)
    rig.fill(0, 1, stream=stream)
    rig.ok("cuEventRecord", event, stream)
    rig.fill(1, 1, stream=stream)
    rig.ok("cuEventSynchronize", event)
    assert not in_flight(rig, fakecuda, granule=0)
    assert in_flight(rig, fakecuda, granule=1)


def test_waiting_for_an_event_orders_two_streams(rig, fakecuda):
    first, second = (rig.get("cuStreamCreate", 1) for _ in range(2))
    event = rig.get("cuEventCreate", 2)
    rig.commit(0)
    rig.fill(0, 1, stream=first)
    rig.ok("cuEventRecord", event, first)
    rig.ok("cuStreamWaitEvent", second, event, 0)
    rig.ok("cuStreamSynchronize", second)
    assert not in_flight(rig, fakecuda)


@pytest.mark.parametrize(("flags", "flying"), [(0, False), (1, True)])
def test_the_default_stream_waits_for_blocking_streams_only(rig, fakecuda, flags, flying):
    stream = rig.get("cuStreamCreate", flags)
    rig.commit(0, 2)
    rig.fill(0, 1, stream=stream)
    rig.read(1)  # on the default stream, and waits
    assert in_flight(rig, fakecuda) is flying


@pytest.mark.parametrize(("flags", "flying"), [(0, False), (1, True)])
def test_only_blocking_streams_wait_for_the_default_stream(rig, fakecuda, flags, flying):
    stream = rig.get("cuStreamCreate", flags)
    rig.commit(0, 2)
    rig.fill(0, 1)
    rig.fill(1, 1, stream=stream)
    rig.ok("cuStreamSynchronize", stream)
    assert in_flight(rig, fakecuda) is flying


def test_a_query_that_says_done_counts_as_waiting(rig, fakecuda):
    rig.commit(0)
    rig.fill(0, 1)
    assert rig.code("cuStreamQuery", 0) == 0
    assert not in_flight(rig, fakecuda)


def test_the_work_of_a_destroyed_stream_goes_on(rig, fakecuda):
    stream = rig.get("cuStreamCreate", 1)
    rig.commit(0)
    rig.fill(0, 1, stream=stream)
    rig.ok("cuStreamDestroy", stream)
    assert rig.code("cuStreamSynchronize", stream) == INVALID_HANDLE
    fakecuda.forgive()
    assert in_flight(rig, fakecuda)


def test_another_devices_synchronisation_proves_nothing(rig, fakecuda):
    rig.commit(0)
    rig.fill(0, 1)
    rig.ok("cuCtxSetCurrent", rig.get("cuDevicePrimaryCtxRetain", 1))
    rig.ok("cuCtxSynchronize")
    rig.ok("cuDevicePrimaryCtxRelease", 1)
    assert in_flight(rig, fakecuda)


def test_busy_work_takes_its_time_on_its_own_stream(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", busy_ms=20000)
    rig = Rig()
    stream, other = (rig.get("cuStreamCreate", 1) for _ in range(2))
    event = rig.get("cuEventCreate", 0)
    rig.commit(0, 2)
    rig.fill(0, 1, stream=stream)
    rig.ok("cuEventRecord", event, stream)
    assert rig.code("cuStreamQuery", stream) == NOT_READY
    assert rig.code("cuEventQuery", event) == NOT_READY
    assert rig.code("cuStreamQuery", other) == 0
    assert rig.unmap(1) == 0  # idle
    assert rig.unmap(0) == 0  # busy, and not waited for
    assert [text[:2] for text in fakecuda.forgive()] == ["U3"]
    fakecuda.reset()


def test_events_tell_the_time_of_their_streams_work(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", busy_ms=30)
    rig = Rig()
    start, end, untimed = (rig.get("cuEventCreate", flags) for flags in (0, 0, 2))
    rig.commit(0)
    rig.ok("cuEventRecord", start, 0)
    rig.fill(0, 1)
    rig.ok("cuEventRecord", end, 0)
    assert rig.code("cuEventElapsedTime", start, end) == NOT_READY
    rig.ok("cuEventSynchronize", end)
    assert rig.get("cuEventElapsedTime", start, end) >= 30
    assert rig.code("cuEventElapsedTime", start, untimed) == INVALID_HANDLE
    rig.close()


def test_an_unmap_that_waits_leaves_nothing_in_flight(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", busy_ms=20, unmap_waits=1)
    rig = Rig()
    rig.commit(0, 2)
    rig.fill(0, 1)
    assert rig.unmap(1) == 0
    assert rig.code("cuStreamQuery", 0) == 0
    rig.fill(0, 1)
    assert rig.unmap(0) == 0
    rig.close()


NEEDS_CONTEXT = {
    "cuMemGetInfo": (),
    "cuCtxSynchronize": (),
    "cuCtxGetDevice": (),
    "cuMemsetD8": (0, 0, 1),
    "cuMemcpyDtoH": (bytearray(1), 0, 1),
    "cuStreamCreate": (0,),
    "cuEventCreate": (0,),
}


@pytest.mark.parametrize("name", NEEDS_CONTEXT)
def test_without_a_current_context_there_is_no_work(rig, name):
    rig.ok("cuCtxSetCurrent", 0)
    assert rig.code(name, *NEEDS_CONTEXT[name]) == INVALID_CONTEXT


@pytest.mark.parametrize("name", NEEDS_CONTEXT)
def test_a_released_context_is_destroyed_for_those_who_still_use_it(fakecuda, name):
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    driver.cuDevicePrimaryCtxRelease(0)
    assert getattr(driver, name)(*NEEDS_CONTEXT[name])[0] == DESTROYED


def test_memory_calls_need_no_context_and_outlive_it(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB")
    rig = Rig()
    rig.commit(0, 2)
    rig.fill(0, 5, 2)
    rig.ok("cuDevicePrimaryCtxRelease", 0)  # waits for the fill
    assert rig.unmap(1) == 0
    rig.commit(1)
    rig.context = rig.get("cuDevicePrimaryCtxRetain", 0)
    rig.ok("cuCtxSetCurrent", rig.context)
    assert rig.read(0) == b"\5"
    rig.close()


def test_a_context_is_current_in_its_own_thread_only(rig):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(rig.code("cuCtxSynchronize")))
    thread.start()
    thread.join()
    assert seen == [INVALID_CONTEXT]
    assert rig.code("cuCtxSynchronize") == 0


def test_contexts_stack_and_a_stale_one_is_refused(rig, fakecuda):
    other = rig.get("cuDevicePrimaryCtxRetain", 1)
    rig.ok("cuCtxPushCurrent", other)
    assert int(rig.get("cuCtxGetDevice")) == 1
    assert int(rig.get("cuCtxPopCurrent")) == int(other)
    assert int(rig.get("cuCtxGetDevice")) == 0
    rig.ok("cuDevicePrimaryCtxRelease", 1)
    assert rig.code("cuCtxSetCurrent", other) == INVALID_CONTEXT
    assert rig.code("cuDevicePrimaryCtxRelease", 1) == INVALID_CONTEXT
    assert [text.split()[0] for text in fakecuda.forgive()] == ["X1", "X3"]


def test_streams_and_events_belong_to_their_context(rig, fakecuda):
    stream, event = rig.get("cuStreamCreate", 0), rig.get("cuEventCreate", 0)
    rig.ok("cuCtxSetCurrent", rig.get("cuDevicePrimaryCtxRetain", 1))
    assert rig.code("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert rig.code("cuEventRecord", event, 0) == INVALID_HANDLE
    rig.ok("cuDevicePrimaryCtxRelease", 1)
    rig.ok("cuCtxSetCurrent", rig.context)
    rig.ok("cuStreamDestroy", stream)
    rig.ok("cuEventDestroy", event)
    assert rig.code("cuStreamDestroy", stream) == INVALID_HANDLE
    assert rig.code("cuEventDestroy", event) == INVALID_HANDLE
    assert [text.split()[0] for text in fakecuda.forgive()] == ["S3"] * 4


def test_a_bad_copy_can_lose_the_device(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", bad_copy=700)
    rig = Rig()
    assert rig.code("cuMemcpyDtoH", bytearray(1), rig.base, 1) == 700
    for name, arguments in (("cuMemUnmap", (rig.base, GRANULE)), ("cuCtxSynchronize", ())):
        assert rig.code(name, *arguments) == 700
    assert rig.code("cuDriverGetVersion") == 0
    assert fakecuda.report()["sticky"] == 700


def test_faults_hit_the_call_that_was_named(rig, fakecuda):
    fakecuda.fail("cuMemCreate:2,cuMemGetInfo:2+=999")
    handle = rig.create()
    assert rig.code("cuMemCreate", GRANULE, rig.properties, 0) == 2
    rig.ok("cuMemRelease", rig.create())
    assert [rig.code("cuMemGetInfo") for _ in range(4)] == [0, 999, 999, 999]
    fakecuda.fail("cuMemCreate:1=801")
    assert rig.code("cuMemCreate", GRANULE, rig.properties, 0) == 801
    fakecuda.fail("")
    assert rig.code("cuMemGetInfo") == 0
    rig.ok("cuMemRelease", handle)
    assert fakecuda.report()["injected"] == 5


def test_limits_of_address_space_and_mappings_are_out_of_memory(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", va_limit="1MiB", max_mappings=2)
    rig = Rig()
    assert rig.code("cuMemAddressReserve", (1 << 20) + GRANULE, 0, 0, 0) == 2
    rig.commit(0, 2)
    handle = rig.create()
    assert rig.map(2, handle) == 0
    rig.ok("cuMemRelease", handle)
    assert rig.access(2) == 2
    assert rig.access(0, 2, flags=1) == 0  # no new mapping
    assert rig.unmap(0) == 0
    assert rig.access(2) == 0
    rig.close()


def test_recommended_and_minimum_granularity_differ(fakecuda):
    from fakecuda.rig import Rig

    fakecuda.reset(granularity="64KiB", granularity_rec="2MiB")
    rig = Rig()
    kinds = driver.CUmemAllocationGranularity_flags
    for kind, nbytes in (
        (kinds.CU_MEM_ALLOC_GRANULARITY_MINIMUM, 64 << 10),
        (kinds.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 2 << 20),
    ):
        assert rig.get("cuMemGetAllocationGranularity", rig.properties, kind) == nbytes
    rig.close()


def test_a_device_address_faults_on_the_cpu(python_with_fakecuda):
    done = python_with_fakecuda(
        "import ctypes\n"
        "from fakecuda.rig import Rig\n"
        "rig = Rig(); rig.commit(0); print('mapped', flush=True)\n"
        "ctypes.string_at(rig.base, 1)\n",
        granularity="64KiB",
    )
    assert (done.returncode, done.stdout) == (-11, "mapped\n")


def test_an_exit_report_names_what_was_left(python_with_fakecuda):
    done = python_with_fakecuda(
        "from fakecuda.rig import Rig\nrig = Rig(); rig.commit(0, 3); rig.create()",
        granularity="64KiB",
    )
    live = done.reports[0]["live"]
    assert (live["reservations"], live["mappings"], live["handles"]) == (1, 3, 1)
    assert live["physical_bytes"] == 4 * GRANULE
    assert live["context_refs"] == 1
    with pytest.raises(AssertionError):
        done.assert_clean()
