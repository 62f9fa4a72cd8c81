"""How large one reservation can be: a bounded search that commits nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError, UsageError
from vmtool.machine import read_facts
from vmtool.memory import describe_device, open_backing
from vmtool.memory.cuda.driver import CudaError, CudaOutOfMemoryError
from vmtool.memory.process import wine_version
from vmtool.probes.child import Answer, ask
from vmtool.units import GIB, align_down

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.backing import VirtualBacking

_LARGEST: Final = 1 << 62

# Wine keeps a byte for every page of a reservation: 64 TiB would take 16 GiB of memory (seen: a
# machine of 24 GiB ran out of it), and 4 TiB take seconds.
_LARGEST_ON_WINE: Final = 1 << 40


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

    most = most_worth_trying()
    good, bad, used = search_ceiling(works, unit=backing.granularity, tries=tries, most=most)
    return Ceiling(good, bad, used, None if bad is None else errors[bad])


def most_worth_trying() -> int:
    """Return the largest reservation that a search should try: beyond it lies only harm."""
    return _LARGEST_ON_WINE if wine_version() else _LARGEST


def search_ceiling(
    works: Callable[[int], bool | None], *, unit: int, tries: int, most: int = _LARGEST
) -> tuple[int, int | None, int]:
    """Return the largest multiple of *unit* that works, the smallest that does not, and the tries.

    Doubles (or halves) from 1 GiB, or from *most*, until the answer changes, then bisects.

    Args:
        works: Tells whether a size works; if one does, all smaller ones must. ``None`` ends the
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


CEILING_SCHEMA: Final = "vmtool.stress-ceiling"
CEILING_VERSION: Final = 1
KINDS: Final = ("reserve", "commit", "mappings")
#: 17 tries double from 1 GiB to 128 TiB; the rest halve the interval to less than 0.1 %.
_TRIES: Final = 28
#: An area takes the kernel some 200 bytes, so that even this many are harmless.
_MOST_MAPPINGS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MethodCeiling:
    """How far one method got.

    Attributes:
        method: The commit method.
        reached: The most that worked: bytes, or memory areas of the process for ``mappings``.
        refused: The least that was refused; ``None`` if nothing was, within the bounds.
        tries: How many processes it took.
        error: What the platform said to the least refused.
        complete: Whether the search came to its end; else it goes on between *reached* and
            *refused*.
        cause: Why that was refused, as far as the counters of that moment tell; without a refusal,
            why there can be none.
        most: The most that the search would have tried.
    """

    method: str
    reached: int
    refused: int | None
    tries: int
    error: str | None
    complete: bool = True
    cause: str | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class CeilingReport:
    """How far each method got with one kind of resource.

    Attributes:
        methods: Those that were tried at all.
        device: The driver's own name of the device; ``None`` for the host.
        complete: Whether every search came to its end; an interrupt leaves the rest out.
    """

    kind: str
    methods: tuple[MethodCeiling, ...]
    device: str | None = None
    complete: bool = True


def find_ceiling(
    kind: str,
    backing: str,
    methods: Sequence[str],
    progress: Callable[[int], None],
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> CeilingReport:
    """Search the ceiling of *kind* for each method.

    Nothing is touched, but that ``advise`` has no other way to commit: it goes no further than half
    of what is safe on this machine.

    Args:
        kind: One of :data:`KINDS`.
        backing: Which memory.
        methods: Which commit methods.
        progress: Called with the number of tries so far.
        stopping: Asked about ten times a second whether to end early.

    Raises:
        VmtoolError: If *backing* is not available.
    """
    tries = 0

    def asked(method: str, number: int) -> Answer | None:
        nonlocal tries
        tries += 1
        progress(tries)
        return ask(kind, backing, method, number, stopping=stopping)

    info = describe_device(backing)
    facts = None if kind != "commit" or info is not None else read_facts()

    def search(method: str) -> MethodCeiling | None:
        if kind == "mappings":
            return _count(method, asked)
        unit = open_backing(backing, method=method).granularity
        most = most_worth_trying()
        likely = None if facts is None else facts.most_at_once_bytes
        if facts is not None and method == "advise":
            most = likely = align_down(facts.safe_bytes // 2, unit)
        return _bisect(method, asked, unit, most, likely)

    found = tuple(ceiling for method in methods if (ceiling := search(method)) is not None)
    complete = len(found) == len(methods) and all(ceiling.complete for ceiling in found)
    return CeilingReport(kind, found, None if info is None else info.name, complete)


def _count(method: str, asked: Callable[[str, int], Answer | None]) -> MethodCeiling | None:
    """Take areas until the platform refuses: one process finds the exact number."""
    answer = asked(method, _MOST_MAPPINGS)
    if answer is None:
        return None
    # A process that died of it counted nothing.
    refused = answer.reached + 1 if answer.works is False else None
    return MethodCeiling(
        method=method,
        reached=answer.reached,
        refused=refused,
        tries=1,
        error=answer.error,
        cause=answer.cause,
        most=_MOST_MAPPINGS,
    )


def _bisect(
    method: str,
    asked: Callable[[str, int], Answer | None],
    unit: int,
    most: int,
    likely: int | None,
) -> MethodCeiling | None:
    """Search up to *most*; where the ceiling is the *likely* one, two tries tell."""
    answers: dict[int, Answer] = {}
    complete = True

    def works(number: int) -> bool | None:
        nonlocal complete
        answer = asked(method, number)
        if answer is None:
            complete = False
            return None
        answers[number] = answer
        return bool(answer.works)

    found = (
        likely is not None
        and works(likely)
        and (likely + unit > most or works(likely + unit) is False)
    )
    if complete and not found:
        search_ceiling(works, unit=unit, tries=_TRIES - len(answers), most=most)
    if not answers:
        return None
    reached = max((number for number, answer in answers.items() if answer.works), default=0)
    refused = min((number for number, answer in answers.items() if not answer.works), default=None)
    last = None if refused is None else answers[refused]
    return MethodCeiling(
        method=method,
        reached=reached,
        refused=refused,
        tries=len(answers),
        error=None if last is None else last.error,
        complete=complete,
        cause=None if last is None else last.cause,
        most=most,
    )
