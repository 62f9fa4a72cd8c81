"""A backing and a buffer under random legal and illegal operations, held against a model."""

from __future__ import annotations

import ctypes
import random
import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vmtool.errors import RefusedError, UsageError
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Governor, Tier

GRANULES = 24
BUDGET = 16


def runs(granules):
    """Return the maximal runs of a set of integers as (start, end)."""
    found = []
    for granule in sorted(granules):
        if found and found[-1][1] == granule:
            found[-1] = (found[-1][0], granule + 1)
        else:
            found.append((granule, granule + 1))
    return found


class BufferMachine(RuleBasedStateMachine):
    """The model is a dictionary from each committed granule to the byte that it was filled with."""

    read_map = None

    @initialize(method=st.sampled_from(host_methods()))
    def make(self, method):
        self.backing = open_backing("host", method=method)
        self.granule = self.backing.granularity
        self.governor = Governor({Tier.HOST: BUDGET * self.granule})
        self.buffer = VirtualBuffer(self.backing, GRANULES * self.granule, governor=self.governor)
        self.base = self.buffer.base
        self.contents = {}
        self.length = 0
        self.random = random.Random(0)

    def teardown(self):
        if hasattr(self, "buffer"):
            self.buffer.close()
            assert self.governor.ledger(Tier.HOST).used_bytes == 0

    def fill(self, granules):
        """Expect zeroes in fresh granules, then stamp them."""
        for granule in granules:
            address = self.base + granule * self.granule
            if self.backing.zeroes:
                assert ctypes.string_at(address, self.granule) == bytes(self.granule)
            stamp = self.random.randrange(1, 256)
            ctypes.memset(address, stamp, self.granule)
            self.contents[granule] = stamp

    @rule(first=st.integers(-1, GRANULES), count=st.integers(-1, 8))
    def commit(self, first, count):
        wanted = range(first, first + count)
        legal = count > 0 and first >= 0 and first + count <= GRANULES
        legal = legal and not self.contents.keys() & set(wanted)
        try:
            self.buffer.commit(first * self.granule, count * self.granule)
        except RefusedError:
            assert len(self.contents) + count > BUDGET
        except UsageError:
            assert not legal
        else:
            assert legal
            assert len(self.contents) + count <= BUDGET
            self.fill(wanted)

    @rule(first=st.integers(-1, GRANULES), count=st.integers(-1, 8))
    def release(self, first, count):
        wanted = set(range(first, first + count))
        legal = count > 0 and wanted <= self.contents.keys()
        try:
            self.buffer.release(first * self.granule, count * self.granule)
        except UsageError:
            assert not legal
        else:
            assert legal
            for granule in wanted:
                del self.contents[granule]

    @rule(offset=st.integers(1, 4095), operation=st.sampled_from(["commit", "release"]))
    def misaligned(self, offset, operation):
        with pytest.raises(UsageError):
            getattr(self.buffer, operation)(offset, self.granule)

    @rule(nbytes=st.integers(-1, (GRANULES + 1) * 4096))
    def grow(self, nbytes):
        missing = set(range(-(-nbytes // self.granule))) - self.contents.keys()
        try:
            self.buffer.grow_to(nbytes)
        except RefusedError:
            assert len(self.contents) + len(missing) > BUDGET
        except UsageError:
            assert not 0 <= nbytes <= GRANULES * self.granule
        else:
            if nbytes > self.length:
                self.length = nbytes
                self.fill(sorted(missing))

    @rule(nbytes=st.integers(0, GRANULES * 4096))
    def shrink(self, nbytes):
        self.buffer.shrink_to(nbytes)
        if nbytes < self.length:
            self.length = nbytes
            keep = -(-nbytes // self.granule)
            self.contents = {g: stamp for g, stamp in self.contents.items() if g < keep}

    @precondition(lambda self: hasattr(self, "buffer"))
    @invariant()
    def it_agrees_with_the_model(self):
        assert self.buffer.base == self.base
        assert len(self.buffer) == self.length
        committed = len(self.contents) * self.granule
        assert self.buffer.committed == committed
        assert self.governor.ledger(Tier.HOST).used_bytes == committed
        blocks = [(s // self.granule, e // self.granule) for s, e in self.buffer.reservation.blocks]
        assert blocks == runs(self.contents)
        for granule, stamp in self.contents.items():
            address = self.base + granule * self.granule
            assert ctypes.string_at(address, self.granule) == bytes([stamp]) * self.granule

    @precondition(lambda self: hasattr(self, "buffer") and type(self).read_map is not None)
    @invariant()
    def it_agrees_with_the_kernel(self):
        areas = type(self).read_map(self.base, GRANULES * self.granule)
        assert sum(end - start for start, end, _ in areas) == GRANULES * self.granule
        writable = [
            (start // self.granule, end // self.granule)
            for start, end, permissions in areas
            if permissions.startswith("rw")
        ]
        expected = runs(self.contents) if self.backing.guards else [(0, GRANULES)]
        assert writable == expected


def test_random_operations(request):
    if sys.platform == "linux":
        BufferMachine.read_map = staticmethod(request.getfixturevalue("kernel_map"))
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        BufferMachine,
        settings=settings(
            deadline=None,
            max_examples=60,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
