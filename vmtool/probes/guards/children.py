"""Whether memory that is not committed really faults: tried in child processes that may die."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError
from vmtool.memory import device_ordinal, open_backing
from vmtool.memory.process import signal_name
from vmtool.probes.child import GUARDED, WRITES, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GUARDS_SCHEMA: Final = "vmtool.stress-guards"
GUARDS_VERSION: Final = 1
# A write to a guard is SIGSEGV, on macOS SIGBUS, on Windows STATUS_ACCESS_VIOLATION.
_ACCESS_VIOLATION: Final = 0xC0000005
_FAULTS: Final = (
    int(signal.SIGSEGV),
    int(getattr(signal, "SIGBUS", signal.SIGSEGV)),
    _ACCESS_VIOLATION,
)


@dataclass(frozen=True, slots=True)
class GuardProof:
    """One write in a child process.

    Attributes:
        method: The commit method.
        case: ``committed``, ``never`` or ``released``.
        faulted: Whether the write killed the child by a memory fault.
        expected: Whether it had to.
        detail: How the child ended.
    """

    method: str
    case: str
    faulted: bool
    expected: bool
    detail: str

    @property
    def passed(self) -> bool:
        """Whether it went as it had to."""
        return self.faulted == self.expected


@dataclass(frozen=True, slots=True)
class GuardReport:
    """Every write that was tried.

    Attributes:
        complete: Whether all were; an interrupt leaves the rest out.
    """

    proofs: tuple[GuardProof, ...]
    complete: bool = True

    @property
    def passed(self) -> bool:
        """Whether all that were tried went as they had to."""
        return all(proof.passed for proof in self.proofs)


def prove_guards(
    backing: str, methods: Sequence[str], *, stopping: Callable[[], bool] = lambda: False
) -> GuardReport:
    """Write to committed, never committed and released memory, one child process for each.

    Args:
        backing: Which memory.
        methods: Which commit methods.
        stopping: Asked about ten times a second whether to end early.

    Raises:
        UnavailableError: If *backing* is a device, whose memory the CPU must not touch.
        VmtoolError: If *backing* is not available.
    """
    if device_ordinal(backing) is not None:
        raise UnavailableError(
            "the CPU cannot write to a device's memory, so its guards cannot be proved so",
            hint="vmtool granularity --prove asks its driver",
        )
    proofs: list[GuardProof] = []
    for method in methods:
        guards = open_backing(backing, method=method).guards
        for case in WRITES:
            answer = ask(case, backing, method, stopping=stopping)
            if answer is None:
                return GuardReport(tuple(proofs), complete=False)
            faulted = answer.works is None and answer.signal_number in _FAULTS
            if faulted:
                detail = _name(answer.signal_number or 0)
            elif answer.works:
                detail = "the write succeeded"
            else:
                detail = answer.error or "the child ended without an answer"
            proofs.append(GuardProof(method, case, faulted, guards and case in GUARDED, detail))
    return GuardReport(tuple(proofs))


def _name(number: int) -> str:
    return "access violation" if number == _ACCESS_VIOLATION else signal_name(number)
