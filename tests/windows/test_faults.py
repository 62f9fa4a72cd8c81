"""Every Win32 call of the backing fails in turn; a failed call changes nothing (B8, B9)."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import pytest

if sys.platform != "win32":
    pytest.skip("the Windows backing needs Windows, or Wine", allow_module_level=True)

from vmtool.errors import CallError, UsageError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.errors import OutOfMemoryError, QuarantineError
from vmtool.memory.governor import Governor, Tier
from vmtool.memory.windows import backing
from vmtool.memory.windows.backing import WindowsBacking
from vmtool.memory.windows.calls import CALLS

GRANULES = 16
# Growth, holes, releases across blocks, and large commits where small ones were.
STEPS = [
    ("commit", 0, 4),
    ("commit", 8, 2),
    ("release", 1, 2),
    ("commit", 4, 4),
    ("commit", 1, 2),
    ("release", 3, 6),
    ("commit", 15, 1),
    ("commit", 3, 6),
    ("release", 0, 8),
    ("commit", 0, 8),
]


class CheckedBuffer:
    """A reservation on a backing whose calls are recorded; every granule's first byte is marked."""

    def __init__(self, method, recorder, kernel):
        self.kernel = kernel
        self.backing = WindowsBacking(method, calls=recorder.wrap(CALLS))
        self.granule = self.backing.granularity
        self.reservation = self.backing.reserve(GRANULES * self.granule)

    def do(self, operation, first, count):
        call = getattr(self.backing, operation)
        call(self.reservation, first * self.granule, count * self.granule)
        if operation == "commit":
            for at in range(first, first + count):
                address = self.reservation.base + at * self.granule
                assert ctypes.string_at(address, 1) == b"\0"
                ctypes.memset(address, at + 1, 1)

    def belief(self):
        return list(self.reservation.blocks), list(self.reservation.quarantined)

    def check(self):
        """Hold the belief against the kernel's view, and find every mark."""
        states = self.kernel.states(self.reservation)
        for at, state in enumerate(states):
            span = (at * self.granule, (at + 1) * self.granule)
            committed = self.reservation.blocks.covers(*span)
            if self.backing.method == "decommit" and self.reservation.quarantined.covers(*span):
                continue  # neither committing nor decommitting worked: the state is not known
            owned = committed or self.reservation.quarantined.covers(*span)
            assert state == (self.kernel.committed if owned else self.kernel.reserved), at
            if committed:
                assert ctypes.string_at(self.reservation.base + span[0], 1)[0] == at + 1

    def attempt(self, step):
        """Do a step; if it fails, check that it says what happened, and do it again."""
        before = self.belief()
        try:
            self.do(*step)
        except CallError:
            assert self.belief() == before
            self.check()
            self.attempt(step)
        except QuarantineError as error:
            assert isinstance(error.__cause__, CallError)
            assert self.reservation.quarantined.covers(*error.span)
        except UsageError:
            assert self.reservation.quarantined.total
        self.check()

    def close(self):
        try:
            self.backing.unreserve(self.reservation)
        except CallError:
            assert not self.reservation.closed
            self.check()
            self.close()
        base, capacity = self.reservation.base, self.reservation.capacity
        for address in range(base, base + capacity, 65536):
            assert self.kernel.region(address).state == self.kernel.free


def run(method, recorder, kernel):
    subject = CheckedBuffer(method, recorder, kernel)
    for step in STEPS:
        subject.attempt(step)
    subject.close()
    return subject


def test_every_call_fails_once(method, kernel, new_recorder):
    flawless = new_recorder()
    run(method, flawless, kernel)
    for nth in range(1, len(flawless.made)):  # the first call reserves
        recorder = new_recorder()
        recorder.fails = lambda index, _name, nth=nth: index == nth
        run(method, recorder, kernel)


def test_every_call_fails_and_so_does_the_first_undo(method, kernel, new_recorder):
    flawless = new_recorder()
    run(method, flawless, kernel)
    for nth in range(1, len(flawless.made)):
        recorder = new_recorder()
        recorder.fails = lambda index, _name, nth=nth: index in {nth, nth + 1}
        run(method, recorder, kernel)


def test_a_refusal_without_memory_to_explain_it_leaves_the_books_true(
    method, kernel, new_recorder, monkeypatch
):
    def explain(*_arguments, **_more):
        raise MemoryError

    monkeypatch.setattr(backing, "call_error", explain)
    flawless = new_recorder()
    run(method, flawless, kernel)
    for nth in range(1, len(flawless.made)):
        recorder = new_recorder()
        recorder.fails = lambda index, _name, nth=nth: index == nth
        subject = CheckedBuffer(method, recorder, kernel)
        for operation, first, count in STEPS:
            before = subject.belief()
            try:
                subject.do(operation, first, count)
            except MemoryError:
                # Of a release, what Windows had taken by then is free.
                assert operation == "release" or subject.belief()[0] == before[0]
            except UsageError:
                assert recorder.failed  # the step follows one that was refused
            subject.check()
        with contextlib.suppress(MemoryError):
            subject.close()
        if not subject.reservation.closed:
            subject.close()


