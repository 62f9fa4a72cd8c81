"""Backings by name, such as ``host`` or ``cuda:1``: the names, their methods, and opening one.

The only place that chooses a platform.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.context import CallTimes
    from vmtool.memory.cuda.devices import DeviceInfo
    from vmtool.memory.governor import Governor
    from vmtool.memory.injected_faults import FaultyCalls


#: Every device of this machine, where a command can use several.
ALL_DEVICES: Final = "cuda:all"
#: No machine has devices of more digits than this.
_ORDINAL_DIGITS: Final = 3


def host_methods() -> tuple[str, ...]:
    """Return the names of the commit methods of this platform's host backing, default first."""
    if sys.platform == "win32":
        return ("view", "private", "decommit")
    else:
        return ("fixed", "protect", "advise")


def methods_of(kind: str) -> tuple[str, ...]:
    """Return the names of the commit methods of a backing, default first.

    ``cold`` creates and releases a device's physical handles each time, ``pooled`` keeps them.

    Raises:
        UsageError: If *kind* is unknown.
    """
    return ("cold", "pooled") if is_device(kind) else host_methods()


def is_device(kind: str) -> bool:
    """Return whether *kind* names a device, or every device.

    Raises:
        UsageError: If *kind* is unknown.
    """
    return kind == ALL_DEVICES or device_ordinal(kind) is not None


def device_ordinal(kind: str) -> int | None:
    """Return the number of the device that *kind* names, or ``None`` for the host.

    Raises:
        UsageError: If *kind* is neither ``host`` nor ``cuda`` nor ``cuda:N``.
    """
    if kind == "host":
        return None
    if kind == "cuda":
        return 0
    if kind == ALL_DEVICES:
        raise UsageError("one backing is needed here, not cuda:all", hint="use cuda or cuda:N")
    name, _, number = kind.partition(":")
    if name != "cuda" or not (number.isascii() and number.isdigit()):
        raise UsageError(f"unknown backing {kind!r}", hint="use host, cuda or cuda:N")
    if len(number) > _ORDINAL_DIGITS:
        raise UnavailableError(f"there is no CUDA device {number}")
    return int(number)


def describe_device(kind: str) -> DeviceInfo | None:
    """Return the device that *kind* names, or ``None`` for the host.

    Raises:
        UsageError: If *kind* is unknown.
        UnavailableError: If there is no usable driver or no such device.
        CudaError: If the driver call fails.
    """
    ordinal = device_ordinal(kind)
    if ordinal is None:
        return None
    from vmtool.memory.cuda.devices import device

    return device(ordinal)


def open_backing(
    kind: str = "host",
    *,
    method: str | None = None,
    prefault: bool = False,
    huge: bool = False,
    huge_page_bytes: int | None = None,
    node: int | None = None,
    label: str = "",
    chunk: int | None = None,
    governor: Governor | None = None,
    faults: FaultyCalls | None = None,
) -> VirtualBacking:
    """Return the backing that *kind* names; the only place that chooses a platform.

    Args:
        kind: ``host``, ``cuda`` or ``cuda:N``.
        method: How it commits; one of :func:`methods_of`, the first by default.
        prefault: Fault every page in at commit (host, Linux).
        huge: Ask for transparent huge pages (host, Linux).
        huge_page_bytes: Use reserved huge pages of this size (host, Linux, ``fixed``).
        node: Bind what is committed to this NUMA node (host, Linux).
        label: Name the mappings where the kernel can (host, Linux).
        chunk: Bytes of one physical handle (device); the recommended granularity by default.
        governor: Whose ledger a pool is charged to (device, ``pooled``); see :func:`open_device`.
        faults: Calls to make fail, for tests and ``--inject``.

    Raises:
        UsageError: If *kind* or *method* is unknown, a fault names a call that is not made, or
            this kind of memory lacks what is requested.
        UnavailableError: If this machine has no such memory.
    """
    if device_ordinal(kind) is not None:
        if prefault or huge or huge_page_bytes is not None or node is not None:
            raise UsageError(
                f"pre-faulting, huge pages and NUMA nodes are for the host, not {kind}"
            )
        return open_device(kind, method=method, chunk=chunk, governor=governor, faults=faults)
    if chunk is not None:
        raise UsageError("chunks are for devices", hint="use --backing cuda, or leave out --chunk")
    if method is None:
        method = host_methods()[0]
    if sys.platform == "win32":
        from vmtool.memory.windows.backing import WindowsBacking
        from vmtool.memory.windows.calls import CALLS as WINDOWS_CALLS

        if prefault or huge or huge_page_bytes is not None or node is not None:
            raise UnavailableError(
                "pre-faulting, huge pages and NUMA nodes can be chosen on Linux only"
            )
        windows_calls = WINDOWS_CALLS if faults is None else faults.wrap(WINDOWS_CALLS)
        return WindowsBacking(method, calls=windows_calls)
    else:
        from vmtool.memory.posix.backing import PosixBacking
        from vmtool.memory.posix.calls import CALLS

        calls = CALLS if faults is None else faults.wrap(CALLS)
        return PosixBacking(
            method,
            prefault=prefault,
            huge=huge,
            huge_page_bytes=huge_page_bytes,
            node=node,
            label=label,
            calls=calls,
        )


def open_device(
    kind: str,
    *,
    method: str | None = None,
    chunk: int | None = None,
    retain: int | None = None,
    clear: bool = True,
    peers: Sequence[int] = (),
    governor: Governor | None = None,
    times: CallTimes | None = None,
    faults: FaultyCalls | None = None,
) -> CudaBacking:
    """Return the backing of a device, with more choices than :func:`open_backing` has.

    Args:
        kind: ``cuda`` or ``cuda:N``.
        method: ``cold`` (the default) or ``pooled``.
        chunk: Bytes of one physical handle; the recommended granularity by default.
        retain: How much the pool keeps unmapped at most; everything by default.
        clear: Whether memory of the pool is cleared when it is mapped.
        peers: Other devices that may read and write what is committed.
        governor: Whose ledger the pool is charged to; one of its own by default. Buffers on a
            pooled backing must have this governor, or none.
        times: Where to record how long each driver call took.
        faults: Calls to make fail.

    Raises:
        UsageError: If an argument is not legal on this device.
        UnavailableError: If this machine has no such device.
        CudaError: If the driver fails.
    """
    ordinal, methods = device_ordinal(kind), methods_of(kind)
    if ordinal is None or (method is not None and method not in methods):
        raise UsageError(
            f"unknown method {method!r} of {kind}", hint=f"use one of {', '.join(methods)}"
        )
    if retain is not None and method != "pooled":
        raise UsageError("only a pool retains memory", hint="use --method pooled")
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.cuda.handles import HandlePool

    context = DeviceContext(ordinal, times=times, faults=faults)
    backing = CudaBacking(context, chunk=chunk, peers=peers)
    if method != "pooled":
        return backing
    pool = HandlePool(
        context,
        backing.granularity,
        backing.properties,
        governor=governor,
        retain_bytes=retain,
        clear=clear,
    )
    return CudaBacking(context, chunk=chunk, source=pool, peers=peers)
