"""Why a memory call failed: one cause, one remedy, and the error that carries them.

Every failed call becomes an error here. The causes are each platform's: ``posix.diagnosis``,
``windows.diagnosis`` and ``cuda.diagnosis``.
"""

from __future__ import annotations

from dataclasses import dataclass

from vmtool.errors import CallError
from vmtool.memory.backing import OutOfMemoryError
from vmtool.units import format_size


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