@pytest.mark.parametrize("method", ["view", "private"])
def test_coalescing_that_always_fails_costs_no_memory(method, kernel, new_recorder):
    """The seams are mended as soon as Windows lets us, and the whole range is used again."""
    recorder = new_recorder()
    subject = CheckedBuffer(method, recorder, kernel)
    subject.do("commit", 0, 16)
    recorder.fails = lambda _index, name: name == "VirtualFree" and method == "view"
    if method == "view":
        subject.do("release", 0, 8)
        subject.do("release", 8, 8)
        with pytest.raises(CallError, match="MEM_COALESCE_PLACEHOLDERS"):
            subject.do("commit", 4, 2)
        assert not subject.reservation.quarantined.total
        recorder.fails = lambda _index, _name: False
    else:
        subject.do("release", 0, 16)
    subject.do("commit", 0, 16)
    subject.check()
    subject.close()


@pytest.mark.parametrize("method", ["view", "private"])
def test_a_granule_that_is_not_given_back_is_quarantined_alone(method, kernel, new_recorder):
    recorder = new_recorder()
    subject = CheckedBuffer(method, recorder, kernel)
    subject.do("commit", 0, 8)
    third = len(recorder.made) + 2
    recorder.fails = lambda index, _name: index == third
    granule = subject.granule
    with pytest.raises(QuarantineError) as caught:
        subject.do("release", 0, 8)
    assert caught.value.span == (2 * granule, 3 * granule)
    assert subject.belief() == ([], [(2 * granule, 3 * granule)])
    subject.check()
    with pytest.raises(UsageError, match="quarantined"):
        subject.do("commit", 0, 4)
    subject.do("commit", 0, 2)
    subject.do("commit", 3, 13)
    subject.close()


def test_a_section_handle_that_stays_open_keeps_its_granule(kernel, new_recorder):
    """The section holds its charge until its handle is closed, so the bytes stay counted."""
    recorder = new_recorder()
    subject = CheckedBuffer("view", recorder, kernel)
    closes = iter([False, False, True])
    recorder.fails = lambda _index, name: name == "CloseHandle" and next(closes)
    with pytest.raises(QuarantineError, match="CloseHandle"):
        subject.do("commit", 4, 4)
    granule = subject.granule
    assert subject.belief() == ([], [(6 * granule, 7 * granule)])
    subject.check()
    subject.close()


def test_the_commit_limit_is_named(method, kernel, new_recorder):
    """Wine has no commit limit, so the error is put in the call's place."""
    recorder = new_recorder()
    subject = CheckedBuffer(method, recorder, kernel)
    recorder.fails = lambda _index, name: (
        name
        in {
            "CreateFileMappingW",
            "VirtualAlloc2",
            "VirtualAlloc",
        }
    )
    with pytest.raises(OutOfMemoryError) as caught:
        subject.do("commit", 0, 4)
    assert "ERROR_COMMITMENT_LIMIT (1455)" in str(caught.value)
    assert "commit limit" in caught.value.cause
    assert caught.value.hint
    recorder.fails = lambda _index, _name: False
    subject.close()


@pytest.mark.parametrize(
    ("code", "name"), [(8, "ERROR_NOT_ENOUGH_MEMORY"), (87, "ERROR_INVALID_PARAMETER")]
)
def test_a_refused_reservation_is_attributed_to_addresses(method, new_recorder, code, name):
    recorder = new_recorder()
    recorder.code = code
    recorder.fails = lambda _index, _name: True
    backing = WindowsBacking(method, calls=recorder.wrap(CALLS))
    with pytest.raises(OutOfMemoryError) as caught:
        backing.reserve(1 << 30)
    assert "memory did not run out" in caught.value.cause
    assert f"{name} ({code})" in str(caught.value)


def test_the_lease_follows_what_is_quarantined(kernel, new_recorder):
    recorder = new_recorder()
    backing = WindowsBacking("private", calls=recorder.wrap(CALLS))
    governor = Governor({Tier.HOST: 1 << 30})
    buffer = VirtualBuffer(backing, 16 * backing.granularity, governor=governor)
    buffer.grow_to(8 * backing.granularity)
    third = len(recorder.made) + 2
    recorder.fails = lambda index, _name: index == third
    with pytest.raises(QuarantineError):
        buffer.release(0, 8 * backing.granularity)
    assert governor.ledger(Tier.HOST).used_bytes == backing.granularity
    buffer.close()
    assert governor.ledger(Tier.HOST).used_bytes == 0


def test_a_forgotten_reservation_gives_back_its_quarantine(method, kernel, new_recorder):
    recorder = new_recorder()
    subject = CheckedBuffer(method, recorder, kernel)
    subject.do("commit", 0, 8)
    base = subject.reservation.base
    del subject
    gc.collect()
    assert kernel.region(base).state == kernel.free
