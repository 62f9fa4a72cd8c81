"""Injected faults: the Nth call of a kind fails, does nothing, kills the process or hangs."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vmtool.errors import UsageError
from vmtool.memory.windows.diagnosis import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

_CallTable = TypeVar("_CallTable")

_FAILED: Final = -1
#: Which argument of a call that returns an address is the address; ``None`` returns a handle.
_RETURNS_ADDRESS: Final[dict[str, int | None]] = {
    "mmap": 0,
    "VirtualAlloc": 0,
    "VirtualAlloc2": 1,
    "MapViewOfFile3": 2,
    "CreateFileMappingW": None,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One call that fails on request.

    Attributes:
        call: The function, such as ``mmap``.
        nth: Which call of it, counted from 1.
        onwards: Every call from there on.
        effect: The name of an errno, Win32 error or CUresult, ``SKIP`` (reports success and does
            nothing, as a broken platform would), a signal's name (the process gets it), or ``HANG``.
    """

    call: str
    nth: int
    onwards: bool
    effect: str

    def __str__(self) -> str:
        return f"{self.call}:{self.nth}{'+' if self.onwards else ''}={self.effect}"

    def matches(self, count: int) -> bool:
        """Return whether the *count*-th call is one that fails."""
        return count >= self.nth if self.onwards else count == self.nth


def check_faults(faults: Iterable[Fault], names: Collection[str]) -> None:
    """Raise unless every call that *faults* name is among *names*.

    Raises:
        UsageError: If a call is unknown; the hint lists the names.
    """
    for fault in faults:
        if fault.call not in names:
            raise UsageError(
                f"no call is named {fault.call!r}", hint=f"use one of {', '.join(names)}"
            )


def call_names(table: Any) -> tuple[str, ...]:
    """Return the names of the calls in a table such as :class:`PosixCalls`."""
    return tuple(f.name for f in fields(table) if callable(getattr(table, f.name)))


class FaultyCalls:
    """Counts the calls that go through it, and makes those fail that the faults name.

    Attributes:
        faults: The faults to apply.
        counts: How often each call was made.
        applied: The faults that happened, each once, in order.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.counts: dict[str, int] = {}
        self.applied: list[Fault] = []
        self.faults = faults
        self._lock = threading.Lock()

    def wrap(self, table: _CallTable) -> _CallTable:
        """Return a copy of *table* whose calls are counted and may fail.

        Raises:
            UsageError: If a fault names a call that the table does not have.
        """
        names = call_names(table)
        self.check(names)
        wrapped = {name: self._wrap_call(name, getattr(table, name)) for name in names}
        return replace(table, **wrapped)  # type: ignore[type-var]

    def check(self, names: Collection[str]) -> None:
        """Raise unless every call that a fault names is among *names*; see ``check_faults``."""
        check_faults(self.faults, names)

    def next_fault(self, name: str) -> Fault | None:
        """Count one call of *name*; return the fault to apply to it, if there is one."""
        with self._lock:
            count = self.counts[name] = self.counts.get(name, 0) + 1
            for fault in self.faults:
                if fault.call == name and fault.matches(count):
                    if fault not in self.applied:  # one that goes on must not fill memory
                        self.applied.append(fault)
                    return fault
        return None

    def _wrap_call(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def counted(*arguments: Any) -> int:
            fault = self.next_fault(name)
            return call(*arguments) if fault is None else _fail(fault, call, arguments)

        return counted


def apply(fault: Fault) -> None:
    """Apply the part of *fault* that is not the call's result: hang, or send a signal."""
    if fault.effect == "HANG":
        while True:
            time.sleep(60)
    if fault.effect.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[fault.effect])
        time.sleep(1)  # a signal that is handled or ignored lets the call go on


def _fail(fault: Fault, call: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    apply(fault)
    if fault.effect.startswith("SIG"):
        return call(*arguments)
    if fault.effect == "SKIP":
        return _skip(fault.call, call, arguments)
    if sys.platform == "win32":
        ctypes.set_last_error(code_of(fault.effect))
        return 0
    else:
        ctypes.set_errno(getattr(errno, fault.effect))
        return _FAILED


def _skip(name: str, call: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    """Report success without making the call, unless the caller needs what it returns."""
    if name not in _RETURNS_ADDRESS:
        return 1 if sys.platform == "win32" else 0
    at = _RETURNS_ADDRESS[name]
    # A new range cannot be skipped, as its address is needed; replacing one can.
    return (0 if at is None else int(arguments[at])) or call(*arguments)
