"""How a POSIX kernel itself responds to addresses and lengths that are not whole pages."""

from __future__ import annotations

import sys

assert sys.platform != "win32"  # before the imports, so that mypy skips them elsewhere

import errno
import os
from typing import TYPE_CHECKING

from vmtool.memory.posix.calls import (
    CALLS,
    FAILED,
    MAP_ANON,
    MAP_FIXED,
    MAP_PRIVATE,
    PROT_NONE,
    PROT_RW,
    last_errno,
)
from vmtool.memory.posix.counters import read_areas
from vmtool.probes.granule_checks import attempt_check

if TYPE_CHECKING:
    from vmtool.results.check_outcomes import Check

_FLAGS = MAP_PRIVATE | MAP_ANON | MAP_FIXED


def ask_kernel(method: str, base: int, granule: int) -> tuple[Check, ...]:
    """Commit with the kernel's own calls at *base*, reserved and free for four granules.

    Addresses must be whole pages: the kernel says ``EINVAL``. Lengths it silently rounds up,
    which is why vmtool refuses them itself.

    Args:
        method: The commit method; ``fixed`` commits with mmap, the others with mprotect.
        base: The first address.
        granule: The page size.
    """
    call = "mmap" if method == "fixed" else "mprotect"
    addresses = (
        _address(call, base + granule, granule, "g at address base+g", legal=True),
        _address(call, base + granule // 2, granule, "g at address base+g/2", legal=False),
        _address(call, base + granule + 1, granule, "g at address base+g+1", legal=False),
    )
    if method == "advise":  # all of its reservation is writable, so a length shows nothing
        return addresses
    return (
        *addresses,
        _length(call, base, granule // 2, granule, "g/2 at address base"),
        _length(call, base, granule + 1, granule, "g+1 at address base"),
    )


def _address(call: str, address: int, granule: int, what: str, *, legal: bool) -> Check:
    code = _commit(call, address, granule)
    if code == 0:
        _give_back(address, granule)
    right = code == (0 if legal else errno.EINVAL)
    return attempt_check("kernel", f"{call} {what}", code == 0, _words(code), right)


def _length(call: str, base: int, nbytes: int, granule: int, what: str) -> Check:
    code = _commit(call, base, nbytes)
    answer, right = _words(code), code == errno.EINVAL
    if code == 0:
        rounded = -(-nbytes // granule)
        committed = _writable(base, 4 * granule)
        _give_back(base, rounded * granule)
        answer = f"silently rounded up: {committed} bytes are committed"
        if committed is None:
            answer = "accepted; the committed bytes are not available here"
        right = committed in {None, rounded * granule}
    return attempt_check("kernel", f"{call} {what}", code == 0, answer, right)


def _commit(call: str, address: int, nbytes: int) -> int:
    """Return 0, or the errno."""
    if call == "mmap":
        failed = CALLS.mmap(address, nbytes, PROT_RW, _FLAGS, -1, 0) == FAILED
    else:
        failed = CALLS.mprotect(address, nbytes, PROT_RW) != 0
    return last_errno() if failed else 0


def _give_back(address: int, nbytes: int) -> None:
    # If this is refused the span stays committed until the reservation goes, moments later.
    CALLS.mmap(address, nbytes, PROT_NONE, _FLAGS, -1, 0)


def _writable(base: int, nbytes: int) -> int | None:
    try:
        return sum(end - start for start, end in read_areas(base, nbytes))
    except OSError:
        return None


def _words(code: int) -> str:
    if code == 0:
        return "done"
    return f"{errno.errorcode.get(code, 'UNKNOWN')} ({code}): {os.strerror(code)}"
