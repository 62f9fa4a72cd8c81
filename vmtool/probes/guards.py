"""Whether memory that is not committed really faults: tried in child processes that may die."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError
from vmtool.memory.backing_by_name import device_ordinal, open_backing
from vmtool.memory.children import signal_name
from vmtool.probes.question_process import GUARDED, WRITES, ask
from vmtool.results.check_outcomes import Check, CheckOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.results.check_outcomes import Value

# A write to a guard is SIGSEGV, on macOS SIGBUS, on Windows STATUS_ACCESS_VIOLATION.
_ACCESS_VIOLATION: Final = 0xC0000005
_FAULTS: Final = (
    int(signal.SIGSEGV),
    int(getattr(signal, "SIGBUS", signal.SIGSEGV)),
    _ACCESS_VIOLATION,
)


def prove_guards(
    backing: str, methods: Sequence[str], *, stopping: Callable[[], bool] = lambda: False
) -> tuple[Check, ...]:
    """Write to committed, never committed and released memory, one child process for each.

    Args:
        backing: Which memory.
        methods: Which commit methods.
        stopping: Called about ten times a second; true ends it early.

    Returns:
        One check for each write, named ``guard.METHOD.CASE``; fewer if *stopping* ended it.

    Raises:
        UnavailableError: If *backing* is a device, whose memory the CPU must not touch.
        VmtoolError: If *backing* is not available.
    """
    if device_ordinal(backing) is not None:
        raise UnavailableError(
            "the CPU cannot write to a device's memory, so guards cannot be tested there",
            hint="use vmtool granularity --prove",
        )
    checks: list[Check] = []
    for method in methods:
        guards = open_backing(backing, method=method).guards
        for case in WRITES:
            answer = ask(case, backing, method, stopping=stopping)
            if answer is None:
                return tuple(checks)
            must_fault = guards and case in GUARDED
            faulted = answer.works is None and answer.signal_number in _FAULTS
            values: dict[str, Value] = {
                "method": method,
                "case": case,
                "must_fault": must_fault,
                "faulted": faulted,
                "written": bool(answer.works),
                "signal": _name(answer.signal_number or 0) if faulted else None,
                "error": None if faulted else answer.error,
            }
            # A child that ended in another way proves neither a guard nor a writable page.
            answered = faulted or bool(answer.works)
            outcome = CheckOutcome.of(answered and faulted == must_fault)
            checks.append(Check(f"guard.{method}.{case}", outcome, values))
    return tuple(checks)


def _name(number: int) -> str:
    return "access violation" if number == _ACCESS_VIOLATION else signal_name(number)
