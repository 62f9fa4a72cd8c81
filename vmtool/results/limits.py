"""What ``vmtool limits`` found: how far reserving, committing and mapping go on this machine."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from typing import Any, Final

from vmtool.machine.run_conditions import RunConditions  # noqa: TC001 - likewise

#: What can be searched.
KINDS: Final = ("reserve", "commit", "mappings", "lock")
#: Why no number of commits would reach the limit of memory areas.
ADDS_NONE: Final = "its commits add no memory areas"


@dataclass(frozen=True, slots=True)
class MethodLimit:
    """How far one method got.

    Attributes:
        method: The commit method.
        outcome: ``found``; ``none`` (nothing was refused within the bounds, or nothing can be);
            ``not found`` (no try gave an answer, see *error*); or ``partial`` (interrupted).
        reached: The most that worked: bytes, or memory areas of the process for ``mappings``;
            ``None`` if nothing did.
        refused: The least that was refused; ``None`` if nothing was, within the bounds.
        tries: How many processes it took.
        error: What the platform answered to the least refused, or how the process ended.
        cause: Why that was refused, as far as the counters of that moment show; without a refusal,
            why there can be none.
        most: The most that the search would have tried.
        per_gib_ns: What the call costs per GiB, measured with the most that worked; only of ``lock``,
            which faults the pages in.
    """

    method: str
    outcome: str
    reached: int | None
    refused: int | None
    tries: int
    error: str | None
    cause: str | None = None
    most: int | None = None
    per_gib_ns: int | None = None


@dataclass(frozen=True, slots=True)
class KindLimits:
    """How far each method got with one kind of resource."""

    kind: str
    methods: tuple[MethodLimit, ...]


@dataclass(frozen=True, slots=True)
class LimitsResult:
    """The result of ``vmtool limits``.

    Attributes:
        kinds: The limits that were searched, in order.
        complete: Whether every search came to its end; an interrupt leaves the rest out.
        found: Whether no search ended without an answer.
        device: The driver's own name of the device; ``None`` for the host.
        machine: Facts about the machine, as ``vmtool doctor`` shows them.
    """

    backing: str
    kinds: tuple[KindLimits, ...]
    complete: bool
    found: bool
    device: str | None = None
    conditions: RunConditions | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
