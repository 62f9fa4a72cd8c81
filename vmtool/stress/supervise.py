"""The parent's side of the workers: start them, watch their journals, collect what they tell."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import IO, TYPE_CHECKING, Any, Final

from vmtool.encoding import decode
from vmtool.errors import ExitCode, VmtoolError
from vmtool.machine import read_facts
from vmtool.machine.kills import diagnose_kill
from vmtool.results import PHASES, Checkpoint, PhaseResult
from vmtool.stress.accidents import describe_accident
from vmtool.stress.child import start_child
from vmtool.stress.folder import JournalFolder
from vmtool.stress.messages import PhaseSoFar, WorkerError, WorkerReport, encode
from vmtool.stress.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vmtool.results import Accident
    from vmtool.stress.journal import Entry, Journal
    from vmtool.stress.messages import WorkerPlan

_POLL_S: Final = 0.1
_POLL_NS: Final = 10**8
#: A worker that was told to stop has this long to give everything back before it is killed.
_GRACE_NS: Final = 10 * 10**9
#: Loading Python on a busy machine is no hang, whatever the user's timeout for operations is.
_START_NS: Final = 60 * 10**9
#: The last bytes of a worker's stderr are kept for the error message.
_STDERR_KEPT: Final = 4000


class WorkerRefusedError(VmtoolError):
    """What a worker could not start with; it keeps the exit code of the worker's own error."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error.message, cause=error.cause, hint=error.hint)
        self.exit_code = ExitCode(error.exit_code)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Ending:
    """How one worker ended.

    Attributes:
        report: Its final report, or the last one before it died; ``None`` if there was none.
        accident: What killed it, if it did not end by itself.
    """

    report: WorkerReport | None
    accident: Accident | None


