"""Helpers that look at memory the way the kernel does."""

from __future__ import annotations

import errno
import sys
from dataclasses import fields, replace

import pytest


def read_map(base: int, nbytes: int) -> list[tuple[int, int, str]]:
    """Return what /proc/self/maps says of a range: (offset, end offset, permissions), joined."""
    found: list[tuple[int, int, str]] = []
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            addresses, permissions = line.split()[:2]
            start, end = (int(part, 16) for part in addresses.split("-"))
            start, end = max(start, base) - base, min(end, base + nbytes) - base
            if start >= end:
                continue
            if found and found[-1][1] == start and found[-1][2] == permissions:
                found[-1] = (found[-1][0], end, permissions)
            else:
                found.append((start, end, permissions))
    return found


@pytest.fixture
def kernel_map():
    if sys.platform != "linux":
        pytest.skip("/proc/self/maps is Linux's")
    return read_map


class Failing:
    """POSIX calls of which the *nth* call that *selects* accepts, and *more* after it, fail."""

    def __init__(self, calls, *, nth, code=errno.ENOMEM, more=0, select=lambda _name, _args: True):
        self.seen = []
        self._left = nth
        self._more = more
        self._code = code
        self._select = select
        names = [field.name for field in fields(calls)]
        self.calls = replace(
            calls, **{name: self._wrap(name, getattr(calls, name)) for name in names}
        )

    def _wrap(self, name, call):
        import ctypes

        def failing(*arguments):
            if not self._select(name, arguments):
                return call(*arguments)
            self.seen.append((name, arguments))
            self._left -= 1
            if self._left > 0 or self._left < -self._more:
                return call(*arguments)
            ctypes.set_errno(self._code)
            return -1

        return failing


class ReplaceableCalls:
    """POSIX calls of which a test replaces some while a backing uses them."""

    def __init__(self, calls):
        self._real = calls
        self._current = {}
        names = [field.name for field in fields(calls)]
        self.calls = replace(calls, **{name: self._forward(name) for name in names})

    def replace(self, **calls):
        """Use *calls* from now on, and the real ones for the others."""
        self._current = calls

    def _forward(self, name):
        real = getattr(self._real, name)

        def call(*arguments):
            return self._current.get(name, real)(*arguments)

        return call


@pytest.fixture
def replaceable():
    return ReplaceableCalls


@pytest.fixture
def failing():
    return Failing
