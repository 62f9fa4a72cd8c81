"""What only macOS has, from data written by hand from xnu's headers; nothing was run on macOS."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

import pytest

from vmtool.memory.counters import Counters
from vmtool.memory.macos_calls import (
    parse_footprint,
    parse_virtual_size,
    read_integer,
    read_task_counters,
    read_text,
    read_virtual_size,
)

# struct proc_taskinfo (bsd/sys/proc_info.h): two sizes, four times, twelve integers.
TASK_INFO = struct.pack(
    "=6Q12i",
    *(421_117_640_704, 9_535_488, 30_000_000, 12_000_000, 0, 0),
    *(1, 2_700, 12, 90, 40, 30, 3_000, 900, 120, 1, 1, 31),
)
# struct rusage_info_v0 (bsd/sys/resource.h): a UUID, two times, three counts, wired and resident
# size, footprint, two times.
USAGE = struct.pack("=16s10Q", bytes(range(16)), 30, 12, 4, 9, 0, 0, 9_535_488, 5_423_104, 777, 0)


class Libc:
    """Answers both calls as macOS would, or refuses them."""

    def __init__(self, *, refuse=False):
        def proc_pidinfo(pid, flavor, argument, buffer, size):
            assert (pid, flavor, argument, size) == (os.getpid(), 4, 0, len(TASK_INFO))
            if refuse:
                return 0
            ctypes.memmove(buffer, TASK_INFO, len(TASK_INFO))
            return len(TASK_INFO)

        def proc_pid_rusage(pid, flavor, buffer):
            assert (pid, flavor, len(buffer)) == (os.getpid(), 0, len(USAGE))
            if refuse:
                return -1
            ctypes.memmove(buffer, USAGE, len(USAGE))
            return 0

        self.proc_pidinfo = proc_pidinfo
        self.proc_pid_rusage = proc_pid_rusage


def test_only_address_space_and_footprint_are_available():
    assert read_task_counters(Libc()) == Counters(
        address_space_bytes=421_117_640_704, resident_bytes=5_423_104
    )
    assert read_virtual_size(Libc()) == 421_117_640_704


def test_after_a_refused_call_nothing_is_available():
    assert read_task_counters(Libc(refuse=True)) == Counters()
    assert read_virtual_size(Libc(refuse=True)) is None


@pytest.mark.parametrize("parse", [parse_virtual_size, parse_footprint])
def test_a_short_answer_is_not_available(parse):
    assert parse(b"") is None
    assert parse(USAGE[:7]) is None


def fake_libc(answer):
    """Return a C library that answers sysctlbyname with *answer*, or refuses it, and its calls."""
    asked = []

    class Libc:
        @staticmethod
        def sysctlbyname(name, value, size, new, new_size):
            size = ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t)).contents
            asked.append((name, size.value, new, new_size.value))
            if answer is None:
                return -1
            ctypes.memmove(value, answer, len(answer))
            size.value = len(answer)
            return 0

    return Libc, asked


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b"Apple M2 Max\0", "Apple M2 Max"), (b"\0", None), (b"", None), (None, None)],
)
def test_the_answer_is_read(answer, text):
    libc, asked = fake_libc(answer)
    assert read_text("machdep.cpu.brand_string", libc) == text
    assert asked == [(b"machdep.cpu.brand_string", 256, None, 0)]


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ((1).to_bytes(4, sys.byteorder), 1),
        ((0).to_bytes(4, sys.byteorder), 0),
        ((1 << 35).to_bytes(8, sys.byteorder), 1 << 35),
        (None, None),
    ],
)
def test_a_number_is_read_in_the_width_that_it_has(answer, number):
    libc, _ = fake_libc(answer)
    assert read_integer("kern.hv_vmm_present", libc) == number


def test_a_c_library_without_sysctl_answers_nothing():
    assert read_text("machdep.cpu.brand_string", object()) is None
    assert read_integer("kern.hv_vmm_present", object()) is None
