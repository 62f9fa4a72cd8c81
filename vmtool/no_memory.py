"""An error that ends vmtool: whether it comes from a lack of memory, and which limit may be why.

Nothing is imported to find out: there may be no memory for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


#: Limits that make loading a library fail: how /proc/self/limits calls them, their names, the shell's
#: command, and what /proc/self/status counts against them.
_LOADING_LIMITS: Final = (
    ("Max address space", "RLIMIT_AS", "ulimit -v", "VmPeak:"),
    ("Max data size", "RLIMIT_DATA", "ulimit -d", "VmData:"),
)
#: A process that is so near to a limit cannot load a module.
_NEAR_LIMIT: Final = 16 << 20
_NO_MEMORY_ERRNO: Final = 12  # ENOMEM
#: EPERM and ENOSYS, with which a sandbox answers calls that it does not allow.
_REFUSALS: Final = (1, 38)
_SANDBOX: Final = (
    "a security policy does not allow it (seccomp, SELinux or a sandbox)",
    "check the seccomp profile of the container, or run outside the container",
)


def _read(path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY)  # open() would load a codec
        try:
            return os.read(file, 8192).decode("ascii", "replace")
        finally:
            os.close(file)
    except OSError:
        return ""


def explain(error: BaseException, *, loaded: bool) -> str:
    """Return lines on stderr for a lack of memory, or a refusal while vmtool was loaded; empty for others.

    Args:
        error: What was raised.
        loaded: Whether all of vmtool was loaded.
    """
    cause: str | None
    if isinstance(error, OSError) and error.errno in _REFUSALS and not loaded:
        first = f"vmtool cannot be loaded: a system call failed in {_last_function(error)}: {error}"
        cause, hint = _SANDBOX
    elif is_no_memory(error):
        first = (
            "this process cannot get more memory" if loaded else "not enough memory to load vmtool"
        )
        cause, hint = why_no_memory()
    else:
        return ""
    told = f"vmtool: error: {first}\n" + (f"  cause: {cause}\n" if cause else "")
    return f"{told}  hint: {hint}\n"


def _last_function(error: BaseException) -> str:
    """Return the function that raised *error*, with its module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = None if trace is None else trace.tb_frame
    return "" if frame is None else f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"


def is_no_memory(error: BaseException, read: Callable[[str], str] = _read) -> bool:
    """Return whether *error* comes from a lack of memory, such as that to load a module.

    CPython then raises whatever it can: ``SystemError``, ``ImportError`` where the dynamic linker
    cannot map a library, ``SyntaxError`` and ``ValueError`` where it cannot compile, and
    ``ModuleNotFoundError`` where a folder cannot be listed. An error that does not say it is put
    down to the lack where a limit is all but reached.

    Args:
        error: What was raised.
        read: Returns the text of a file of the kernel; "" if there is none.
    """
    link: BaseException | None = error
    while link is not None:
        words = str(link) if isinstance(link, (ImportError, SyntaxError)) else ""
        if (
            isinstance(link, (MemoryError, SystemError))
            or (isinstance(link, OSError) and link.errno == _NO_MEMORY_ERRNO)
            or any(sign in words for sign in ("failed to map", "allocate memory", "can't load"))
        ):
            return True
        link = link.__cause__ or link.__context__
    return not isinstance(error, OSError) and _is_near_limit(read)


def why_no_memory(read: Callable[[str], str] = _read) -> tuple[str | None, str]:
    """Return the limit that may be why, and what to do; nothing is imported to find out.

    Args:
        read: Returns the text of a file of the kernel; "" if there is none.
    """
    words, ways = [], []
    for limit in _loading_limits(read):
        words.append(f"{limit.name} is {limit.soft >> 10} KiB")
        if limit.hard is None or limit.soft < limit.hard:
            ways.append(f"raise it ({limit.command})")
        else:
            ways.append("raise its hard limit (limits.conf, the unit, or the container's flags)")
    areas = read("/proc/sys/vm/max_map_count").strip()
    if areas.isdigit() and int(areas) < 1024:
        words.append(f"vm.max_map_count is {areas}")
        ways.append("raise it on the host (sysctl -w vm.max_map_count=65530)")
    if words:
        return " and ".join(words), f"{' and '.join(ways)}, and run again"
    return None, "free some memory, or raise the limit of the control group"


def _is_near_limit(read: Callable[[str], str]) -> bool:
    return any(limit.soft - limit.used < _NEAR_LIMIT for limit in _loading_limits(read))


class _LoadingLimit(NamedTuple):
    """A limit of this process in bytes, and what counts against it; ``hard`` is ``None`` if unlimited."""

    name: str
    command: str
    soft: int
    hard: int | None
    used: int


def _loading_limits(read: Callable[[str], str]) -> list[_LoadingLimit]:
    """Return those limits that there are."""
    found = []
    status = read("/proc/self/status").splitlines()
    for line in read("/proc/self/limits").splitlines():
        for label, name, command, counter in _LOADING_LIMITS:
            soft, hard = [*line[26:].split(), "", ""][:2] if line.startswith(label) else ("", "")
            if soft.isdigit():
                used = [int(each.split()[1]) << 10 for each in status if each.startswith(counter)]
                most = int(hard) if hard.isdigit() else None
                found.append(_LoadingLimit(name, command, int(soft), most, *(used or [0])))
    return found
