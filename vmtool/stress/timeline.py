"""Checkpoints over hours in bounded memory: evenly spaced ones, and the points of the slopes."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.results import Checkpoint

#: When there are more, every other one is dropped.
MOST: Final = 256
_UNKNOWN: Final = -(1 << 63)


class Timeline:
    """The parent's memory of one worker's checkpoints."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: list[Checkpoint] = []
        self._differing: dict[str, Checkpoint] = {}
        self._seen = 0
        self._every = 1

    def add(self, checkpoint: Checkpoint) -> None:
        """Remember *checkpoint*, for good if it is the first where some ledger differed."""
        for reading in checkpoint.buffers:
            if not reading.agrees:
                self._differing.setdefault(reading.ledger, checkpoint)
        if self._seen % self._every == 0:
            self._kept.append(checkpoint)
            if len(self._kept) > self._most:
                del self._kept[1::2]
                self._every *= 2
        self._seen += 1

    def kept(self) -> tuple[Checkpoint, ...]:
        """Return those that are kept, in order."""
        chosen = {id(item): item for item in (*self._kept, *self._differing.values())}
        return tuple(sorted(chosen.values(), key=lambda checkpoint: checkpoint.at_ns))


class SlopePoints:
    """A worker's points of its slopes, in memory that is taken once.

    A worker that kept its checkpoints would find itself leaking for as long as they grow in number.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._names: tuple[str, ...] = ()
        self._cycles = array("q", bytes(8 * (most + 1)))
        self._counts: list[array[int]] = []
        self._count = 0
        self._seen = 0
        self._every = 1

    def add(self, cycle: int, counts: Mapping[str, int | None]) -> None:
        """Add the *counts* of the ledgers at *cycle*; each call has the same ledgers."""
        if not self._counts:
            self._names = tuple(counts)
            self._counts = [array("q", bytes(8 * (self._most + 1))) for _ in self._names]
        if self._seen % self._every == 0:
            self._cycles[self._count] = cycle
            for column, value in zip(self._counts, counts.values(), strict=True):
                column[self._count] = _UNKNOWN if value is None else value
            self._count += 1
            if self._count > self._most:
                self._thin()
        self._seen += 1

    def points(self) -> list[tuple[int, dict[str, int | None]]]:
        """Return the points that are kept, in order."""
        return [
            (
                self._cycles[at],
                {
                    name: None if column[at] == _UNKNOWN else column[at]
                    for name, column in zip(self._names, self._counts, strict=True)
                },
            )
            for at in range(self._count)
        ]

    def _thin(self) -> None:
        half = -(-self._count // 2)
        for column in (self._cycles, *self._counts):
            for at in range(half):
                column[at] = column[2 * at]
        self._count = half
        self._every *= 2
