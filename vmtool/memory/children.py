"""vmtool's own child processes: starting and ending them, and their signals.

Nothing here belongs to a backing. It is in this package because only ``memory`` may call the
operating system through ctypes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import vmtool
from vmtool.errors import REFUSED_BY_POLICY, VmtoolError
from vmtool.memory.rlimits_and_privileges import how_to_raise, read_resource_limit
from vmtool.memory.threads import TASKS_HINT, TASKS_LIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# https://learn.microsoft.com/en-us/windows/win32/api/errhandlingapi/nf-errhandlingapi-seterrormode
# and docs/platform-facts.md#windows-error-box
_SEM_FAILCRITICALERRORS: Final = 1
_SEM_NOGPFAULTERRORBOX: Final = 2


def show_no_error_box() -> None:
    """End this process at once on a fault (Windows), without a dialog that must be closed."""
    if sys.platform == "win32":
        import ctypes

        ctypes.WinDLL("kernel32").SetErrorMode(_SEM_FAILCRITICALERRORS | _SEM_NOGPFAULTERRORBOX)


if sys.platform == "win32":
    # A console of its own, without a window, because Ctrl-C and Ctrl-Break reach every process of
    # one console (docs/platform-facts.md#windows-console).
    _FLAGS: Final = subprocess.CREATE_NO_WINDOW
else:
    _FLAGS: Final = 0

#: Errors of Windows' limits, which have no errno of their own.
_WINDOWS_LIMITS: Final = {1450, 1455}  # ERROR_NO_SYSTEM_RESOURCES, ERROR_COMMITMENT_LIMIT


def start_child(
    module: str, *arguments: str, descriptors: Sequence[int] = ()
) -> subprocess.Popen[str]:
    """Start *module* of vmtool with pipes for all that it reads and writes.

    The child blocks the stop signals: a terminal, and timeout(1), signal a whole process group, but
    this process decides when its children stop.

    Args:
        module: Its name.
        arguments: Its arguments.
        descriptors: Of this process; the child has them too, by the same numbers (not on Windows).

    Raises:
        VmtoolError: If the platform allows no more processes, files or memory, or the interpreter
            cannot be run.
    """
    try:
        with _stop_signals_blocked():
            child = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="backslashreplace",  # a library may write in another code page
                env=_environment(),
                creationflags=_FLAGS,
                pass_fds=descriptors,
            )
    except OSError as error:
        cause, hint = _why_no_process(error)
        call = "pipe2 failed: " if _makes_pipes(error) else ""
        message = f"a worker process cannot be started: {call}{error.strerror or error}"
        raise VmtoolError(message, cause=cause, hint=hint) from error
    if sys.platform == "win32":
        from vmtool.memory.windows.jobs import end_with_this_process

        end_with_this_process(child.pid)
    return child


#: A process with a lot of memory takes seconds to die; one that is stuck in a driver never does.
KILL_TIMEOUT_S: Final = 10.0


def wait_killed(child: subprocess.Popen[str], timeout_s: float = KILL_TIMEOUT_S) -> int:
    """Wait for a process that was killed, and return its exit code.

    Raises:
        VmtoolError: If it does not end: it waits in the kernel and cannot be interrupted (state D).
    """
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        message, hint = why_not_killed(child.pid)
        raise VmtoolError(message, hint=hint) from error


def why_not_killed(pid: int) -> tuple[str, str]:
    """Return what it means that a process does not die of SIGKILL, and what to do."""
    return (
        f"process {pid} cannot be killed: it is stuck in the driver",
        f"look at /proc/{pid}/stack and dmesg; it may need a reboot",
    )


def end_child(child: subprocess.Popen[str], timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kill *child* if it has not ended, wait for it, and close its pipes.

    Raises:
        VmtoolError: If it does not end.
    """
    child.kill()
    wait_killed(child, timeout_s)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with suppress(OSError):  # what it was never sent
                stream.close()


def _makes_pipes(error: OSError) -> bool:
    """Return whether *error* is of the pipes that a process shall have, which no limit of tasks stops."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_name == "_get_handles"


def _why_no_process(error: OSError) -> tuple[str | None, str]:
    """Return cause and hint of a process that could not be started."""
    if error.errno == errno.EMFILE:
        limit = read_resource_limit("RLIMIT_NOFILE")
        number = "" if limit is None or limit.soft is None else f" of {limit.soft:,}"
        words = f"this process has as many open files as RLIMIT_NOFILE{number} allows"
        return words, how_to_raise("RLIMIT_NOFILE", limit=limit)
    if error.errno == errno.ENFILE:
        return "the whole system has too many open files", "sysctl -w fs.file-max=..."
    if error.errno in {errno.EPERM, errno.ENOSYS} and _makes_pipes(error):
        return REFUSED_BY_POLICY
    if error.errno in {errno.EAGAIN, errno.EPERM}:
        return TASKS_LIMITED, TASKS_HINT
    if error.errno == errno.ENOMEM or getattr(error, "winerror", None) in _WINDOWS_LIMITS:
        return (
            "there is not enough memory for one more process",
            "free some memory; `vmtool doctor` shows every limit",
        )
    return None, f"find out why this Python cannot be started: {sys.executable}"


def prepare_child() -> None:
    """Make this process, which :func:`start_child` has started, one that does no harm.

    It ends with its parent, even while a call hangs, and is the first choice of the OOM killer
    (Linux); a fault in it opens no dialog (Windows, where :func:`start_child` lets it end with us).
    """
    show_no_error_box()
    _end_with_parent()
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        return  # another platform, or a sandbox that forbids it


#: The process that waits for a child.
_PARENT: Final = "VMTOOL_PARENT"
_PR_SET_PDEATHSIG: Final = 1  # include/uapi/linux/prctl.h


def _end_with_parent() -> None:
    """Get SIGKILL when the parent ends, however that happens; macOS has no such thing."""
    parent = os.environ.pop(_PARENT, None)
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != int(parent):  # it had ended before the call
            os._exit(1)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block the stop signals; a child started here inherits the mask."""
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
    # The signal comes when the thread that started the child ends, be it not the process
    # (man 2 PR_SET_PDEATHSIG).
    in_main_thread = threading.current_thread() is threading.main_thread()
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        # glibc reserves 64 to 128 MiB of addresses for a thread's own arena (man 3 mallopt), which
        # a limit of address space does not leave to the reservation.
        "MALLOC_ARENA_MAX": "1",
        **os.environ,
        **({_PARENT: str(os.getpid())} if in_main_thread else {}),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONIOENCODING": "utf-8",  # as it is read here, whatever the user set for vmtool's output
    }


def signal_name(number: int) -> str:
    """Return the name of a signal; most of those for real-time use have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
