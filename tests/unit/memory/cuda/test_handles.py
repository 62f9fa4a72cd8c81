"""The pool of handles, on the stand-in: what is kept, charged, shared, trimmed and quarantined."""

from __future__ import annotations

import gc
import threading

import pytest

from vmtool.errors import UsageError
from vmtool.memory.buffer import AuthorityError, VirtualBuffer
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.memory.cuda.handles import HandlePool
from vmtool.memory.governor import BudgetError, Governor, Role, Tier

CHUNK = 64 << 10


class Device:
    """A pooled backing on the stand-in with its governor."""

    def __init__(self, *, limit=1 << 30, retain=None):
        self.context = DeviceContext(0)
        self.governor = Governor({Tier.DEVICE: limit})
        properties = self.context.driver.allocation_properties(0)
        self.pool = HandlePool(
            self.context, CHUNK, properties, governor=self.governor, retain_bytes=retain
        )
        self.backing = CudaBacking(self.context, chunk=CHUNK, source=self.pool)

    def buffer(self, granules=16):
        return VirtualBuffer(self.backing, granules * CHUNK, governor=self.governor)

    def charged(self):
        return self.governor.ledger(Tier.DEVICE).used_bytes

    def write(self, address, data):
        with self.context.current():
            self.context.call("cuMemcpyHtoD", address, data, len(data))

    def read(self, address, nbytes):
        data = bytearray(nbytes)
        with self.context.current():
            self.context.call("cuMemcpyDtoH", data, address, nbytes)
        return bytes(data)


@pytest.fixture
def make(fakecuda):
    fakecuda.reset(granularity="64KiB", poison=0xA5)
    made = []

    def device(**settings):
        made.append(Device(**settings))
        return made[-1]

    yield device
    gc.collect()
    for each in made:
        each.pool.close()
        each.context.close()


def test_unmapped_handles_stay_charged_and_are_used_again(make, fakecuda):
    device = make()
    with device.buffer() as buffer:
        buffer.grow_to(4 * CHUNK)
        assert device.charged() == 4 * CHUNK
        assert device.governor.ledger(Tier.DEVICE).by_role == {Role.POOL: 4 * CHUNK}
        buffer.shrink_to(CHUNK)
        assert device.charged() == 4 * CHUNK
        buffer.grow_to(4 * CHUNK)
        snapshot = device.pool.snapshot()
        assert (snapshot.created, snapshot.hits, snapshot.returned) == (4, 3, 3)
        assert (snapshot.mapped, snapshot.pooled) == (4, 0)
    snapshot = device.pool.snapshot()
    assert (snapshot.mapped, snapshot.pooled) == (0, 4)
    assert snapshot.charged_bytes == device.charged() == 4 * CHUNK
    assert fakecuda.report()["live"]["physical_bytes"] == 4 * CHUNK


def test_handles_move_between_reservations_without_their_bytes(make):
    device = make()
    with device.buffer() as one, device.buffer() as other:
        one.grow_to(2 * CHUNK)
        device.write(one.base, b"\x5a" * 2 * CHUNK)
        one.shrink_to(0)
        other.grow_to(2 * CHUNK)
        assert device.pool.snapshot().hits == 2
        assert device.read(other.base, 2 * CHUNK) == bytes(2 * CHUNK)


def test_the_bound_and_trim_give_memory_back(make, fakecuda):
    device = make(retain=3 * CHUNK)
    with device.buffer() as buffer:
        buffer.grow_to(8 * CHUNK)
        buffer.shrink_to(0)
    assert device.pool.snapshot().pooled == 3
    assert device.charged() == fakecuda.report()["live"]["physical_bytes"] == 3 * CHUNK
    assert device.pool.trim(CHUNK) == 2 * CHUNK
    assert device.pool.trim() == CHUNK
    assert device.pool.trim() == device.charged() == 0


def test_another_authority_is_refused_before_anything_is_reserved(make, fakecuda):
    device = make()
    with pytest.raises(AuthorityError):
        VirtualBuffer(device.backing, CHUNK, governor=Governor())
    assert fakecuda.report()["live"]["reservations"] == 0
    VirtualBuffer(device.backing, CHUNK).close()


def test_the_budget_bounds_what_is_created_not_what_is_mapped(make):
    device = make(limit=4 * CHUNK)
    with device.buffer() as buffer:
        buffer.grow_to(4 * CHUNK)
        with pytest.raises(BudgetError):
            buffer.grow_to(5 * CHUNK)
        assert (buffer.committed, device.charged()) == (4 * CHUNK, 4 * CHUNK)
        buffer.shrink_to(0)
        buffer.grow_to(4 * CHUNK)


