"""What it means that a worker died or stopped: the operation in flight and the likely cause."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from vmtool.memory.children import signal_name
from vmtool.results.stress import Accident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.memory.errors import Diagnosis
    from vmtool.stress.messages import WorkerPlan
    from vmtool.stress.worker.journal import Entry

#: The kind of the diagnosis of a worker that was given up.
CANNOT_BE_KILLED: Final = "cannot-be-killed"
_CAUSES: Final = {
    "SIGSEGV": (
        "an address that is not committed was used, or a commit that was reported did not happen",
        "run again with the same --seed; `vmtool guards` tests the guards alone",
    ),
    "SIGBUS": (
        "memory behind a committed address could not be provided: no huge page left, or bad hardware",
        "look at `dmesg`, and at the free pages with `vmtool doctor`",
    ),
}
_NO_MEMORY: Final = (
    "Windows could not commit memory for the process itself",
    "use a smaller --budget, or enlarge the page file",
)
_ACCESS_VIOLATION: Final = 0xC0000005
#: How a process on Windows dies: its exit code is then one of these (ntstatus.h).
_EXCEPTIONS: Final = {
    _ACCESS_VIOLATION: ("STATUS_ACCESS_VIOLATION", *_CAUSES["SIGSEGV"]),
    0xC0000006: (
        "STATUS_IN_PAGE_ERROR",
        "memory behind a committed address could not be read back from the page file",
        "look at the disk and at the System log in Event Viewer",
    ),
    0xC0000017: ("STATUS_NO_MEMORY", *_NO_MEMORY),
    0xC000012D: ("STATUS_COMMITMENT_LIMIT", *_NO_MEMORY),
}


#: Kind, signal, cause and hint.
_End: TypeAlias = "tuple[str, str | None, str, str]"


def describe_accident(
    entries: Sequence[Entry],
    plan: WorkerPlan,
    code: int,
    *,
    killed: Diagnosis,
    hung: Diagnosis | None,
    stderr: str,
) -> Accident:
    """Return what happened to a worker that ended with *code* and without a report.

    Args:
        entries: Its journal: what each thread was doing.
        plan: What it was to do.
        code: Its exit code; a negative one is a signal's number.
        killed: Who sent SIGKILL or SIGXCPU, if that is what ended it.
        hung: Why it did not move, if it was killed because of that.
        stderr: The end of what it printed.
    """
    thread, entry = next(
        ((i, e) for i, e in enumerate(entries) if e.operation != "idle"), (0, entries[0])
    )
    if hung:
        kind, name, cause, hint = "hang", None, hung.cause, hung.remedy
    elif code < 0:
        kind, name, cause, hint = _by_signal(-code, killed)
    else:
        kind, name, cause, hint = _by_exit(code, stderr)
    # Windows has no signals to send: os.kill() ends the process with the number as its exit code.
    sent = signal_name(code) if name is None and sys.platform == "win32" else name
    effect = "=HANG" if hung else f"={sent}"
    asked = [fault for fault in plan.settings.inject if fault.upper().endswith(effect)]
    if asked and not (hung and hung.kind == CANNOT_BE_KILLED):
        cause, hint = f"--inject {asked[0]} ended it", "leave out --inject"
    methods = plan.settings.methods
    return Accident(
        kind=kind,
        signal=name,
        exit_code=None if hung or code < 0 else code,
        operation=entry.operation,
        method=methods[min(entry.method_index, len(methods) - 1)],
        granule=entry.granule,
        cycle=entry.cycle,
        thread=thread,
        worker=plan.worker,
        cause=cause,
        hint=hint,
    )


def _by_signal(number: int, killed: Diagnosis) -> _End:
    name = signal_name(number)
    if name == "SIGKILL" or (name == "SIGXCPU" and killed.kind == "cpu-limit"):
        return "signal", name, killed.cause, killed.remedy
    cause, hint = _CAUSES.get(name, (f"the process got {name}", "look at `dmesg`"))
    return "signal", name, cause, hint


def _by_exit(code: int, stderr: str) -> _End:
    # Windows' ctypes turns this exception, and no other, into an error of Python's.
    exception = _ACCESS_VIOLATION if "access violation" in stderr else code
    if exception in _EXCEPTIONS:
        return "signal", *_EXCEPTIONS[exception]
    last = (stderr.strip().splitlines()[-1:] or ["no output on stderr"])[0]
    return "exit", None, last, "unexpected worker exit; please report this"
