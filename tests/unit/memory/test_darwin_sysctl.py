"""macOS's own names from answers made by hand; nothing here was run on macOS."""

from __future__ import annotations

import ctypes
import sys

import pytest

from vmtool.memory.macos import read_integer, read_text


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
