"""How Windows ends a process that dies of a memory fault."""

from __future__ import annotations

import sys
from typing import Final

# SetErrorMode on learn.microsoft.com: no box for critical errors, none for a fault.
_SEM_FAILCRITICALERRORS: Final = 1
_SEM_NOGPFAULTERRORBOX: Final = 2


def show_no_error_box() -> None:
    """Let a fault end this process at once on Windows, without a dialog that someone must close."""
    if sys.platform == "win32":
        import ctypes

        ctypes.WinDLL("kernel32").SetErrorMode(_SEM_FAILCRITICALERRORS | _SEM_NOGPFAULTERRORBOX)
