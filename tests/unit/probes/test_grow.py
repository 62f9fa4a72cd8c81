"""A growth goes through its lengths, checked at every step, and by copying; what breaks a promise is named."""

import mmap
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import CallError, UsageError
from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.memory.counters import read_process
from vmtool.memory.governor import BudgetError
from vmtool.probes.grow import MAX_STEPS, PATTERNS, CopiedBuffer, GrowPlan, plan_lengths
from vmtool.probes.grow import run_growth as run_with_error
from vmtool.units import KIB, MIB

MACHINE = read_facts()
PAGE = mmap.ALLOCATIONGRANULARITY  # a granule: more than a page on Windows
METHODS = host_methods()


def plan_for(pattern="linear", to=2 * MIB, step=100 * KIB, *, budget=64 * MIB, copying=False):
    return GrowPlan(tuple(plan_lengths(pattern, to, step)), budget, copying)


def grow_with_error(backing, plan, **options):
    """Return the result and what ended it."""
    return run_with_error(backing, plan, MACHINE, **options)


def run_growth(backing, plan, **options):
    return grow_with_error(backing, plan, **options)[0]


def failed(result):
    """Return the name of the first check that failed, or ``None``."""
    return next((check.name for check in result.checks if check.failed), None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_promise_holds_for_every_method_and_pattern(method, pattern):
    plan = plan_for(pattern)
    backing = open_backing(method=method)
    result = run_growth(backing, plan)
    assert result.complete
    assert failed(result) is None
    assert result.steps.length_bytes == plan.lengths
    assert len(result.steps.elapsed_ns) == len(plan.lengths)
    assert all(
        committed == -(-length // result.granule_bytes) * result.granule_bytes
        for length, committed in zip(
            result.steps.length_bytes, result.steps.committed_bytes, strict=True
        )
    )
    compared = {check.name: check.values["compared"] for check in result.checks}
    assert compared["base"] == len(plan.lengths)
    assert compared["contents"] > 0
    promised = result.growing.samples if backing.zeroes else 0  # macOS's protect and advise don't
    assert compared["zero"] == promised


def test_nothing_stays_mapped():
    run_growth(open_backing(), plan_for())
    before = read_process()
    run_growth(open_backing(), plan_for(to=8 * MIB))
    if before.address_space_bytes is not None:
        assert read_process().address_space_bytes - before.address_space_bytes < 4 * MIB


def test_an_interruption_leaves_a_valid_partial_result():
    calls = iter([False] * 5 + [True] * 100)
    result = run_growth(open_backing(), plan_for(copying=True), stop=lambda: next(calls))
    assert result.interrupted
    assert not result.complete
    assert len(result.steps.elapsed_ns) == len(result.steps.length_bytes) == 5
    assert result.copying is None
    assert failed(result) is None


def test_the_budget_is_never_exceeded():
    result, error = grow_with_error(open_backing(), plan_for(budget=MIB))
    assert isinstance(error, BudgetError)
    assert max(result.steps.committed_bytes) <= MIB
    assert not result.complete
    ended = result.ended_by
    assert (ended.operation, ended.call, ended.symbol) == ("grow", "", "BudgetError")
    assert ended.length_bytes > MIB


class Failing:
    """A backing of which one call of a kind fails."""

    def __init__(self, real, call, number, error):
        self._real = real
        self._call = call
        self._left = number
        self._error = error

    def __getattr__(self, name):
        found = getattr(self._real, name)
        if name != self._call:
            return found
        self._left -= 1
        if self._left:
            return found

        def fail(*arguments):
            if name == "unreserve":
                found(*arguments)  # it would stay reserved until the end of these tests
            raise self._error

        return fail


ENOMEM = CallError("mmap", "4096", code=12, symbol="ENOMEM", cause="full", hint="less")


@pytest.mark.parametrize(
    ("call", "number", "operation", "step", "length"),
    [("commit", 3, "grow", 3, 3 * MIB), ("release", 2, "shrink", 6, 2 * MIB)],
)
def test_a_call_that_fails_leaves_what_was_measured_before(call, number, operation, step, length):
    plan = plan_for(to=4 * MIB, step=MIB, copying=True)
    result, ended = grow_with_error(Failing(open_backing(), call, number, ENOMEM), plan)
    assert ended is ENOMEM
    ended = result.ended_by
    assert (ended.operation, ended.step, ended.length_bytes) == (operation, step, length)
    assert (ended.call, ended.symbol, ended.cause, ended.hint) == ("mmap", "ENOMEM", "full", "less")
    assert ended.message == str(ENOMEM)
    assert result.steps.length_bytes == plan.lengths[: step - 1]
    assert len(result.steps.elapsed_ns) == len(result.steps.committed_bytes) == step - 1
    assert result.growing.samples + result.shrinking.samples == step - 1
    assert not result.complete
    assert not result.interrupted
    assert result.copying is None


def test_what_cannot_be_given_back_at_the_end_is_a_failure_with_every_step():
    plan = plan_for(to=2 * MIB, step=MIB)
    result = run_growth(Failing(open_backing(), "unreserve", 1, ENOMEM), plan)
    assert (result.ended_by.operation, result.ended_by.step) == ("unreserve", 4)
    assert result.steps.length_bytes == plan.lengths
    assert not result.complete


@pytest.mark.parametrize(
    ("error", "symbol", "words"),
    [
        (OSError(24, "Too many open files"), "OSError", "Too many open files"),
        (MemoryError(), "MemoryError", "cannot get more memory"),
    ],
)
def test_a_limit_that_ends_a_check_leaves_what_was_measured_before(
    monkeypatch, error, symbol, words
):
    from vmtool.probes.grow_stamps import Stamps

    def fail(*_):
        raise error

    monkeypatch.setattr(Stamps, "find_nonzero", fail)
    result, ended = grow_with_error(open_backing(), plan_for(to=2 * MIB, step=MIB))
    assert ended is error
    ended = result.ended_by
    assert (ended.operation, ended.step, ended.call, ended.symbol) == ("check", 1, "", symbol)
    assert words in ended.message
    assert result.steps.length_bytes == (MIB,)


def test_a_refused_reservation_is_an_error_and_no_result():
    with pytest.raises(CallError) as caught:
        run_growth(Failing(open_backing(), "reserve", 1, ENOMEM), plan_for())
    assert caught.value is ENOMEM


def test_a_second_ctrl_c_in_a_step_leaves_what_was_measured_before():
    backing = Failing(open_backing(), "commit", 3, KeyboardInterrupt())
    result = run_growth(backing, plan_for(to=4 * MIB, step=MIB, copying=True))
    assert result.interrupted
    assert not result.complete
    assert result.steps.length_bytes == (MIB, 2 * MIB)
    assert (result.ended_by, result.copying) == (None, None)


class Broken:
    """A backing whose commit or release also does something it must not."""

    def __init__(self, real, *, after_commit=None, after_release=None):
        self._real = real
        self._after_commit = after_commit
        self._after_release = after_release

    def __getattr__(self, name):
        return getattr(self._real, name)

    def commit(self, reservation, offset, nbytes):
        self._real.commit(reservation, offset, nbytes)
        if self._after_commit:
            self._after_commit(reservation, offset)

    def release(self, reservation, offset, nbytes):
        if self._after_release == "keeps":
            reservation.blocks.remove(offset, offset + nbytes)
            return
        self._real.release(reservation, offset, nbytes)


def poke(address):
    import ctypes

    ctypes.c_ubyte.from_address(address).value ^= 0xFF


@pytest.mark.parametrize(
    ("after_commit", "check"),
    [
        (lambda r, offset: offset and poke(r.base), "contents"),
        (lambda r, offset: poke(r.base + offset + 100), "zero"),
    ],
)
def test_memory_that_changes_by_itself_is_found(after_commit, check):
    result = run_growth(Broken(open_backing(), after_commit=after_commit), plan_for())
    assert failed(result) == check
    assert not result.complete


def test_a_base_that_moves_is_found():
    class Moving(Broken):
        def reserve(self, nbytes):
            return MovingReservation(self._real.reserve(nbytes))

        def commit(self, reservation, offset, nbytes):
            self._real.commit(reservation.real, offset, nbytes)
            reservation.shift = PAGE if offset else 0

        def release(self, reservation, offset, nbytes):
            self._real.release(reservation.real, offset, nbytes)

        def unreserve(self, reservation):
            self._real.unreserve(reservation.real)

    class MovingReservation:
        shift = 0

        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

        @property
        def base(self):
            return self.real.base + self.shift

    result = run_growth(Moving(open_backing()), plan_for(to=4 * PAGE, step=2 * PAGE))
    assert failed(result) == "base"


@pytest.mark.skipif(sys.platform != "linux", reason="residency is read from /proc")
def test_memory_that_is_not_given_back_is_found():
    real = open_backing()
    result = run_growth(Broken(real, after_release="keeps"), plan_for(to=MIB, step=MIB))
    assert failed(result) == "released"
    released = next(check for check in result.checks if check.name == "released")
    assert released.values["unreleased_bytes"] == MIB


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("linear", [4, 8, 10, 8, 4, 0]),
        ("doubling", [4, 8, 10, 8, 4, 0]),
    ],
)
def test_small_examples(pattern, expected):
    assert plan_lengths(pattern, 10, 4) == expected


