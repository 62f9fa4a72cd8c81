"""Facts about this machine, what is safe on it, and what would stop a plan."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts


def read_facts() -> MachineFacts:
    """Return the facts of this machine at this moment; what is not known is ``None``.

    Raises nothing: a source that is missing or not readable leaves its facts unknown.
    """
    if sys.platform == "linux":
        from vmtool.machine.linux import read_linux_facts

        return read_linux_facts()
    elif sys.platform == "win32":
        from vmtool.machine.windows import read_windows_facts

        return read_windows_facts()
    else:  # mypy needs every branch spelled out
        from vmtool.machine.macos import read_macos_facts

        return read_macos_facts()


def with_device(facts: MachineFacts, backing: str, *, users: bool = False) -> MachineFacts:
    """Return *facts* with those of the device that *backing* names.

    They are unchanged for the host, and where the driver answers no more: the result says why.

    Args:
        facts: The machine's.
        backing: The name of a backing.
        users: Whether to ask NVML who else uses the device, on which this process has a context.
    """
    from contextlib import suppress
    from dataclasses import replace

    from vmtool.errors import VmtoolError
    from vmtool.machine.device_facts import read_device_facts
    from vmtool.machine.nvml import users_beside_us
    from vmtool.memory.backing_by_name import describe_device

    with suppress(VmtoolError):
        info = describe_device(backing)
        if info is not None:
            found = replace(
                read_device_facts(info), used_by=users_beside_us(info) if users else None
            )
            return replace(facts, device=found)
    return facts
