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
