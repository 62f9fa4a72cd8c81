"""Work in flight, streams and events on the stand-in (U3, S1, S3)."""

import pytest

INVALID_HANDLE, NOT_READY = 400, 600


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


def test_events_measure_the_work_of_their_stream(fakecuda):
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
