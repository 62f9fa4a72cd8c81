"""Memory errors: a failed call with its cause and remedy, undoing it, and a misused reservation.

Every failed call becomes an error here. The causes are each platform's: ``posix.diagnosis``,
``windows.diagnosis`` and ``cuda.errors_and_diagnosis``.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vmtool.errors import CallError, UsageError, VmtoolError
from vmtool.units import format_size, two_sizes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from vmtool.memory.span_map import Span


class OutOfMemoryError(CallError):
    """A call that failed because memory, commit charge, address space or mappings ran out."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause and one remedy.

    Attributes:
        kind: A short stable name: ``mapping-limit``, ``address-space-limit``, ``data-limit``,
            ``commit-limit``, ``heuristic-overcommit``, ``no-address-range``, ``unknown`` ...
        cause: What went wrong, with the numbers of this machine.
        remedy: What to do, with the command where there is one.
    """

    kind: str
    cause: str
    remedy: str


def call_failure(
    call: str,
    arguments: str,
    *,
    code: int,
    symbol: str,
    detail: str,
    diagnosis: Diagnosis | None,
    out_of_memory: bool,
) -> CallError:
    """Return the error for a failed call.

    Args:
        call: The function.
        arguments: Its arguments as text.
        code: The errno or Win32 error.
        symbol: Its symbolic name.
        detail: The platform's own message for it.
        diagnosis: The likely cause; ``None`` if it is not known.
        out_of_memory: Whether memory, charge, addresses or memory areas ran out.
    """
    return (OutOfMemoryError if out_of_memory else CallError)(
        call,
        arguments,
        code=code,
        symbol=symbol,
        detail=detail,
        cause=None if diagnosis is None else diagnosis.cause,
        hint=None if diagnosis is None else diagnosis.remedy,
    )


def no_address_range(nbytes: int) -> Diagnosis:
    """Return the diagnosis of a reservation for which no range of addresses is free."""
    return Diagnosis(
        "no-address-range",
        f"no free range of {format_size(nbytes)} is left in the address space; "
        "memory did not run out",
        "reserve less; `vmtool granularity` shows the largest range that works",
    )


class QuarantineError(VmtoolError):
    """A failed call could not be undone; the span will not be used again.

    The call that failed is ``__cause__``.

    Attributes:
        span: The quarantined offsets.
    """

    def __init__(self, span: Span, failure: CallError) -> None:
        super().__init__(
            f"{span[0]}..{span[1]} is quarantined: {failure}, and the call could not be undone",
            cause=failure.cause,
            hint=failure.hint,
        )
        self.span = span


def failed_call(error: BaseException) -> CallError | None:
    """Return the failed call behind *error*, or ``None`` if there is none."""
    cause = error.__cause__ if isinstance(error, QuarantineError) else error
    return cause if isinstance(cause, CallError) else None


class Unwinding(ExitStack):
    """An ``ExitStack`` that keeps the first error: what else fails while it unwinds becomes a note."""

    def undo(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function(*arguments)`` at the end; with no error under way its own is raised."""

        def leave(
            _kind: type[BaseException] | None,
            error: BaseException | None,
            _traceback: TracebackType | None,
        ) -> None:
            try:
                function(*arguments)
            except VmtoolError as failure:
                if error is None:
                    raise
                # Every call on a lost device raises the error that lost it.
                if str(failure) not in str(error):
                    error.add_note(f"and while it was undone: {failure}")

        self.push(leave)


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


class CapacityError(UsageError):
    """A growth beyond what was reserved (V3).

    Attributes:
        requested_bytes: What was requested.
        capacity_bytes: What was reserved.
    """

    def __init__(self, requested: int, capacity: int) -> None:
        more, less = two_sizes(requested, capacity)
        super().__init__(
            f"cannot grow to {more}: the capacity is {less}",
            hint="reserve a larger capacity; it costs address space only",
        )
        self.requested_bytes = requested
        self.capacity_bytes = capacity
