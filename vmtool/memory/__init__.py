"""The backing library: reserve addresses, commit memory behind them, never move the base."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vmtool.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.faults import FaultyCalls


def host_methods() -> tuple[str, ...]:
    """Return the names of the commit methods of this platform's host backing, default first."""
    if sys.platform == "win32":
        return ("view", "private", "decommit")
    else:  # mypy needs both branches spelled out
        return ("fixed", "protect", "advise")


def open_backing(
    kind: str = "host",
    *,
    method: str | None = None,
    prefault: bool = False,
    huge: bool = False,
    label: str = "",
    faults: FaultyCalls | None = None,
) -> VirtualBacking:
    """Return the backing that *kind* names; the only place that chooses a platform.

    Args:
        kind: ``host``, ``cuda`` or ``cuda:N``.
        method: How the host commits; one of :func:`host_methods`, the first by default.
        prefault: Fault every page in at commit (host, Linux).
        huge: Ask for transparent huge pages (host, Linux).
        label: Name the mappings where the kernel can (host, Linux).
        faults: Calls that shall fail, for tests and ``--inject``.

    Raises:
        UsageError: If *kind* or *method* is unknown, or a fault names a call that is not made.
        UnavailableError: If this machine has no such memory.
    """
    if kind == "cuda" or kind.startswith("cuda:"):
        if prefault or huge or method is not None:
            raise UsageError(f"methods, pre-faulting and huge pages are for the host, not {kind}")
        return _open_device(kind)
    if kind != "host":
        raise UsageError(f"unknown backing {kind!r}", hint="use host, cuda or cuda:N")
    if sys.platform == "win32":
        from vmtool.memory.windows import WindowsBacking
        from vmtool.memory.windows_calls import CALLS as WINDOWS_CALLS

        if prefault or huge:
            raise UnavailableError("pre-faulting and transparent huge pages are Linux features")
        windows_calls = WINDOWS_CALLS if faults is None else faults.wrap(WINDOWS_CALLS)
        return WindowsBacking(method or host_methods()[0], calls=windows_calls)
    else:  # mypy needs both branches spelled out
        from vmtool.memory.posix import PosixBacking
        from vmtool.memory.posix_calls import CALLS

        calls = CALLS if faults is None else faults.wrap(CALLS)
        return PosixBacking(
            method or host_methods()[0], prefault=prefault, huge=huge, label=label, calls=calls
        )


def _open_device(kind: str) -> VirtualBacking:
    ordinal = kind.partition(":")[2] or "0"
    if not ordinal.isascii() or not ordinal.isdigit() or len(ordinal) > 3:
        raise UsageError(f"unknown backing {kind!r}", hint="use cuda or cuda:N, such as cuda:0")
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.context import DeviceContext

    return CudaBacking(DeviceContext(int(ordinal)))
