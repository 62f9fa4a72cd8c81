"""All workers of a run: started together, followed, and ended when they hang or the user stops."""

from __future__ import annotations

import contextlib
import queue
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from vmtool.encoding import decode
from vmtool.errors import ExitCode, VmtoolError
from vmtool.results import Checkpoint
from vmtool.stress.folder import JournalFolder
from vmtool.stress.messages import PhaseSoFar, WorkerError, WorkerReport
from vmtool.stress.running import Ending, RunningWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.stress.messages import WorkerPlan

_POLL_S: Final = 0.1
_POLL_NS: Final = 10**8
#: A worker that was told to stop has this long to give everything back before it is killed.
_GRACE_NS: Final = 10 * 10**9
#: Loading Python on a busy machine is no hang, whatever the user's timeout for operations is.
_START_NS: Final = 60 * 10**9


class WorkerRefusedError(VmtoolError):
    """What a worker could not start with; it keeps the exit code of the worker's own error."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(error.message, cause=error.cause, hint=error.hint)
        self.exit_code = ExitCode(error.exit_code)  # type: ignore[misc]


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
    workers: list[RunningWorker] = []
    made = JournalFolder([plan.settings.threads for plan in plans])
    with contextlib.closing(made) as folder:
        try:
            for plan, path, journal in zip(plans, folder.paths, folder.journals, strict=True):
                workers.append(RunningWorker(plan, path, journal, inbox))
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
        workers: Sequence[RunningWorker],
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

    def _take(self, worker: RunningWorker, message: dict[str, Any]) -> None:
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
