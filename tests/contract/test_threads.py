"""One buffer changed by several threads at once stays whole, on every backing."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from vmtool.errors import UsageError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Tier

THREADS = 4


@pytest.fixture
def often():
    """Switch threads as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def rounds(platform):
    """How often each thread tries: the stand-in device is slow."""
    return 400 if platform.backing.tier is Tier.HOST else 60


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


def test_one_close_of_several_is_the_one(platform, often):
    granule = platform.backing.granularity
    buffer = VirtualBuffer(platform.backing, 4 * granule, governor=platform.governor)
    buffer.grow_to(2 * granule)
    assert run_threads(lambda _chance: buffer.close()) == []
    assert buffer.closed
    assert platform.leased() == 0
