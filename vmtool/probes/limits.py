"""Bounded searches for how far reserving, committing, mapping and locking go.

Each attempt is in a new process, but for the largest reservation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError, RefusedError, UnavailableError, UsageError
from vmtool.machine import read_facts
from vmtool.machine.memory_limit_sentences import describe_safe
from vmtool.machine.nvml import other_users, read_nvml
from vmtool.memory.backing_by_name import describe_device, open_backing
from vmtool.memory.cuda.errors_and_diagnosis import CudaError, CudaOutOfMemoryError
from vmtool.memory.windows.wine import wine_version
from vmtool.probes.question_process import Answer, ask
from vmtool.results.limits import KindLimits, MethodLimit
from vmtool.units import GIB, align_down, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.devices import DeviceInfo


_LARGEST: Final = 1 << 62
# Wine 10 keeps a byte for every page of a reservation, and keeps it after the release, so that the
# cost cannot be seen twice: 64 TiB take 16 GiB (a machine of 24 GiB ran out), 4 TiB take seconds.
_LARGEST_ON_WINE: Final = 1 << 40
#: 17 tries double from 1 GiB to 128 TiB; the rest halve the interval to less than 0.1 %.
_TRIES: Final = 28
#: More is not locked where nothing limits it: it would have to be faulted in.
_MOST_LOCKED: Final = 1 * GIB
#: An area takes the kernel some 200 bytes, so that even this many are harmless.
_MOST_MAPPINGS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the search for the largest reservation found.

    Attributes:
        works_bytes: The largest size that succeeded; 0 if none did.
        refused_bytes: The smallest size that was refused, or ``None`` if none was.
        tries: How many reservations were tried.
        error: What the platform said to the smallest refused size.
    """

    works_bytes: int
    refused_bytes: int | None
    tries: int
    error: str | None


def largest_reservation(backing: VirtualBacking, *, tries: int = 64) -> Ceiling:
    """Reserve and unreserve ever larger ranges of *backing*, then bisect (B2: nothing is committed).

    64 tries find the exact size where addresses have 48 bits and the granule is a 4 KiB page; the
    answer holds for this process now, as other mappings divide the address space.
    """
    errors: dict[int, str] = {}

    def works(nbytes: int) -> bool:
        try:
            reservation = backing.reserve(nbytes)
        except (CallError, UsageError) as error:
            if isinstance(error, CudaError) and not isinstance(error, CudaOutOfMemoryError):
                raise  # only "out of memory" says that the size was the reason
            errors[nbytes] = str(error)
            return False
        backing.unreserve(reservation)
        return True

    most = _most_worth_trying()
    good, bad, used = search_ceiling(works, unit=backing.granularity, tries=tries, most=most)
    return Ceiling(good, bad, used, None if bad is None else errors[bad])


def _most_worth_trying() -> int:
    """Return the largest reservation that a search should try; larger ones only do harm."""
    return _LARGEST_ON_WINE if wine_version() else _LARGEST


