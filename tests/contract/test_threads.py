"""Several threads at once: a buffer stays consistent, and a raw reservation refuses, on every backing."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from vmtool.errors import UsageError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.errors import BusyError
from vmtool.memory.governor import Tier
from vmtool.units import MIB

THREADS = 4


@pytest.fixture
def often():
    """Switch threads as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def rounds(platform):
    """How often each thread tries: the stand-in device clears what it commits, Wine asks a server."""
    if platform.backing.tier is Tier.HOST:
        return 100 if sys.platform == "win32" else 400
    return 60 if platform.backing.granularity < MIB else 15


def run_threads(work):
    errors = []

    def run(number):
        try:
            work(random.Random(number))
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_growing_and_shrinking_by_several_threads_loses_no_granule(platform, often):
    granule = platform.backing.granularity
    with VirtualBuffer(platform.backing, 64 * granule, governor=platform.governor) as buffer:

        def work(chance):
            for _ in range(rounds(platform)):
                buffer.grow_to(chance.randrange(64 * granule))
                buffer.shrink_to(chance.randrange(32 * granule))

        assert run_threads(work) == []
        assert list(buffer.reservation.blocks) in ([], [(0, buffer.committed)])
        assert buffer.committed == -(-len(buffer) // granule) * granule
        assert platform.leased() == buffer.committed
        buffer.grow_to(64 * granule)
        platform.memory.write(buffer.base, b"x" * granule)


def test_threads_that_commit_the_same_span_get_it_once(platform, often):
    granule = platform.backing.granularity
    with VirtualBuffer(platform.backing, 16 * granule, governor=platform.governor) as buffer:
        owned = threading.Semaphore(0)

        def work(chance):
            for _ in range(rounds(platform)):
                first = chance.randrange(16)
                try:
                    buffer.commit(first * granule, granule)
                except UsageError:
                    continue  # another thread has it
                owned.release()
                buffer.release(first * granule, granule)

        assert run_threads(work) == []
        assert owned.acquire(blocking=False)
        assert buffer.committed == 0
        assert platform.leased() == 0


def test_of_several_closes_at_once_one_gives_the_memory_back(platform, often):
    granule = platform.backing.granularity
    buffer = VirtualBuffer(platform.backing, 4 * granule, governor=platform.governor)
    buffer.grow_to(2 * granule)
    assert run_threads(lambda _chance: buffer.close()) == []
    assert buffer.closed
    assert platform.leased() == 0


def test_a_reservation_in_use_is_an_error_that_says_so(platform):
    backing = platform.backing
    granule = backing.granularity
    reservation = backing.reserve(4 * granule)
    backing.commit(reservation, 0, granule)
    reservation.begin()  # as a call in another thread does
    for call in (
        lambda: backing.commit(reservation, granule, granule),
        lambda: backing.release(reservation, 0, granule),
        lambda: backing.unreserve(reservation),
    ):
        with pytest.raises(BusyError, match="is used by two threads at once"):
            call()
    reservation.busy = False
    assert list(reservation.blocks) == [(0, granule)]
    backing.release(reservation, 0, granule)
    backing.unreserve(reservation)


def test_threads_in_one_reservation_get_an_error_and_never_a_corrupt_map(platform, often):
    backing = platform.backing
    granule = backing.granularity
    reservation = backing.reserve(16 * granule)

    def work(chance):
        for _ in range(rounds(platform)):
            first = chance.randrange(16)
            try:
                backing.commit(reservation, first * granule, granule)
            except UsageError:
                continue  # in use, or another thread has committed it
            while True:
                try:
                    backing.release(reservation, first * granule, granule)
                    break
                except BusyError:
                    continue

    assert run_threads(work) == []
    assert list(reservation.blocks) == []
    assert reservation.blocks.total == 0
    backing.unreserve(reservation)
