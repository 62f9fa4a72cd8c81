"""What this process may do: its resource limits, how to raise each, and its privileges on Linux.

A soft limit can be raised up to the hard one by anybody, and a hard one only with CAP_SYS_RESOURCE
(``man 2 getrlimit``): ``ulimit -v unlimited`` under a hard limit is "Operation not permitted"
(docs/platform-facts.md#linux-hard-limits).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from vmtool.units import format_size


@dataclass(frozen=True, slots=True)
class _Names:
    """What a limit is called where it is set.

    Attributes:
        flag: The option of the shell's ``ulimit``.
        unit: What the shell counts in: bytes, or 1.
        item: In ``/etc/security/limits.conf``.
        directive: In a unit of systemd.
        docker: For ``docker run --ulimit``; ``None`` where Docker has none.
    """

    flag: str
    unit: int
    item: str
    directive: str
    docker: str | None


_NAMES: Final = {
    # Docker leaves "as" out: https://github.com/docker/go-units/blob/master/ulimit.go
    "RLIMIT_AS": _Names("-v", 1024, "as", "LimitAS", None),
    "RLIMIT_DATA": _Names("-d", 1024, "data", "LimitDATA", "data"),
    "RLIMIT_MEMLOCK": _Names("-l", 1024, "memlock", "LimitMEMLOCK", "memlock"),
    "RLIMIT_NOFILE": _Names("-n", 1, "nofile", "LimitNOFILE", "nofile"),
    "RLIMIT_NPROC": _Names("-u", 1, "nproc", "LimitNPROC", "nproc"),
    "RLIMIT_CPU": _Names("-t", 1, "cpu", "LimitCPU", "cpu"),
    "RLIMIT_FSIZE": _Names("-f", 1024, "fsize", "LimitFSIZE", "fsize"),
}
_SYS_RESOURCE: Final = 24  # CAP_SYS_RESOURCE of include/uapi/linux/capability.h
#: No process can have more open files than ``fs.nr_open``, so that unlimited is refused.
_NEVER_UNLIMITED: Final = frozenset({"RLIMIT_NOFILE"})


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """One limit; ``None`` is unlimited.

    Attributes:
        soft: What is enforced.
        hard: Up to where the soft limit can be raised.
    """

    soft: int | None
    hard: int | None


def read_resource_limit(name: str) -> ResourceLimit | None:
    """Return one limit, or ``None`` where it does not exist or may not be read.

    Args:
        name: Such as ``RLIMIT_AS``.
    """
    if sys.platform == "win32":
        return None
    else:
        import resource  # absent on Windows

        try:
            soft, hard = resource.getrlimit(getattr(resource, name))
        except (AttributeError, OSError, ValueError):  # a seccomp filter that refuses prlimit64
            return None
        unlimited = resource.RLIM_INFINITY
        return ResourceLimit(
            None if soft == unlimited else soft, None if hard == unlimited else hard
        )


def soft_limit(name: str) -> int | None:
    """Return what is enforced of a limit; ``None`` if nothing is, or if it may not be read."""
    limit = read_resource_limit(name)
    return None if limit is None else limit.soft


def how_to_raise(
    name: str,
    *,
    limit: ResourceLimit | None = None,
    privileged: bool | None = None,
    pid: int | None = None,
) -> str:
    """Return what raises the limit *name* of a process, in the place where that works.

    Args:
        name: Such as ``RLIMIT_AS``.
        limit: Its value; by default what this process has.
        privileged: Whether this process may raise a hard limit; by default whether it has
            CAP_SYS_RESOURCE.
        pid: Another process, which runs already; by default this one, at its next start.
    """
    limit = limit or read_resource_limit(name)
    names = _NAMES[name]
    hard = None if limit is None else limit.hard
    most = "1048576" if name in _NEVER_UNLIMITED else "unlimited"
    if pid is not None and hard is None:
        return f"`prlimit --pid {pid} --{names.item}={most}`; before a start `ulimit {names.flag} {most}`"
    if pid is not None:
        privileged = False
    if privileged is None:
        privileged = has_capability(_SYS_RESOURCE)
    if hard is None or privileged:
        return f"ulimit {names.flag} {most}"
    where = [
        f"`{names.item}` in /etc/security/limits.conf",
        f"{names.directive}= of the unit",
        *([f"docker run --ulimit {names.docker}=..."] if names.docker else []),
    ]
    if pid is not None:
        where.insert(0, f"as root `prlimit --pid {pid} --{names.item}={most}`, for the next start")
        where[:2] = [" ".join(where[:2])]
    in_hard_limit = f"raise the hard limit of {_amount(hard or 0, names.unit)}: {', '.join(where)}"
    if limit is not None and limit.soft is not None and limit.soft < (hard or 0):
        if pid is not None:  # the colon leaves the hard limit as it is
            up_to = f"`prlimit --pid {pid} --{names.item}={hard}:` makes it the hard limit"
            return f"{up_to}; beyond that, {in_hard_limit}"
        up_to = f"ulimit -S{names.flag[1:]} {(hard or 0) // names.unit}"
        return f"{up_to} (the hard limit); beyond it {in_hard_limit}"
    return in_hard_limit


def lift_address_space_limit(limit: ResourceLimit | None = None, *, linux: bool) -> str:
    """Return what to do about ``RLIMIT_AS``; only Linux limits memory itself in another way."""
    to_limit_memory = "; to limit memory, use a control group instead" if linux else ""
    return how_to_raise("RLIMIT_AS", limit=limit) + to_limit_memory


def _amount(value: int, unit: int) -> str:
    return f"{value:,}" if unit == 1 else format_size(value)


def has_capability(number: int) -> bool:
    """Return whether this process has a capability of Linux in effect; ``False`` if unknown.

    Limits of the machine heed those of its own user namespace alone (``capable`` in kernel/capability.c).
    """
    if not in_initial_user_namespace():
        return False
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"CapEff:"):
                    return bool(int(line.split()[1], 16) >> number & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def has_seccomp_filter() -> bool:
    """Return whether a seccomp filter may refuse calls of this process (``man 5 proc_pid_status``)."""
    try:
        with open("/proc/self/status", "rb") as status:
            return b"\nSeccomp:\t2" in status.read()
    except OSError:
        return False


def in_initial_user_namespace(path: str = "/proc/self/uid_map") -> bool:
    """Return whether root here is root of the machine, as in a rootless container it is not.

    Args:
        path: The map of user numbers; all of them are mapped to themselves outside of a namespace
            (``man 7 user_namespaces``).
    """
    try:
        with open(path, "rb") as uid_map:  # as text it would load a codec
            return uid_map.read().split() == [b"0", b"0", b"%d" % ((1 << 32) - 1)]
    except (OSError, ValueError):
        return True
