"""What this process may do on Linux: capabilities, its user namespace, its system call filter."""

from __future__ import annotations


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