class _Worker:
    """One child process and its three channels."""

    def __init__(
        self, plan: WorkerPlan, path: Path, journal: Journal, inbox: queue.SimpleQueue[Any]
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
        self.timeline = Timeline()
        self.phases: dict[tuple[int, str], PhaseSoFar] = {}
        self.arriving: dict[tuple[int, str], PhaseSoFar] = {}
        self.hung = False
        self.stderr = ""
        self.moved_ns = monotonic_ns()
        self._seen: list[Entry] = []
        self._readers = [
            threading.Thread(target=self._read_messages, args=(stdout, inbox), daemon=True),
            threading.Thread(target=self._read_errors, args=(stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.tell(encode("plan", plan))

    def tell(self, line: str) -> None:
        """Write one line to the worker; one that is dead is noticed elsewhere."""
        try:
            self._stdin.write(line)
            self._stdin.flush()
        except (BrokenPipeError, OSError):
            return

    def entries(self) -> list[Entry]:
        """Return what each of its threads is doing."""
        return [self.journal.read(thread) for thread in range(self.plan.settings.threads)]

    def stalled_ns(self) -> int:
        """Return for how long none of its threads has moved."""
        entries = self.entries()
        now = monotonic_ns()
        if entries != self._seen:
            self._seen, self.moved_ns = entries, now
        return now - self.moved_ns

    def kill(self) -> None:
        """End it now."""
        self.process.kill()

    def end(self) -> Ending:
        """Wait for it and return how it ended."""
        code = self.process.wait()
        for reader in self._readers:
            reader.join()
        accident = None
        if not self.final:
            accident = describe_accident(
                self.entries(),
                self.plan,
                code,
                killed=diagnose_kill(self._before, read_facts()),
                hung=self.hung,
                stderr=self.stderr,
            )
        return Ending(self._whole_report(), accident)

    def _whole_report(self) -> WorkerReport | None:
        """Return the last report with everything that was told apart from it."""
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
        told = (self.phases.get((index, phase)) for phase in PHASES)
        return tuple(t.phase for t in told if t is not None and t.phase.summary.samples)

    def close(self) -> None:
        """Kill what is left of it and close every channel."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for stream in self._streams:
            with contextlib.suppress(OSError):  # the unsent rest for a dead reader
                stream.close()

    def _read_messages(self, stream: IO[str], inbox: queue.SimpleQueue[Any]) -> None:
        for line in stream:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # the half of one that was being written when it was killed
            inbox.put((self, message))
        inbox.put((self, {"message": "end"}))

    def _read_errors(self, stream: IO[str]) -> None:
        for line in stream:
            self.stderr = (self.stderr + line)[-_STDERR_KEPT:]


def run_workers(
    plans: Sequence[WorkerPlan],
    *,
    hang_ns: int,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _cycles: None,
) -> tuple[list[Ending], bool]:
    """Run one process for each plan, all started together; return how each ended.

    A ``KeyboardInterrupt`` kills them; what they told before is kept.

    Args:
        plans: What each worker does.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Asked about ten times a second; once it is true the workers stop early, give
            everything back and report what they have.
        progress: Called about ten times a second with the cycles done by all of them.

    Returns:
        The endings, and whether the run was interrupted.

    Raises:
        VmtoolError: If a worker cannot start with its plan.
    """
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    workers: list[_Worker] = []
    made = JournalFolder([plan.settings.threads for plan in plans])
    with contextlib.closing(made) as folder:
        try:
            for plan, path, journal in zip(plans, folder.paths, folder.journals, strict=True):
                workers.append(_Worker(plan, path, journal, inbox))
            watch = _Watch(workers, inbox, hang_ns, stopping, progress, begun=folder.hide)
            interrupted = watch.run()
            return [worker.end() for worker in workers], interrupted
        finally:
            for worker in workers:
                worker.close()


class _Watch:
    """The loop that follows running workers until the last has ended.

    Args:
        workers: Whom to follow.
        inbox: Where their messages arrive.
        hang_ns: A worker that does not move for this long is killed.
        stopping: Asked whether to end early.
        progress: Called with the cycles done.
        begun: Called when every worker is ready, before the first cycle.
    """

    def __init__(
        self,
        workers: Sequence[_Worker],
        inbox: queue.SimpleQueue[Any],
        hang_ns: int,
        stopping: Callable[[], bool],
        progress: Callable[[int], None],
        *,
        begun: Callable[[], None],
    ) -> None:
        self._workers = workers
        self._inbox = inbox
        self._hang_ns = hang_ns
        self._stopping = stopping
        self._progress = progress
        self._begun = begun
        self._running = set(range(len(workers)))
        self._waiting = set(range(len(workers)))
        self._started = False
        self._watch_ns = 0
        self._interrupted_ns: int | None = None

    def run(self) -> bool:
        """Follow them; return whether the user ended the run."""
        while self._running:
            try:
                self._step()
            except KeyboardInterrupt:
                self._interrupted_ns = self._interrupted_ns or monotonic_ns()
                for worker in self._workers:
                    worker.kill()
        return self._interrupted_ns is not None

    def _step(self) -> None:
        if self._interrupted_ns is None and self._stopping():
            self._interrupted_ns = monotonic_ns()
            for worker in self._workers:
                worker.tell("stop\n")
        with contextlib.suppress(queue.Empty):
            self._take(*self._inbox.get(timeout=_POLL_S))
        # Messages may come faster than that, and must not keep the watch from its work.
        if monotonic_ns() < self._watch_ns:
            return
        self._watch_ns = monotonic_ns() + _POLL_NS
        self._progress(sum(e.cycle for worker in self._workers for e in worker.entries()))
        for index in self._running:
            worker = self._workers[index]
            late = (
                self._interrupted_ns is not None
                and monotonic_ns() - self._interrupted_ns > _GRACE_NS
            )
            patience = self._hang_ns if self._started else max(self._hang_ns, _START_NS)
            if late or worker.stalled_ns() > patience:
                worker.hung = True
                worker.kill()

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        kind = message["message"]
        if kind == "error":
            raise WorkerRefusedError(decode(WorkerError, message["value"]))
        if kind == "ready":
            self._waiting.discard(worker.index)
        elif kind == "phase":
            part = decode(PhaseSoFar, message["value"])
            worker.arriving[part.method_index, part.phase.phase] = part
        elif kind == "checkpoint":
            worker.timeline.add(decode(Checkpoint, message["value"]))
        elif kind in {"snapshot", "report"}:
            worker.report = decode(WorkerReport, message["value"])
            # Only now, so that what is kept of a killed worker is of one moment.
            worker.phases = dict(worker.arriving)
            worker.final = kind == "report"
        elif kind == "end":
            self._running.discard(worker.index)
            self._waiting.discard(worker.index)
        if kind in {"ready", "end"} and not self._waiting and not self._started:
            self._started = True
            self._begun()
            for other in self._workers:
                other.moved_ns = monotonic_ns()
            # All begin together; one that died before it was ready does not hold up the others.
            for other in self._workers:
                if not other.final:
                    other.tell("go\n")