def test_a_shared_prefix_lives_until_its_last_reader(make, fakecuda):
    device = make()
    owner, reader = device.buffer(), device.buffer()
    owner.grow_to(4 * CHUNK)
    device.write(owner.base + CHUNK, b"prefix")
    device.backing.share(reader.reservation, 0, owner.reservation, CHUNK, 2 * CHUNK)
    assert reader.committed == 2 * CHUNK
    assert device.charged() == 4 * CHUNK
    assert device.pool.snapshot().shared == 2
    assert device.read(reader.base, 6) == b"prefix"
    with pytest.raises(CudaError):
        device.write(reader.base, b"not mine")
    owner.close()
    assert device.read(reader.base, 6) == b"prefix"
    assert (device.pool.snapshot().mapped, device.pool.snapshot().pooled) == (2, 2)
    reader.close()
    assert (device.pool.snapshot().mapped, device.pool.snapshot().pooled) == (0, 4)


def test_a_share_that_fails_changes_nothing(make, fakecuda):
    device = make()
    with device.buffer() as owner, device.buffer() as reader:
        owner.grow_to(4 * CHUNK)
        before = device.pool.snapshot()
        for fault in ("cuMemMap:1=999", "cuMemMap:2=999", "cuMemSetAccess:1=999"):
            fakecuda.fail(fault)
            with pytest.raises(CudaError):
                device.backing.share(reader.reservation, 0, owner.reservation, 0, 3 * CHUNK)
            fakecuda.fail("")
            assert device.pool.snapshot() == before
            assert reader.committed == 0
        with pytest.raises(UsageError):
            device.backing.share(reader.reservation, 0, owner.reservation, 3 * CHUNK, 2 * CHUNK)


def test_memory_in_other_chunks_is_not_shared(make):
    device = make()
    cold = CudaBacking(device.context, chunk=4 * CHUNK)
    other = cold.reserve(8 * CHUNK)
    cold.commit(other, 4 * CHUNK, 4 * CHUNK)
    with device.buffer() as buffer:
        with pytest.raises(UsageError, match="chunks"):
            device.backing.share(buffer.reservation, 0, other, 4 * CHUNK, 4 * CHUNK)
        assert buffer.committed == 0
    cold.unreserve(other)


def test_a_pool_is_not_trimmed_below_nothing(make):
    device = make()
    device.pool.fill(3 * CHUNK)
    with pytest.raises(UsageError, match="-1 bytes"):
        device.pool.trim(-1)
    assert device.pool.snapshot().pooled == 3


def test_only_pooled_memory_is_shared(make):
    device = make()
    cold = CudaBacking(device.context, chunk=CHUNK)
    reservation = cold.reserve(CHUNK)
    with pytest.raises(UsageError):
        cold.share(reservation, 0, reservation, 0, CHUNK)
    cold.unreserve(reservation)


def test_a_handle_that_is_not_taken_back_is_quarantined_and_charged(make, fakecuda):
    device = make(retain=0)
    with device.buffer() as buffer:
        buffer.grow_to(2 * CHUNK)
        fakecuda.fail("cuMemRelease:1=999")
        with pytest.raises(Exception, match="quarantined"):
            buffer.shrink_to(0)
        fakecuda.fail("")
    snapshot = device.pool.snapshot()
    assert (snapshot.quarantined, snapshot.released) == (1, 1)
    assert device.charged() == snapshot.charged_bytes == CHUNK
    for handle in device.pool.quarantined:
        device.context.call("cuMemRelease", handle)


def test_a_refused_creation_is_not_charged(make, fakecuda):
    device = make()
    with device.buffer() as buffer:
        fakecuda.fail("cuMemCreate:3=2")
        with pytest.raises(CudaError):
            buffer.grow_to(4 * CHUNK)
        fakecuda.fail("")
        assert buffer.committed == 0
        assert device.charged() == 2 * CHUNK  # the two that were made are kept
        assert device.pool.snapshot().pooled == 2


def test_closing_with_mapped_handles_is_refused(make):
    device = make()
    with device.buffer() as buffer:
        buffer.grow_to(CHUNK)
        with pytest.raises(UsageError):
            device.pool.close()


def test_threads_share_one_pool(make):
    device = make()
    failures = []

    def work():
        try:
            with device.buffer() as buffer:
                for _ in range(30):
                    buffer.grow_to(8 * CHUNK)
                    buffer.shrink_to(2 * CHUNK)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    snapshot = device.pool.snapshot()
    assert snapshot.mapped == 0
    assert snapshot.pooled == snapshot.created <= 32
    assert device.charged() == snapshot.charged_bytes


def test_a_snapshot_outlives_the_pool(make):
    device = make()
    with device.buffer() as buffer:
        buffer.grow_to(CHUNK)
        snapshot = device.pool.snapshot()
    assert snapshot.mapped == 1


