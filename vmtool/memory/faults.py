"""Faults on request: make the Nth call of a kind fail, do nothing, kill the process or hang."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vmtool.errors import UsageError
from vmtool.memory.windows.diagnosis import code_of, symbol_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

_CallTable = TypeVar("_CallTable")

_SPEC: Final = re.compile(r"([a-zA-Z]\w*):([1-9][0-9]{0,8})(\+?)(?:=(\w+))?", re.ASCII)
_FAILED: Final = -1
#: Which argument of a call that returns an address is the address; ``None`` returns a handle.
_RETURNS_ADDRESS: Final[dict[str, int | None]] = {
    "mmap": 0,
    "VirtualAlloc": 0,
    "VirtualAlloc2": 1,
    "MapViewOfFile3": 2,
    "CreateFileMappingW": None,
}
#: The driver's calls, which fail with a CUresult on every platform.
_OF_THE_DRIVER: Final = re.compile(r"cu[A-Z]\w*", re.ASCII)
_DEFAULT_CUDA_EFFECT: Final = "CUDA_ERROR_OUT_OF_MEMORY"
_DEFAULT_EFFECT: Final = "ERROR_COMMITMENT_LIMIT" if sys.platform == "win32" else "ENOMEM"
_HINT: Final = (
    "write CALL:N or CALL:N=EFFECT, such as VirtualAlloc2:3, MapViewOfFile3:10=1455, "
    "VirtualFree:5+=ERROR_INVALID_ADDRESS, VirtualFree:20=SKIP, VirtualFree:7=HANG or "
    "cuMemMap:3=CUDA_ERROR_OUT_OF_MEMORY"
    if sys.platform == "win32"
    else "write CALL:N or CALL:N=EFFECT, such as mmap:3, madvise:10=EAGAIN, mprotect:5+=ENOMEM, "
    "madvise:20=SKIP, mmap:7=SIGKILL, mmap:7=HANG or cuMemMap:3=CUDA_ERROR_OUT_OF_MEMORY"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One call that will not do what it is asked.

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

    def strikes(self, count: int) -> bool:
        """Tell whether the *count*-th call is one that fails."""
        return count >= self.nth if self.onwards else count == self.nth


def parse_fault(text: str) -> Fault:
    """Return the fault that ``CALL:N[+][=EFFECT]`` describes; by default memory runs out.

    Raises:
        UsageError: If *text* is something else.
    """
    match = _SPEC.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a fault", hint=_HINT)
    call, nth, onwards, effect = match.groups()
    of_driver = _OF_THE_DRIVER.fullmatch(call) is not None
    effect = (effect or (_DEFAULT_CUDA_EFFECT if of_driver else _DEFAULT_EFFECT)).upper()
    if effect not in {"SKIP", "HANG"} and effect not in signal.Signals.__members__:
        symbol = _result_name(effect) if of_driver else _error_name(effect)
        if symbol is None:
            raise UsageError(
                f"{effect!r} in {text!r} is no error, signal, SKIP or HANG", hint=_HINT
            )
        effect = symbol
    return Fault(call, int(nth), bool(onwards), effect)


def _error_name(effect: str) -> str | None:
    """Return the name of the platform's error that *effect* names or numbers, if there is one."""
    if sys.platform == "win32":
        name = symbol_of(int(effect)) if effect.isdigit() else effect
        return name if code_of(name) else None
    else:  # mypy needs both branches spelled out
        if effect.isdigit():
            return errno.errorcode.get(int(effect))
        return effect if effect in errno.errorcode.values() else None


def _result_name(effect: str) -> str | None:
    from vmtool.memory.cuda.driver import result_name

    return result_name(effect)


def check_faults(faults: Iterable[Fault], known: Collection[str]) -> None:
    """Raise unless every call that *faults* name is among the *known*.

    Raises:
        UsageError: If a call is unknown; it names those that are.
    """
    for fault in faults:
        if fault.call not in known:
            raise UsageError(
                f"no call is named {fault.call!r} here", hint=f"use one of {', '.join(known)}"
            )


def call_names(table: Any) -> tuple[str, ...]:
    """Return the names of the calls in a table such as :class:`PosixCalls`."""
    return tuple(f.name for f in fields(table) if callable(getattr(table, f.name)))


class FaultyCalls:
    """Counts the calls that go through it, and spoils those that the faults name.

    Attributes:
        faults: What was asked for.
        counts: How often each call was made.
        struck: The faults that happened, each once, in order.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.counts: dict[str, int] = {}
        self.struck: list[Fault] = []
        self.faults = faults
        self._lock = threading.Lock()

    def wrap(self, table: _CallTable) -> _CallTable:
        """Return a copy of *table* whose calls are counted and may be spoiled.

        Raises:
            UsageError: If a fault names a call that the table does not have.
        """
        names = call_names(table)
        self.check(names)
        wrapped = {name: self._spoil(name, getattr(table, name)) for name in names}
        return replace(table, **wrapped)  # type: ignore[type-var]

    def check(self, known: Collection[str]) -> None:
        """Raise unless every call that a fault names is among the *known*; see ``check_faults``."""
        check_faults(self.faults, known)

    def strike(self, name: str) -> Fault | None:
        """Count one call of *name*; return the fault that spoils it, if one does."""
        with self._lock:
            count = self.counts[name] = self.counts.get(name, 0) + 1
            for fault in self.faults:
                if fault.call == name and fault.strikes(count):
                    if fault not in self.struck:  # one that goes on must not fill memory
                        self.struck.append(fault)
                    return fault
        return None

    def _spoil(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def spoiled(*arguments: Any) -> int:
            fault = self.strike(name)
            return call(*arguments) if fault is None else _happen(fault, call, arguments)

        return spoiled


def befall(fault: Fault) -> None:
    """Do to this process what *fault* asks for beside the call itself: hang, or send a signal."""
    if fault.effect == "HANG":
        while True:
            time.sleep(60)
    if fault.effect.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[fault.effect])
        time.sleep(1)  # a signal that is handled or ignored lets the call go on


def _happen(fault: Fault, call: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    befall(fault)
    if fault.effect.startswith("SIG"):
        return call(*arguments)
    if fault.effect == "SKIP":
        return _pretend(fault.call, call, arguments)
    if sys.platform == "win32":
        ctypes.set_last_error(code_of(fault.effect))
        return 0
    else:  # mypy needs both branches spelled out
        ctypes.set_errno(getattr(errno, fault.effect))
        return _FAILED


def _pretend(name: str, call: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    """Report success without doing anything; what makes something new is done all the same."""
    if name not in _RETURNS_ADDRESS:
        return 1 if sys.platform == "win32" else 0
    at = _RETURNS_ADDRESS[name]
    # A new range cannot be pretended; replacing one can: it is where it was asked for.
    return (0 if at is None else int(arguments[at])) or call(*arguments)
