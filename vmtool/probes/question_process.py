"""A single trial in a process of its own, which the trial may kill.

``python -m vmtool.probes.question_process QUESTION BACKING METHOD NUMBER``

=============  ==========================================================================
reserve        reserve NUMBER bytes
commit         commit NUMBER bytes at once, untouched (``advise`` faults them in), then a granule; on
               a device granule by granule until refused or NUMBER of them are committed
lock           commit NUMBER bytes of the host and lock them into RAM, which faults them in: with
               mlock, or with cuMemHostRegister for a device
mappings       commit every second granule, untouched, until refused or NUMBER areas are reached; on a
               device map one handle over and over
committed      write to memory that is committed
never          write to memory that is reserved and was never committed
released       write to memory that was committed, written and released
=============  ==========================================================================

It prints one JSON object. Exit code 0 says that the question was answered, whatever the answer.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import RefusedError, UnavailableError, VmtoolError
from vmtool.json_documents import decode
from vmtool.machine import read_facts
from vmtool.machine.killed_or_slowed_children import diagnose_kill
from vmtool.machine.preflight import tasks_left
from vmtool.memory.addresses import window
from vmtool.memory.backing_by_name import device_ordinal, open_backing, open_device
from vmtool.memory.children import end_child, prepare_child, signal_name, start_child
from vmtool.memory.counters import count_mappings, read_limits
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, CudaOutOfMemoryError, DeviceLostError
from vmtool.memory.governor import Tier
from vmtool.memory.rlimits_and_privileges import how_to_raise
from vmtool.results.limits import ADDS_NONE
from vmtool.units import MIB, align_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.reservation import Reservation

#: Questions that write to memory; :data:`GUARDED` must die of it where the method has guards.
WRITES: Final = ("committed", "never", "released")
GUARDED: Final = ("never", "released")
#: After this many commits it is clear whether they add memory areas.
_SAMPLE: Final = 256
#: Commits in one reservation.
_PART: Final = 4096
_TIMEOUT_S: Final = 60
_DEVICE_TIMEOUT_S: Final = 600
_TURN_S: Final = 0.1
#: Files that are open while a process starts: both ends of three pipes, and of one of Python's own,
#: less the folder that is open while they are counted.
_DESCRIPTORS: Final = 7
_HEADROOM: Final = 64
#: Addresses that this process keeps for itself.
_OWN_ADDRESSES: Final = 8 * MIB


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe found.

    Attributes:
        works: Whether it was done; ``None`` if the process died of it.
        reached: The number that was reached.
        error: What the platform said, or how the process died.
        unit: What ``reached`` was counted up by.
        cause: Why, as far as the counters of that moment show; or why nothing could be refused.
        elapsed_ns: How long the call took, where that was measured.
        signal_number: Of the signal that killed it, or its exit code as Windows gives it.
        failed: Whether a device failed for a reason other than the size, so that this is no limit.
    """

    works: bool | None
    reached: int
    error: str | None = None
    signal_number: int | None = None
    cause: str | None = None
    elapsed_ns: int | None = None
    unit: int = 1
    failed: bool = False