def test_a_pool_can_be_filled_ahead_within_its_bound_and_budget(make, fakecuda):
    device = make(limit=6 * CHUNK, retain=4 * CHUNK)
    device.pool.fill(100 * CHUNK)
    assert device.pool.snapshot().pooled == 4
    device.pool.fill(2 * CHUNK)
    assert device.charged() == 4 * CHUNK
    with device.buffer() as buffer:
        buffer.grow_to(4 * CHUNK)
        assert device.pool.snapshot().hits == 4
        with pytest.raises(BudgetError):
            device.pool.fill(3 * CHUNK)
        assert device.charged() == 6 * CHUNK
    fakecuda.fail("cuMemCreate:1=2")
    device.pool.trim()
    with pytest.raises(CudaError):
        device.pool.fill(CHUNK)
    fakecuda.fail("")
    assert device.charged() == 0


def test_new_handles_are_cleared_as_kept_ones_are(make):
    device = make()
    with device.buffer() as buffer:
        buffer.grow_to(3 * CHUNK)
        assert device.pool.snapshot().hits == 0
        assert device.read(buffer.base, 3 * CHUNK) == bytes(3 * CHUNK)  # the stand-in poisons


def test_a_pool_of_a_lost_device_can_be_closed(fakecuda):
    fakecuda.reset(granularity="64KiB")
    device = Device()
    buffer = device.buffer()
    buffer.grow_to(2 * CHUNK)
    fakecuda.fail("cuCtxSynchronize:1=700")
    with pytest.raises(CudaError):
        buffer.shrink_to(0)
    buffer.close()
    device.pool.close()
    assert device.charged() == 0
    device.context.close()
    fakecuda.reset()


def test_an_interrupt_in_a_commit_leaves_nothing_mapped(make, fakecuda, monkeypatch):
    device = make()
    with device.buffer() as buffer:
        call = device.context.call
        made = []

        def interrupted(name, *arguments):
            if name == "cuMemMap" and len(made) == 2:
                raise KeyboardInterrupt
            if name == "cuMemMap":
                made.append(name)
            return call(name, *arguments)

        monkeypatch.setattr(device.context, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.grow_to(4 * CHUNK)
        monkeypatch.undo()
        assert buffer.committed == 0
        assert fakecuda.report()["live"]["mappings"] == 0


def test_a_handle_that_cannot_be_released_does_not_keep_the_others(make, fakecuda):
    device = make()
    with device.buffer() as buffer:
        buffer.grow_to(8 * CHUNK)
    fakecuda.fail("cuMemRelease:1=999")
    backing, pool = device.backing, device.pool
    del device.backing, device.pool, backing, pool, buffer
    gc.collect()
    assert fakecuda.report()["live"]["handles"] == 1
    fakecuda.reset()
    device.pool = HandlePool(
        DeviceContext(0), CHUNK, device.context.driver.allocation_properties(0)
    )


def test_trimming_continues_after_a_handle_that_cannot_be_released(make, fakecuda):
    device = make()
    device.pool.fill(5 * CHUNK)
    fakecuda.fail("cuMemRelease:1=999")
    with pytest.raises(CudaError, match="cuMemRelease"):
        device.pool.trim()
    left = device.pool.snapshot()
    assert (left.released, left.quarantined, left.pooled) == (4, 1, 0)
    assert device.charged() == CHUNK
    for handle in device.pool.quarantined:  # what the stand-in still holds
        device.context.call("cuMemRelease", handle)


def test_a_pool_that_keeps_nothing_still_lets_mappings_share(make, fakecuda):
    device = make(retain=0)
    with device.buffer() as first, device.buffer() as second:
        first.grow_to(2 * CHUNK)
        device.write(first.base, b"shared prefix")
        device.backing.share(second.reservation, 0, first.reservation, 0, 2 * CHUNK)
        assert device.charged() == 2 * CHUNK
        first.shrink_to(0)
        assert device.read(second.base, 13) == b"shared prefix"
        assert device.charged() == 2 * CHUNK
        second.release(0, 2 * CHUNK)
        assert device.charged() == 0
    assert device.pool.snapshot().pooled == 0


def test_a_pool_without_clearing_promises_no_zeroes(fakecuda):
    from vmtool.memory.backing_by_name import open_device

    fakecuda.reset(granularity="64KiB", poison=0xA5)
    backing = open_device("cuda", method="pooled", clear=False)
    assert not backing.zeroes
    reservation = backing.reserve(CHUNK)
    backing.commit(reservation, 0, CHUNK)
    assert "cuMemsetD8" not in fakecuda.report()["calls"]
    backing.unreserve(reservation)
    backing.close()


def test_filling_and_trimming_report_their_progress(make):
    device = make()
    steps = []
    device.pool.fill(5 * CHUNK, progress=lambda: steps.append("fill"))
    device.pool.trim(progress=lambda: steps.append("trim"))
    assert steps == ["fill"] * 5 + ["trim"] * 5
