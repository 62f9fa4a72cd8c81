"""macOS's own names from recorded answers; nothing here was run on macOS."""

from __future__ import annotations

import ctypes

import pytest

from vmtool.memory.darwin_sysctl import read_text


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
    ("answer", "text"), [(b"Apple M2 Max", "Apple M2 Max"), (b"", None), (None, None)]
)
def test_the_answer_is_read(monkeypatch, answer, text):
    asked = fake_libc(monkeypatch, answer)
    assert read_text("machdep.cpu.brand_string") == text
    assert asked == [(b"machdep.cpu.brand_string", 256, None, 0)]


def test_a_c_library_without_sysctl_answers_nothing(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert read_text("machdep.cpu.brand_string") is None
