"""Exceptions that signal handlers raise in the middle of a call, as Ctrl-C does by default."""

from __future__ import annotations

import random
import signal

import pytest

from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Governor, Tier


@pytest.fixture
def interrupting():
    """Return a function that makes KeyboardInterrupt appear after so many seconds; 0 stops it."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("this platform has no interval timers")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("method", ["fixed", "protect", "advise"])
def test_closing_gives_back_everything_whenever_a_call_was_interrupted(
    method, interrupting, kernel_map
):
    backing, governor, chance = open_backing(method=method), Governor(), random.Random(method)
    peak = 64 * backing.granularity
    for _ in range(200):
        buffer = VirtualBuffer(backing, peak, governor=governor)
        base = buffer.base
        try:
            interrupting(chance.uniform(1e-5, 1e-3))
            while True:
                buffer.grow_to(chance.randrange(peak))
                buffer.shrink_to(chance.randrange(peak))
        except KeyboardInterrupt:
            interrupting(0)
        buffer.close()
        assert governor.ledger(Tier.HOST).used_bytes == 0
        assert not [mode for _, _, mode in kernel_map(base, peak) if "w" in mode]
