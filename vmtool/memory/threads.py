"""vmtool's own threads, and why one cannot be started.

Apart from child processes: facts about the machine need this, and not what starts a process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.memory.counters import read_limits
from vmtool.memory.rlimits_and_privileges import how_to_raise, soft_limit
from vmtool.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

#: Why no process or thread can be started, and what to do.
TASKS_LIMITED: Final = (
    "the limit of processes and threads is reached (pids.max of a control group, RLIMIT_NPROC), "
    "memory is short, or a seccomp filter refuses clone3"
)
_M_ARENA_MAX: Final = -8  # malloc.h of glibc
_WAIT_S: Final = 0.0001
_MOST_WAITS: Final = 1000
TASKS_HINT: Final = "`vmtool doctor` shows these limits, and how to raise them"
#: What to do where the stacks of threads do not fit.
SMALLER_STACKS: Final = "make stacks smaller: ulimit -s 1024"


def start_thread(
    target: Callable[..., object], *arguments: object, name: str | None = None
) -> threading.Thread:
    """Start a thread that does not keep this process alive.

    Raises:
        VmtoolError: If the platform allows no more threads.
    """
    _share_heap()
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:  # Python keeps the errno to itself
        cause, hint = _no_room_for_stack() or (TASKS_LIMITED, TASKS_HINT)
        message = f"a thread cannot be started: {error}"
        raise VmtoolError(message, cause=cause, hint=hint) from error
    return thread


@cache
def _share_heap() -> None:
    """Let all threads use one heap where addresses are limited.

    The C library reserves 64 MiB for the heap of each of the first threads (glibc's arenas, man 3
    mallopt), which may leave no room for the stacks of others.
    """
    if sys.platform == "linux" and soft_limit("RLIMIT_AS") is not None:
        import ctypes

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)


def can_start_thread() -> bool:
    """Return whether the platform starts a thread, or only a lack of memory for it is in the way."""
    _share_heap()
    thread = threading.Thread(target=bool, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return _no_room_for_stack() is not None
    thread.join()
    # Python's join returns before the kernel takes the thread off pids.max and RLIMIT_NPROC: what is
    # started next could be refused because of it.
    entry = f"/proc/self/task/{thread.native_id}"
    for _ in range(_MOST_WAITS):
        if not os.path.exists(entry):  # noqa: PTH110 - pathlib takes long to load
            break
        time.sleep(_WAIT_S)
    return True


def stack_bytes() -> int:
    """Return how long the stack of a thread is.

    The C library maps a stack as long as RLIMIT_STACK, or 2 MiB where that is unlimited (man 3
    pthread_create); it counts as address space and as private writable memory.
    """
    stack = soft_limit("RLIMIT_STACK")
    return 2 * MIB if stack is None else stack


def _no_room_for_stack() -> tuple[str, str] | None:
    """Return the limit that leaves no room for the stack of a thread, and what to do."""
    limits, nbytes = read_limits(), stack_bytes()
    for name, limit, used in (
        ("RLIMIT_AS", limits.address_space_limit_bytes, limits.address_space_bytes),
        ("RLIMIT_DATA", limits.data_limit_bytes, limits.data_bytes),
    ):
        if limit is not None and used is not None and used + nbytes > limit:
            words = (
                f"{name} is {format_size(limit)} and the process uses {format_size(used)}: "
                f"a thread's stack of {format_size(nbytes)} does not fit"
            )
            smaller = f", or {SMALLER_STACKS}" if nbytes > MIB else ""
            return words, how_to_raise(name) + smaller
    return None
