"""The names of backings and of their methods, such as ``host`` and ``cuda:1``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from vmtool.memory.cuda.devices import DeviceInfo


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
