"""How far one can go: the largest reservation, the largest commit, the most memory areas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.machine import read_facts
from vmtool.memory import describe_device, open_backing
from vmtool.memory.ceiling import most_worth_trying, search_ceiling
from vmtool.stress.probe import Answer, ask
from vmtool.units import align_down

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
