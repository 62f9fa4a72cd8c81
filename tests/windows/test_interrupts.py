"""Exceptions that come in the middle of a commit or release, as Ctrl-C does by default."""

from __future__ import annotations

import ctypes
import dataclasses
import sys

import pytest

if sys.platform != "win32":
    pytest.skip("the Windows backing needs Windows, or Wine", allow_module_level=True)

from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Governor, Tier
from vmtool.memory.windows.backing import WindowsBacking
from vmtool.memory.windows.calls import CALLS


class Interrupter:
    """Raises KeyboardInterrupt once, just before or just after the call of a given number."""

    def __init__(self, number, *, made):
        self.number, self.made, self.count = number, made, 0

    def wrap(self, calls):
        names = [field.name for field in dataclasses.fields(calls)]
        return dataclasses.replace(
            calls, **{name: self._watched(getattr(calls, name)) for name in names}
        )

    def _watched(self, call):
        def watched(*arguments):
            self.count += 1
            if self.count != self.number:
                return call(*arguments)
            if self.made:
                call(*arguments)
            raise KeyboardInterrupt

        return watched


def use(buffer):
    """Commit around a hole, release across it, and commit the whole again."""
    g = buffer.backing.granularity
    for step, first, count in (
        ("commit", 1, 3),
        ("commit", 6, 1),
        ("release", 2, 1),
        ("commit", 4, 2),
        ("release", 3, 4),
    ):
        getattr(buffer, step)(first * g, count * g)


def count_calls(method):
    counter = Interrupter(0, made=False)
    with VirtualBuffer(WindowsBacking(method, calls=counter.wrap(CALLS)), 1 << 19) as buffer:
        use(buffer)
        return counter.count


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("reused", [False, True])
def test_an_interrupted_call_costs_nothing_but_its_own_work(method, made, reused, kernel):
    for number in range(2, count_calls(method) + 1):  # the first reserves
        governor = Governor()
        calls = Interrupter(number, made=made).wrap(CALLS)
        backing = WindowsBacking(method, calls=calls)
        g = backing.granularity
        buffer = VirtualBuffer(backing, 8 * g, governor=governor)
        base = buffer.base
        with pytest.raises(KeyboardInterrupt):
            use(buffer)
        if reused:
            buffer.commit(7 * g, g)  # what was cut short is mended by whatever comes next
            buffer.release(7 * g, g)
            for start, end in list(buffer.reservation.blocks):
                buffer.release(start, end - start)
            buffer.commit(0, 8 * g)
            assert ctypes.string_at(base, 8 * g) == bytes(8 * g)
        buffer.close()
        assert governor.ledger(Tier.HOST).used_bytes == 0
        assert all(kernel.region(base + at * g).state == kernel.free for at in range(8))
