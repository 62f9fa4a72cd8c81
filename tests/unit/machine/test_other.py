"""macOS's own names from recorded answers; nothing here was run on macOS."""

from __future__ import annotations

import ctypes
import sys

import pytest

from vmtool.machine import other


def fake_libc(monkeypatch, answer):
    """Put in a C library that answers sysctlbyname with *answer*, or refuses it."""
    asked = []

    class Libc:
        @staticmethod
        def sysctlbyname(name, text, size, new, new_size):
            asked.append((name, size._obj.value, new, new_size.value))
            if answer is None:
                return -1
            text.value = answer
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Libc)
    return asked


@pytest.mark.parametrize(
    ("answer", "name"), [(b"Apple M2 Max", "Apple M2 Max"), (b"", None), (None, None)]
)
def test_the_processor_is_named_as_sysctl_names_it(monkeypatch, answer, name):
    asked = fake_libc(monkeypatch, answer)
    assert other._read_cpu_model() == name
    assert asked == [(b"machdep.cpu.brand_string", 256, None, 0)]


def test_a_c_library_without_sysctl_names_no_processor(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert other._read_cpu_model() is None


@pytest.mark.skipif(sys.platform == "win32", reason="macOS's facts are read as on POSIX")
def test_what_is_not_known_is_not_told():
    facts = other.read_other_facts()
    assert facts.memory.total_bytes > 0
    assert facts.commit.mode is None
    assert facts.cgroup.levels == ()
