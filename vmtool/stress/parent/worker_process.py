"""One worker as its parent sees it: its process, its messages, and how and why it ended."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from vmtool.errors import VmtoolError
from vmtool.machine import read_facts
from vmtool.machine.kernel_files import KernelFiles
from vmtool.machine.killed_or_slowed_children import (
    KILLED_BY_VMTOOL,
    diagnose_hang,
    diagnose_kill,
    ended_children_s,
    read_state,
)
from vmtool.memory.children import signal_name, start_child, wait_killed, why_not_killed
from vmtool.memory.errors import Diagnosis
from vmtool.memory.threads import start_thread
from vmtool.no_memory import why_no_memory
from vmtool.results.stress import PHASES, Accident, PhaseResult
from vmtool.stress.messages import PhaseSoFar, WorkerReport, encode
from vmtool.stress.worker.checkpoint import MOST_CHECKPOINTS, KeptCheckpoints

if TYPE_CHECKING:
    import queue
    from collections.abc import Sequence
    from pathlib import Path

    from vmtool.stress.journal import Entry, Journal
    from vmtool.stress.messages import WorkerPlan

#: The kind of the diagnosis of a worker that was given up.
_CANNOT_BE_KILLED: Final = "cannot-be-killed"
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
#: The last bytes of a worker's stderr are kept for the error message.
_STDERR_KEPT: Final = 4000


@dataclass(frozen=True, slots=True)
class Ending:
    """How one worker ended.

    Attributes:
        report: Its final report, or the last one before it died; ``None`` if there was none.
        accident: What killed it, if it did not end by itself.
    """

    report: WorkerReport | None
    accident: Accident | None


class RunningWorker:
    """One child process and its three channels.

    Args:
        plan: What it does.
        path: Of its journal.
        journal: The same, open here.
        inbox: Where its messages go.
        most: Checkpoints of it that are kept.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        path: Path,
        journal: Journal,
        inbox: queue.Queue[Any],
        most: int = MOST_CHECKPOINTS,
    ) -> None:
        self.plan = plan
        self.index = plan.worker
        self.journal = journal
        self._before = read_facts()
        self.process = start_child("vmtool.stress.worker", str(path))
        stdin, stdout, stderr = self.process.stdin, self.process.stdout, self.process.stderr
        if stdin is None or stdout is None or stderr is None:  # narrows: all three are pipes
            raise RuntimeError("a worker was started without pipes")
        self._stdin = stdin
        self._streams = (stdin, stdout, stderr)
        self.report: WorkerReport | None = None
        self.final = False
        self.timeline = KeptCheckpoints(most)
        self.phases: dict[tuple[int, str], PhaseSoFar] = {}
        self.incoming: dict[tuple[int, str], PhaseSoFar] = {}
        self.hung: Diagnosis | None = None
        self.unheard = False
        self._killed_ns: int | None = None
        self._abandoned = False
        self.stderr = ""
        self.moved_ns = monotonic_ns()
        self._seen: list[Entry] = []
        self._cycles = 0
        self._cycle_ns = self.moved_ns
        try:
            self._readers = [
                start_thread(read_messages, self, stdout, inbox),
                start_thread(self._read_errors, stderr),
            ]
        except VmtoolError:
            self.process.kill()
            self.process.wait()
            raise
        self.send(encode("plan", plan))

    def send(self, line: str) -> None:
        """Write one line to the worker; one that is dead is noticed elsewhere."""
        try:
            self._stdin.write(line)
            self._stdin.flush()
        except (BrokenPipeError, OSError):
            return

    def entries(self) -> list[Entry]:
        """Return what each of its threads is doing."""
        return [self.journal.read(thread) for thread in range(self.plan.settings.threads)]

    def stalled_ns(self, now: int) -> int:
        """Return for how long none of its threads has made progress."""
        entries = self.entries()
        if entries != self._seen:
            self._seen, self.moved_ns = entries, now
        return now - self.moved_ns

    def same_cycle_ns(self, now: int) -> int:
        """Return for how long none of its threads has done another cycle."""
        cycles = sum(entry.cycle for entry in self.entries())
        if cycles != self._cycles:
            self._cycles, self._cycle_ns = cycles, now
        return now - self._cycle_ns

    def kill(self) -> None:
        """End it now."""
        if self.process.poll() is None:
            self._killed_ns = self._killed_ns or monotonic_ns()
            self.process.kill()

    def abandon(self, after_ns: int) -> bool:
        """Give it up if it was killed *after_ns* ago and is still there; return whether it was now.

        It waits in the kernel (state D), perhaps for ever, and its pipes stay open as long.
        """
        killed = self._killed_ns
        if self._abandoned or killed is None or monotonic_ns() - killed < after_ns:
            return False
        self._abandoned = self.process.poll() is None
        if self._abandoned:
            self.hung = Diagnosis(_CANNOT_BE_KILLED, *why_not_killed(self.process.pid))
        return self._abandoned

    def kill_hung(self) -> None:
        """Kill it because it makes no progress, after looking for the reason."""
        if self.hung is None:
            state = read_state(self.process.pid, KernelFiles())
            self.hung = diagnose_hang(self._before, read_facts(), state)
        self.kill()

    def kill_unheard(self) -> None:
        """Kill it because nobody reads its messages any more."""
        limit, hint = why_no_memory()
        why = f": {limit}" if limit else ""
        cause = f"vmtool had no memory left to read what the worker sent{why}"
        self.hung = self.hung or Diagnosis("no-memory", cause, hint)
        self.kill()

    def end(self) -> Ending:
        """Wait for it and return how it ended."""
        others_s = ended_children_s()
        code = 0 if self._abandoned else self.process.wait()
        cpu_s = ended_children_s() - others_s
        for reader in self._readers:
            if not self._abandoned:
                reader.join()
        accident = None
        if not self.final:
            accident = _describe_accident(
                self.entries(),
                self.plan,
                code,
                killed=KILLED_BY_VMTOOL
                if self._killed_ns is not None
                else diagnose_kill(self._before, read_facts(), cpu_s),
                hung=self.hung,
                stderr=self.stderr,
            )
        return Ending(self._whole_report(), accident)

    def _whole_report(self) -> WorkerReport | None:
        """Return the last report with everything that was sent apart from it."""
        report = self.report
        if report is None:
            return None
        methods = report.methods
        if not self.final:
            methods = tuple(
                replace(method, phases=self._phases_of(index))
                for index, method in enumerate(methods)
            )
        return replace(report, methods=methods, checkpoints=self.timeline.kept())

    def _phases_of(self, index: int) -> tuple[PhaseResult, ...]:
        parts = (self.phases.get((index, phase)) for phase in PHASES)
        return tuple(p.phase for p in parts if p is not None and p.phase.summary.samples)

    def close(self) -> None:
        """Kill what is left of it and close every channel."""
        if self._abandoned:
            return
        if self.process.poll() is None:
            self.process.kill()
            try:
                wait_killed(self.process)
            except VmtoolError:
                return  # its pipes stay open as long as it is there; the readers end with them
        for reader in self._readers:
            reader.join()
        for stream in self._streams:
            with contextlib.suppress(OSError):  # the unsent rest for a dead reader
                stream.close()

    def _read_errors(self, stream: IO[str]) -> None:
        with contextlib.suppress(MemoryError):  # the other channels tell how it ends
            for line in stream:
                self.stderr = (self.stderr + line)[-_STDERR_KEPT:]


def read_messages(worker: RunningWorker, stream: IO[str], inbox: queue.Queue[Any]) -> None:
    """Put each message of *stream* into *inbox* with its *worker*, and "end" after the last.

    If there is no memory for that, *worker* is noted as unheard: this needs none.
    """
    try:
        for line in stream:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # the half of one that was being written when it was killed
            inbox.put((worker, message))
        inbox.put((worker, {"message": "end"}))
    except MemoryError:
        worker.unheard = True


#: Kind, signal, cause and hint.
_End: TypeAlias = "tuple[str, str | None, str, str]"


def _describe_accident(
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
    if asked and not (hung and hung.kind == _CANNOT_BE_KILLED):
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
