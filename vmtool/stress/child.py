"""How vmtool starts itself again: the same interpreter, the same vmtool."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import vmtool
from vmtool.errors import VmtoolError
from vmtool.memory.error_mode import show_no_error_box

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.platform == "win32":
    # A console of its own, without a window: Ctrl-C and Ctrl-Break reach a whole console.
    _FLAGS: Final = subprocess.CREATE_NO_WINDOW
else:
    _FLAGS: Final = 0

#: With these a start failed at a limit; those of Windows have no errno of their own.
_LIMITS: Final = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_WINDOWS_LIMITS: Final = {1450, 1455}  # ERROR_NO_SYSTEM_RESOURCES, ERROR_COMMITMENT_LIMIT


def start_child(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start *module* of vmtool with pipes for all that it reads and writes.

    It never hears what stops vmtool. A terminal, and timeout(1), signal a whole process group, and
    it is this process that decides when its children stop.

    Raises:
        VmtoolError: If the platform allows no more processes, files or memory, or the interpreter
            cannot be run.
    """
    try:
        with _signals_held():
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="backslashreplace",  # another code page in a library's words ends no reader
                env=_environment(),
                creationflags=_FLAGS,
            )
    except OSError as error:
        limited = error.errno in _LIMITS or getattr(error, "winerror", None) in _WINDOWS_LIMITS
        raise VmtoolError(
            f"a worker process cannot be started: {error.strerror}",
            hint="use fewer --workers, or raise the limit that is reached"
            + ("" if sys.platform == "win32" else " (ulimit -a)")
            if limited
            else f"see why the Python that runs vmtool cannot be started again: {sys.executable}",
        ) from error


def volunteer() -> None:
    """Offer this process to the OOM killer before any other (Linux); let it die at once (Windows)."""
    show_no_error_box()
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        return  # another platform, or a sandbox that forbids it


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold back what stops vmtool; a child that starts meanwhile is born with it held back."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """Return an environment in which a child finds the vmtool that runs here, and writes UTF-8."""
    root = str(Path(vmtool.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONIOENCODING": "utf-8",  # as it is read here, whatever the user set for vmtool's output
    }
