"""The errors for misusing a reservation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.errors import UsageError
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.span_map import Span


class MisalignedError(UsageError):
    """An offset or length that is not a multiple of the granularity.

    Attributes:
        legal: The nearest legal value that is not smaller.
    """

    def __init__(self, what: str, value: int, granularity: int) -> None:
        self.legal = -(-value // granularity) * granularity
        below = self.legal - granularity
        super().__init__(
            f"{what} {value} is not a multiple of the granularity {granularity}",
            hint=f"use {below} or {self.legal}"
            if below > 0 or what == "offset"
            else f"use {self.legal}",
        )


class OutOfRangeError(UsageError):
    """A span outside the reservation.

    Attributes:
        overrun: How many bytes lie outside.
    """

    def __init__(self, offset: int, nbytes: int, capacity: int) -> None:
        self.overrun = max(offset + nbytes - capacity, 0) or -min(offset, 0)
        super().__init__(
            f"offset {offset} + {nbytes} bytes ends {self.overrun} bytes beyond the reservation of "
            f"{capacity} bytes",
            hint="reserve a larger capacity, or stay inside it",
        )


class OverlapError(UsageError):
    """A commit over bytes that are committed or quarantined already.

    Attributes:
        block: The span in the way, as offsets.
    """

    def __init__(self, offset: int, nbytes: int, block: Span, state: str = "committed") -> None:
        self.block = block
        super().__init__(
            f"offset {offset} + {nbytes} bytes overlaps the {state} block "
            f"{block[0]}..{block[1]} ({format_size(block[1] - block[0])})",
            hint="release it first"
            if state == "committed"
            else "use another part of the reservation",
        )


class NotCommittedError(UsageError):
    """A release of bytes that are not committed.

    Attributes:
        gap: The first span that is not, as offsets.
    """

    def __init__(self, offset: int, nbytes: int, gap: Span) -> None:
        self.gap = gap
        super().__init__(
            f"offset {offset} + {nbytes} bytes is not committed at {gap[0]}..{gap[1]}",
            hint="release only what is committed",
        )


class ClosedError(UsageError):
    """A reservation or buffer that is closed."""


class BusyError(UsageError):
    """A call on a reservation that another thread, or what a signal handler interrupted, is using."""

    def __init__(self, base: int) -> None:
        super().__init__(
            f"the reservation at {base:#x} is used by two threads at once",
            hint="give each thread its own reservation, or use a VirtualBuffer, whose calls wait for "
            "each other",
        )
