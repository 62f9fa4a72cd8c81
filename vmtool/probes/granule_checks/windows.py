"""How Windows itself responds to offsets and lengths that are not whole granules."""

from __future__ import annotations

import sys

assert sys.platform == "win32"  # before the imports, so that mypy skips them elsewhere

from typing import TYPE_CHECKING, Final

from vmtool.memory.windows.calls import (
    CALLS,
    MEM_COMMIT,
    MEM_DECOMMIT,
    PAGE_FILE,
    PAGE_READWRITE,
    PROCESS,
    SEC_COMMIT,
    error_text,
    last_error,
)
from vmtool.memory.windows.counters import read_range
from vmtool.memory.windows.diagnosis import symbol_of
from vmtool.probes.granule_checks import attempt_check

if TYPE_CHECKING:
    from vmtool.results.check_outcomes import Check

_MAPPED_ALIGNMENT: Final = 1132
_WHO: Final = "Windows"


def ask_windows(method: str, base: int, granule: int) -> tuple[Check, ...]:
    """Try the granule with Windows' own calls.

    ``view`` and ``private`` use the allocation granularity: a view at an offset that is not a
    multiple of it is refused with 1132. ``decommit`` uses pages, to which Windows extends any
    commit silently, which is why vmtool refuses those itself.

    Args:
        method: The commit method.
        base: The first address of a reservation in which four granules are free.
        granule: The granule of the method.
    """
    if method == "decommit":
        return (
            _commit(base, granule, "g at address base", granule, granule),
            _commit(base, granule // 2, "g/2 at address base", granule, granule),
            _commit(base, granule + 1, "g+1 at address base", granule, 2 * granule),
            _commit(base + granule // 2, granule, "g at address base+g/2", granule, 2 * granule),
        )
    section = CALLS.CreateFileMappingW(PAGE_FILE, 0, PAGE_READWRITE | SEC_COMMIT, 0, 4 * granule, 0)
    if not section:
        code = last_error()
        return (attempt_check(_WHO, "CreateFileMappingW 4g", False, _words(code), False),)
    try:
        return (
            _map(section, granule, granule, "g", legal=True),
            _map(section, granule // 2, granule, "g/2", legal=False),
            _map(section, granule + 1, granule, "g+1", legal=False),
        )
    finally:
        CALLS.CloseHandle(section)


def _map(section: int, offset: int, granule: int, what: str, *, legal: bool) -> Check:
    attempt = f"MapViewOfFile3 g at section offset {what}"
    view = CALLS.MapViewOfFile3(section, PROCESS, 0, offset, granule, 0, PAGE_READWRITE, 0, 0)
    if view:
        CALLS.UnmapViewOfFile2(PROCESS, view, 0)
        return attempt_check(_WHO, attempt, True, "done", legal)
    code = last_error()
    return attempt_check(
        _WHO, attempt, False, _words(code), not legal and code == _MAPPED_ALIGNMENT
    )


def _commit(address: int, nbytes: int, what: str, granule: int, expected: int) -> Check:
    attempt = f"VirtualAlloc MEM_COMMIT {what}"
    if not CALLS.VirtualAlloc(address, nbytes, MEM_COMMIT, PAGE_READWRITE):
        return attempt_check(_WHO, attempt, False, _words(last_error()), False)
    start = address // granule * granule
    committed = read_range(start, start + 3 * granule).charge_bytes
    # If this is refused the pages stay committed until the reservation goes, moments later.
    CALLS.VirtualFree(start, 2 * granule, MEM_DECOMMIT)
    answer = "done"
    if committed != nbytes:
        answer = f"silently extended: {committed} bytes are committed"
    return attempt_check(_WHO, attempt, True, answer, committed == expected)


def _words(code: int) -> str:
    return f"{symbol_of(code)} ({code}): {error_text(code)}"
