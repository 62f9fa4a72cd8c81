"""Why a Windows memory call failed: the name of its error, one cause and one remedy.

Windows has one error for each kind of shortage, so that the code says most of it; the commit limit
needs the counters to distinguish the machine's from a job object's (docs/platform-facts.md#windows-commit-limit).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.memory.errors import Diagnosis, no_address_range
from vmtool.units import format_size

if TYPE_CHECKING:
    from vmtool.memory.counter_types import MemoryLimits

_TOO_MANY_OPEN_FILES: Final = 4
_NOT_ENOUGH_MEMORY: Final = 8
_OUTOFMEMORY: Final = 14
_INVALID_PARAMETER: Final = 87
_PROC_NOT_FOUND: Final = 127
_INVALID_ADDRESS: Final = 487
_MAPPED_ALIGNMENT: Final = 1132
_NO_SYSTEM_RESOURCES: Final = 1450
_COMMITMENT_LIMIT: Final = 1455
_NOT_ENOUGH_QUOTA: Final = 1816

# winerror.h: the codes that the memory calls are known to return.
_SYMBOLS: Final = {
    _TOO_MANY_OPEN_FILES: "ERROR_TOO_MANY_OPEN_FILES",
    5: "ERROR_ACCESS_DENIED",
    6: "ERROR_INVALID_HANDLE",
    _NOT_ENOUGH_MEMORY: "ERROR_NOT_ENOUGH_MEMORY",
    _OUTOFMEMORY: "ERROR_OUTOFMEMORY",
    _INVALID_PARAMETER: "ERROR_INVALID_PARAMETER",
    _PROC_NOT_FOUND: "ERROR_PROC_NOT_FOUND",
    _INVALID_ADDRESS: "ERROR_INVALID_ADDRESS",
    998: "ERROR_NOACCESS",
    _MAPPED_ALIGNMENT: "ERROR_MAPPED_ALIGNMENT",
    1314: "ERROR_PRIVILEGE_NOT_HELD",
    _NO_SYSTEM_RESOURCES: "ERROR_NO_SYSTEM_RESOURCES",
    1453: "ERROR_WORKING_SET_QUOTA",
    1454: "ERROR_PAGEFILE_QUOTA",
    _COMMITMENT_LIMIT: "ERROR_COMMITMENT_LIMIT",
    _NOT_ENOUGH_QUOTA: "ERROR_NOT_ENOUGH_QUOTA",
}

_CODES: Final = {symbol: code for code, symbol in _SYMBOLS.items()}

#: The kind of a reservation for which there are too few addresses.
NO_ADDRESS_RANGE: Final = "no-address-range"
#: Codes that say that something ran out.
OUT_OF_MEMORY: Final = frozenset(
    {
        _NOT_ENOUGH_MEMORY,
        _OUTOFMEMORY,
        _NO_SYSTEM_RESOURCES,
        1453,
        1454,
        _COMMITMENT_LIMIT,
        _NOT_ENOUGH_QUOTA,
    }
)


def symbol_of(code: int) -> str:
    """Return the name of a Win32 error code."""
    return _SYMBOLS.get(code, "UNKNOWN")


def code_of(symbol: str) -> int:
    """Return the code of a Win32 error that :func:`symbol_of` names, or 0 if it is none."""
    return _CODES.get(symbol, 0)


def diagnose_windows(code: int, call: str, nbytes: int, limits: MemoryLimits) -> Diagnosis:
    """Return the likeliest cause of a failed Windows memory call.

    Args:
        code: From ``GetLastError``.
        call: The function; ``reserve`` for one that only takes address space.
        nbytes: The length that was requested, zero if the call takes none.
        limits: The counters at that moment.
    """
    if code == _COMMITMENT_LIMIT:
        return _commitment_limit(nbytes, limits)
    # 87 is the answer to a length larger than the address space of a process.
    if call == "reserve" and code in {_NOT_ENOUGH_MEMORY, _OUTOFMEMORY, _INVALID_PARAMETER}:
        return no_address_range(nbytes)
    if code in OUT_OF_MEMORY:
        available = limits.available_bytes
        return Diagnosis(
            "unknown" if code == _NOT_ENOUGH_MEMORY else "kernel-resources",
            "Windows had no memory or kernel resources for the call"
            + ("" if available is None else f" ({format_size(available)} of RAM available)")
            + "; the commit limit has its own error, 1455",
            "`vmtool doctor` checks every limit on this machine",
        )
    return _REFUSALS.get(code, _OTHER)


def _commitment_limit(nbytes: int, p: MemoryLimits) -> Diagnosis:
    used, limit = p.charge_bytes, p.charge_limit_bytes
    if used is not None and limit is not None and used + nbytes <= limit:
        return Diagnosis(
            "job-limit",
            f"{format_size(used)} of the machine's commit limit of {format_size(limit)} is "
            "charged, which leaves room, so a job object (of a container or a launcher) probably "
            "has a limit of its own",
            "raise the memory limit of the container or job, or commit less",
        )
    numbers = (
        ""
        if used is None or limit is None
        else f": {format_size(used)} of {format_size(limit)} is charged"
    )
    return Diagnosis(
        "commit-limit",
        f"the commit limit, which is RAM and page files together, is reached{numbers}. Windows "
        "charges committed memory whether it is touched or not, so RAM may still be free",
        "commit less, close other programs, or enlarge the page file (System Properties, "
        "Advanced, Performance, Virtual memory)",
    )


_REFUSALS: Final = {
    _TOO_MANY_OPEN_FILES: Diagnosis(
        "too-many-sections",
        "no more sections can be created; --method view uses one section per granule",
        "use larger granules, or --method private or decommit",
    ),
    _INVALID_ADDRESS: Diagnosis(
        "not-a-placeholder",
        "the call needs one placeholder that fits exactly, or memory that replaced one",
        "another part of this process changed the range; if none does, report it with VMTOOL_DEBUG=1",
    ),
    _INVALID_PARAMETER: Diagnosis(
        "refused-arguments",
        "this Windows does not accept these arguments for this range",
        "`vmtool doctor` shows the version; placeholders need Windows 10 1803 (build 17134)",
    ),
    _MAPPED_ALIGNMENT: Diagnosis(
        "misaligned-view",
        "a view's address or offset is not a multiple of the allocation granularity (64 KiB), "
        "which is larger than the page size",
        "use the commit granularity that `vmtool granularity` shows",
    ),
    _PROC_NOT_FOUND: Diagnosis(
        "old-windows",
        "this version of Windows does not have the function",
        "use --method decommit, or Windows 10 1803 or later",
    ),
}
_OTHER: Final = Diagnosis(
    "unknown",
    "Windows refused the call",
    "`vmtool doctor` checks every limit on this machine",
)