def test_doubling_doubles():
    assert plan_lengths("doubling", 100, 7) == [7, 14, 28, 56, 100, 56, 28, 14, 7, 0]


def test_sawtooth_goes_up_four_and_down_two():
    assert plan_lengths("sawtooth", 8, 1) == [1, 2, 3, 4, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 4, 0]


def test_one_step_to_the_peak():
    assert plan_lengths("linear", 5, 5) == [5, 0]
    assert plan_lengths("sawtooth", 5, 5) == [5, 0]


@given(st.sampled_from(PATTERNS), st.integers(1, 1 << 40), st.integers(1, 3000))
def test_every_pattern_reaches_the_peak_and_ends_at_zero(pattern, to, parts):
    step = max(to // parts, 1)
    found = plan_lengths(pattern, to, step)
    assert max(found) == to
    assert found[-1] == 0
    assert all(length > 0 for length in found[:-1])
    assert all(a != b for a, b in pairwise(found))
    assert len(found) <= MAX_STEPS


@pytest.mark.parametrize("pattern", ["linear", "sawtooth"])
def test_too_many_steps_are_refused_with_a_step_that_works(pattern):
    with pytest.raises(UsageError) as caught:
        plan_lengths(pattern, 1 << 40, 4096)
    step = int(caught.value.hint.split()[4])
    assert len(plan_lengths(pattern, 1 << 40, step)) <= MAX_STEPS


def test_an_unknown_pattern_names_the_valid_ones():
    with pytest.raises(UsageError) as caught:
        plan_lengths("spiral", 1, 1)
    assert "sawtooth" in caught.value.hint


def grow_and_copy(pattern="linear", to=2 * MIB, step=100 * KIB):
    return run_growth(open_backing(), plan_for(pattern, to, step, copying=True))


def test_copying_goes_through_the_growing_steps_only():
    result = grow_and_copy("sawtooth", to=64 * PAGE, step=PAGE)
    copying = result.copying
    assert copying.steps == copying.planned_steps == result.growing.samples
    # By hand: each growing step copies the length before it.
    ups = [
        (a, b)
        for a, b in zip((0, *result.steps.length_bytes), result.steps.length_bytes, strict=False)
    ]
    assert copying.copied_bytes == sum(a for a, b in ups if b > a)
    assert copying.in_place_ns == sum(
        ns for ns, (a, b) in zip(result.steps.elapsed_ns, ups, strict=True) if b > a
    )


def test_a_refused_copy_ends_the_comparison_and_not_the_result(monkeypatch):
    real = CopiedBuffer.grow_to

    def refuse(self, nbytes, *, keep):
        if nbytes > MIB:
            raise CallError("mmap.mmap", "-1", code=12, symbol="ENOMEM")
        real(self, nbytes, keep=keep)

    monkeypatch.setattr(CopiedBuffer, "grow_to", refuse)
    result = grow_and_copy(to=2 * MIB, step=MIB // 4)
    assert result.complete
    assert (result.copying.steps, result.copying.planned_steps) == (4, 8)
    assert "ENOMEM" in result.copying.stopped


def test_copying_stops_at_its_time_limit(monkeypatch):
    monkeypatch.setattr("vmtool.probes.grow.COPY_LIMIT_NS", 0)
    result = grow_and_copy()
    assert result.copying.steps == 1
    assert result.copying.stopped == "time limit"


def test_a_copied_buffer_keeps_the_given_bytes():
    buffer = CopiedBuffer()
    buffer.grow_to(2 * PAGE, keep=0)
    with buffer.view() as view:
        view[:] = b"x" * (2 * PAGE)
    buffer.grow_to(4 * PAGE, keep=PAGE)
    with buffer.view() as view:
        assert view.tobytes() == b"x" * PAGE + bytes(3 * PAGE)
    buffer.close()
    buffer.close()