def ask(
    question: str,
    backing: str,
    method: str,
    number: int = 0,
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> Answer | None:
    """Ask *question* in a new process and return its answer, or ``None`` if there was no time.

    Args:
        question: See above.
        backing: Which memory.
        method: Which commit method.
        number: What the question is about.
        stopping: Called about ten times a second; true ends it without an answer.

    Raises:
        RefusedError: If no process can be started; the error names the limit.
    """
    if stopping():
        return None
    before = read_facts()
    _refuse_without_process(before)
    # A device is filled handle by handle, which takes half a minute where it is large.
    timeout_s = _TIMEOUT_S if device_ordinal(backing) is None else _DEVICE_TIMEOUT_S
    child = start_child("vmtool.probes.question_process", question, backing, method, str(number))
    try:
        for _ in range(round(timeout_s / _TURN_S)):
            try:
                stdout, stderr = child.communicate(timeout=_TURN_S)
                break
            except subprocess.TimeoutExpired:
                if stopping():
                    return None
        else:
            return Answer(None, 0, f"no answer within {timeout_s} s")
    finally:
        end_child(child)
    if child.returncode == 0:
        return decode(Answer, json.loads(stdout))
    last = stderr.strip().splitlines()[-1:]
    code = child.returncode
    number = -code if code < 0 else code
    error = last[0] if last else f"it got {signal_name(number)}" if code < 0 else None
    cause = diagnose_kill(before, read_facts()).cause if error == "it got SIGKILL" else None
    return Answer(None, 0, error, number, cause)


def _refuse_without_process(facts: MachineFacts) -> None:
    left = tasks_left(facts)
    found = None if left is None or left[0] else left[1:]
    limit, used = facts.limits.descriptors, facts.limits.descriptors_used
    soft = None if limit is None else limit.soft
    if soft is not None and used is not None and soft - used < _DESCRIPTORS:
        words = f"RLIMIT_NOFILE is {soft:,}, {used:,} files are open"
        found = words, how_to_raise("RLIMIT_NOFILE", limit=limit)
    if found is not None:
        raise RefusedError(
            "each attempt needs a process of its own, and none can be started",
            cause=found[0],
            hint=found[1],
        )


def main(arguments: list[str]) -> int:
    """Answer one question."""
    question, kind, method, number = arguments
    prepare_child()
    read_limits()  # at a limit not even the modules that it needs could be loaded
    try:
        found = answer(question, kind, method, int(number))
    except VmtoolError as error:
        failed = isinstance(error, CudaError if question != "lock" else DeviceLostError)
        if isinstance(error, UnavailableError):  # such as a driver without the call
            failed = device_ordinal(kind) is not None
        if isinstance(error, CudaOutOfMemoryError):  # only that says that the size was the reason
            failed = False
        works = None if failed else False
        found = Answer(works, 0, error=str(error), cause=error.cause, failed=failed)
    if device_ordinal(kind) is not None:
        from vmtool.memory.cuda import driver

        gc.collect()  # gives back what the error's traceback held
        lost = driver.loss()
        if lost is not None:  # what was found is no limit
            found = Answer(None, 0, error=str(lost), cause=lost.cause, failed=True)
    json.dump(asdict(found), sys.stdout)
    return 0


def answer(question: str, kind: str, method: str, number: int) -> Answer:
    """Answer one question in this process.

    Raises:
        VmtoolError: What was refused; a refusal after others were granted is an answer.
    """
    backing = _open(kind, method, question)
    if backing.tier is Tier.DEVICE and question in {"commit", "mappings"}:
        return _fill_device(backing, question, number)
    if question == "mappings":
        return _count_mappings(kind, method, number)
    if question == "lock":
        return _lock(backing, kind, number)
    if question in WRITES:
        _no_core_dump()
        return _write(kind, method, question)
    size = align_up(number, backing.granularity)
    # On Linux one mmap may go past RLIMIT_DATA, and then nothing works any more: a commit
    # counts if another can follow.
    then = backing.granularity if question == "commit" else 0
    reservation = backing.reserve(size + then)
    if question == "commit":
        backing.commit(reservation, 0, size)
    if then:
        backing.commit(reservation, size, then)
    return Answer(works=True, reached=size)


def _open(kind: str, method: str, question: str) -> VirtualBacking:
    if question == "lock":
        return open_backing("host", method=method)  # also what is pinned for a device
    if question == "mappings" and device_ordinal(kind) is not None:
        return open_device(kind, method="pooled", clear=False)  # only memory of a pool is shared
    return open_backing(kind, method=method)


def _fill_device(backing: VirtualBacking, question: str, most: int) -> Answer:
    """Commit granule by granule, or map one handle over and over, until the driver refuses.

    One process finds the exact number and takes no more than there is: others on the device get an
    out-of-memory error for a moment only.
    """
    from vmtool.memory.cuda.backing import CudaBacking

    assert isinstance(backing, CudaBacking)
    g = backing.granularity
    done, part, refusal = 0, 0, None
    reservations = []  # one that is forgotten gives everything back
    shared = backing.reserve(g)
    if question == "mappings":
        backing.commit(shared, 0, g)
    try:
        while done < most:
            if part == 0:
                reservations.append(backing.reserve(_PART * g))
            if question == "commit":
                backing.commit(reservations[-1], part * g, g)
            else:
                backing.share(reservations[-1], part * g, shared, 0, g)
            done, part = done + 1, (part + 1) % _PART
    except CudaOutOfMemoryError as error:
        refusal = error
    reached = done * g if question == "commit" else done
    unit = g if question == "commit" else 1
    if refusal is None:
        return Answer(works=True, reached=reached, unit=unit)
    return Answer(False, reached, error=str(refusal), cause=refusal.cause, unit=unit)


def _count_mappings(kind: str, method: str, most: int) -> Answer:
    """Commit every second granule until that is refused, in reservations of a moderate size.

    One reservation for all of them would run into RLIMIT_AS long before the areas end.
    """
    backing = open_backing(kind, method=method)
    granule = backing.granularity
    before = count_mappings()
    if before is None:
        return Answer(None, 0, "the memory areas of a process cannot be counted here")
    done, refusal, cause = 0, None, None
    places: list[tuple[Reservation, int]] = []
    try:
        while before + 2 * done < most:
            if done == len(places):
                places += _places(backing)
            backing.commit(*places[done], granule)
            done += 1
            if done == _SAMPLE:
                now = count_mappings() or 0
                if now - before < _SAMPLE // 2:
                    return Answer(works=True, reached=now, cause=ADDS_NONE)
    except VmtoolError as error:
        refusal, cause = str(error), error.cause
    if not done:
        return Answer(None, 0, refusal, cause=cause)
    # Counting takes memory of its own, for which there is no area left: give some back first.
    returned = min(done - 1, _HEADROOM)
    for place in places[done - returned : done]:
        backing.release(*place, granule)
    counted = count_mappings()
    if counted is None:
        return Answer(None, 0, "the memory areas of a process cannot be counted here")
    return Answer(refusal is None, counted + 2 * max(returned, 0), refusal, cause=cause)


def _places(backing: VirtualBacking) -> list[tuple[Reservation, int]]:
    """Reserve addresses for some granules that do not touch, as many as RLIMIT_AS leaves room for.

    This process needs addresses too. Where the limit leaves none, the refusal names it.
    """
    granule, count, limits = backing.granularity, _PART, read_limits()
    limit, used = limits.address_space_limit_bytes, limits.address_space_bytes
    if limit is not None and used is not None:
        count = max(min((limit - used - _OWN_ADDRESSES) // (2 * granule), _PART), 0) or _PART
    reservation = backing.reserve((2 * count + 1) * granule)
    return [(reservation, 2 * step * granule) for step in range(count)]


def _lock(backing: VirtualBacking, kind: str, number: int) -> Answer:
    size = align_up(number, backing.granularity)
    reservation = backing.reserve(size)
    backing.commit(reservation, 0, size)
    ordinal = device_ordinal(kind)
    if ordinal is not None:
        return _pin(ordinal, reservation.base, size)
    if sys.platform == "win32":
        raise UnavailableError("locked memory is measured on Linux and macOS only")
    else:
        from vmtool.memory.posix.locking import lock_memory

        began = perf_counter_ns()
        lock_memory(reservation.base, size)
        return Answer(works=True, reached=size, elapsed_ns=perf_counter_ns() - began)


def _pin(ordinal: int, address: int, size: int) -> Answer:
    from vmtool.memory.cuda.context import DeviceContext

    context = DeviceContext(ordinal)
    began = perf_counter_ns()
    with context.pinned(address, size):
        elapsed_ns = perf_counter_ns() - began
    cause = None
    if context.info.attributes.get("coherent"):  # so cuMemHostRegister is documented
        cause = "the device uses the host's page tables: the pages are faulted in, and not pinned"
    context.close()
    return Answer(works=True, reached=size, elapsed_ns=elapsed_ns, cause=cause)


def _write(kind: str, method: str, question: str) -> Answer:
    backing = open_backing(kind, method=method)
    granule = backing.granularity
    reservation = backing.reserve(3 * granule)
    memory = window(reservation.base, 3 * granule)
    middle = granule  # with free neighbours on both sides
    if question != "never":
        backing.commit(reservation, middle, granule)
        memory[middle] = 1
    if question == "released":
        backing.release(reservation, middle, granule)
    memory[middle] = 2
    return Answer(works=True, reached=1)


def _no_core_dump() -> None:
    if sys.platform != "win32":
        import resource

        with suppress(OSError, ValueError):  # what a seccomp filter refuses is a ValueError
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
