"""A seccomp filter that a child process puts on itself, as a container's runtime would."""

import platform
import sys

import pytest

#: System calls of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl of Linux).
_NUMBERS = {
    "mmap": 9,
    "madvise": 28,
    "wait4": 61,
    "uname": 63,
    "prlimit64": 302,
    "getrlimit": 97,
    "sched_getaffinity": 204,
    "mbind": 237,
    "userfaultfd": 323,
    "clone": 56,
    "pipe2": 293,
    "clone3": 435,
}
_PROGRAM = """
import ctypes, struct
def refuse(numbers, code, arguments=()):
    # BPF of include/uapi/linux/filter.h: load the call's number, compare, return.
    rows = [(0x20, 0, 0, 0)]
    for number in numbers:
        rows += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | code)]
    for number, index, value in arguments:
        # The low half of an argument: offsetof(struct seccomp_data, args) is 16.
        rows += [(0x15, 0, 4, number), (0x20, 0, 0, 16 + 8 * index), (0x15, 0, 1, value)]
        rows += [(0x06, 0, 0, 0x00050000 | code), (0x20, 0, 0, 0)]
    rows += [(0x06, 0, 0, 0x7FFF0000)]
    program = b"".join(struct.pack("HBBI", *row) for row in rows)
    kept = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
"""


def refusing(*calls, code=1, arguments=()):
    """Return Python code that makes the kernel answer *calls* with errno *code* from then on.

    Each of *arguments* is a call, the index of an argument, and the value with which it is refused.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the filter is made for x86-64 Linux")
    numbers = [_NUMBERS[call] for call in calls]
    conditions = [(_NUMBERS[call], index, value) for call, index, value in arguments]
    return f"{_PROGRAM}\nrefuse({numbers!r}, {code}, {conditions!r})\n"