def search_ceiling(
    works: Callable[[int], bool | None], *, unit: int, tries: int, most: int = _LARGEST
) -> tuple[int, int | None, int]:
    """Return the largest multiple of *unit* that works, the smallest that does not, and the tries.

    Doubles (or halves) from 1 GiB, or from *most*, until the answer changes, then bisects.

    Args:
        works: Returns whether a size works; if one does, all smaller ones must. ``None`` ends the
            search where it is.
        unit: What sizes are multiples of.
        tries: The most calls of *works*.
        most: The largest size to try.
    """
    good, bad, used = 0, None, 0
    size = max(min(GIB, most) // unit, 1) * unit
    while used < tries and (bad is None or (good == 0 and bad > unit)) and size <= most:
        worked = works(size)
        if worked is None:
            return good, bad, used
        used += 1
        if worked:
            good = size
            size *= 2
        else:
            bad = size
            size = max(size // 2 // unit, 1) * unit
    while used < tries and bad is not None and bad - good > unit:
        middle = (good + bad) // 2 // unit * unit
        worked = works(middle)
        if worked is None:
            return good, bad, used
        used += 1
        if worked:
            good = middle
        else:
            bad = middle
    return good, bad, used


def refuse_shared_device(backing: str, kind: str) -> None:
    """Raise unless this process may exhaust a device: nobody else is on it.

    Raises:
        RefusedError: If others use it, or NVML cannot say that nobody does.
    """
    info = describe_device(backing)
    if info is None or kind not in {"commit", "mappings"}:
        return
    reading = read_nvml(info.uuid)
    managed = reading.device(info.uuid)
    others = other_users(managed)
    if others is not None and not others and _lists_us(info):
        return
    if others:
        names = ", ".join(f"{each.name or 'a process'} ({each.pid})" for each in others)
        cause = f"{backing} is in use by {names}, which may be refused memory meanwhile"
    else:
        why = reading.absent or "NVML lists no processes, not even this one"
        cause = f"who else uses {backing} is unknown: {why}"
    does = {
        "commit": f"takes all memory of {backing}",
        "mappings": f"maps one handle of {backing} until the driver refuses",
    }
    raise RefusedError(
        f"limits {kind} {does[kind]}", cause=cause, hint="use --force to do it anyway"
    )


def _lists_us(info: DeviceInfo) -> bool:
    """Return whether NVML lists a process once this one has a context on the device.

    In a container with processes of its own (no ``--pid=host``) the list stays empty, whoever is there.
    """
    from vmtool.memory.cuda.context import DeviceContext

    context = DeviceContext(info.ordinal)
    try:
        managed = read_nvml(info.uuid).device(info.uuid)
    finally:
        context.close()
    return managed is not None and bool(managed.processes)


def find_limits(
    kind: str,
    backing: str,
    methods: Sequence[str],
    progress: Callable[[int], None],
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> KindLimits:
    """Search how far *kind* goes with each method.

    Nothing is touched, but ``advise`` has no other way to commit: it goes no further than half of
    what is safe on this machine.

    Args:
        kind: One of :data:`vmtool.results.limits.KINDS`.
        backing: Which memory; ``lock`` locks memory of the host, for a device where it names one.
        methods: Which commit methods; of the host for ``lock``.
        progress: Called with the number of tries so far.
        stopping: Called about ten times a second; true ends it early.

    Raises:
        RefusedError: If nothing is safe to commit, so that ``advise`` could try nothing.
        VmtoolError: If *backing* is not available.
    """
    tries = 0

    def ask_once(method: str, number: int) -> Answer | None:
        nonlocal tries
        tries += 1
        progress(tries)
        return ask(kind, backing, method, number, stopping=stopping)

    on_host = describe_device(backing) is None
    facts = read_facts() if kind == "commit" and on_host else None
    if kind == "lock":
        return KindLimits(kind, _lock_limits(methods, ask_once, on_host=on_host))

    def search(method: str) -> MethodLimit | None:
        if kind == "mappings" or (kind == "commit" and not on_host):
            return _count(method, ask_once)
        unit = open_backing(backing, method=method).granularity
        most = _most_worth_trying()
        likely = None if facts is None else facts.most_at_once_bytes
        if facts is not None and method == "advise":
            most = likely = align_down(facts.safe_bytes // 2, unit)
            if not most:
                bound, how_to_raise = describe_safe(facts)
                raise RefusedError(
                    f"{method} commits by faulting memory in, and {format_size(facts.safe_bytes)} "
                    "is safe to commit here",
                    cause=bound,
                    hint=f"{how_to_raise}, or use another --method",
                )
        return _bisect(method, ask_once, unit, most, likely)

    found = (search(method) for method in methods)
    return KindLimits(kind, tuple(limit for limit in found if limit is not None))


def _lock_limits(
    methods: Sequence[str],
    ask_once: Callable[[str, int], Answer | None],
    *,
    on_host: bool,
) -> tuple[MethodLimit, ...]:
    """Search how much of the host can be locked: by mlock, or by a driver for its device.

    It ends at RLIMIT_MEMLOCK, or at some memory where that does not apply.
    """
    if sys.platform == "win32" and on_host:
        raise UnavailableError(
            "memory is locked on Linux and macOS, and for a CUDA device",
            hint="use --backing cuda to pin memory for a device",
        )
    if not on_host:
        from vmtool.memory.cuda import driver

        driver.load().require("cuMemHostRegister", "cuMemHostUnregister")
    facts = read_facts()
    found = []
    for method in methods:
        unit = open_backing("host", method=method).granularity
        most = align_down(min(facts.safe_bytes // 2, _MOST_LOCKED), unit)
        if not most:
            bound, raising = describe_safe(facts)
            raise RefusedError("nothing is safe to lock here", cause=bound, hint=raising)
        limit, reason = _mlock_limit() if on_host else (None, None)
        if most < _MOST_LOCKED and (limit is None or limit > most):
            ends = f"the search ends at half of what is safe: {describe_safe(facts)[0]}"
            reason = ends if reason is None else f"{reason}; {ends}"
        likely = most if limit is None else min(align_down(limit, unit), most)
        if not on_host:
            least = ask_once(method, unit)
            if least is None:
                break
            likely = most if least.works else 0  # a driver that pins nothing has no limit of bytes
            reason = least.cause or reason
        if not likely:
            likely = most = unit  # one refusal says it
        one = _bisect(method, ask_once, unit, most, likely)
        if one is not None:
            found.append(replace(one, cause=one.cause or reason))
    return tuple(found)


def _mlock_limit() -> tuple[int | None, str | None]:
    """Return RLIMIT_MEMLOCK where it applies, and why it does not."""
    if sys.platform == "win32":
        return None, None
    else:
        from vmtool.memory.posix.locking import exempt_from_limit, lock_limit

        exempt = "CAP_IPC_LOCK exempts this process from RLIMIT_MEMLOCK"
        return lock_limit(), exempt if exempt_from_limit() else None


def _count(method: str, ask_once: Callable[[str, int], Answer | None]) -> MethodLimit | None:
    """Take areas, or a device's granules, until one is refused: one process finds the exact number."""
    answer = ask_once(method, _MOST_MAPPINGS)
    if answer is None:
        return None
    died = answer.works is None  # a process that died of it counted nothing
    refused = answer.reached + answer.unit if answer.works is False else None
    return MethodLimit(
        method=method,
        outcome="not found" if died else "none" if refused is None else "found",
        reached=None if died else answer.reached,
        refused=refused,
        tries=1,
        error=_why_not(answer),
        cause=answer.cause,
        most=_MOST_MAPPINGS,
    )


def _why_not(answer: Answer) -> str | None:
    """Return what the platform said, or how the process ended that asked it."""
    ended = "" if answer.signal_number is None else "the process that tried it ended: "
    return None if answer.error is None else ended + answer.error


def _bisect(
    method: str,
    ask_once: Callable[[str, int], Answer | None],
    unit: int,
    most: int,
    likely: int | None,
) -> MethodLimit | None:
    """Search up to *most*; where the limit is the *likely* one, two tries find it."""
    answers: dict[int, Answer] = {}
    complete = True
    failed: Answer | None = None

    def works(number: int) -> bool | None:
        nonlocal complete, failed
        answer = ask_once(method, number)
        if answer is None:
            complete = False
            return None
        if answer.failed:
            failed = answer
            return None
        answers[number] = answer
        return bool(answer.works)

    settled = (
        likely is not None
        and works(likely)
        and (likely + unit > most or works(likely + unit) is False)
    )
    if complete and failed is None and not settled:
        search_ceiling(works, unit=unit, tries=_TRIES - len(answers), most=most)
    if not answers and failed is None:
        return None
    reached = max((number for number, answer in answers.items() if answer.works), default=None)
    refused = min((number for number, answer in answers.items() if not answer.works), default=None)
    last = failed or (None if refused is None else answers[refused])
    if failed is not None:  # how far it goes is not known
        reached = refused = None
    took = None if reached is None else answers[reached].elapsed_ns
    if not complete:
        outcome = "partial"
    elif failed is not None or (
        reached is None and all(answer.works is None for answer in answers.values())
    ):
        outcome = "not found"  # a device failed, or every process died before it could answer
    else:
        outcome = "none" if refused is None else "found"
    return MethodLimit(
        method=method,
        outcome=outcome,
        reached=reached,
        refused=refused,
        tries=len(answers) + (failed is not None),
        error=None if last is None else _why_not(last),
        cause=None if last is None else last.cause,
        most=most,
        per_gib_ns=None if not took or not reached else took * GIB // reached,
    )
