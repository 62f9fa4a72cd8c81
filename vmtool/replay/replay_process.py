"""Replays in other processes: on real memory in a child that may die, or by workers.

``python -m vmtool.replay.replay_process`` reads one line with a :class:`Job` from stdin and writes lines of JSON:
the result so far twice a second, and at last the result or an error. The end of stdin asks it to stop.
"""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vmtool import errors
from vmtool.errors import VmtoolError
from vmtool.json_documents import DocumentError, decode, parse, plain
from vmtool.kv.traces.trace import Trace
from vmtool.machine import read_facts
from vmtool.machine.killed_or_slowed_children import (
    KILLED_BY_VMTOOL,
    diagnose_kill,
    ended_children_s,
)
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.children import end_child, prepare_child, signal_name, start_child
from vmtool.memory.threads import start_thread
from vmtool.replay.real_memory import open_memory
from vmtool.replay.trace_to_result import run_replay
from vmtool.results.kv_replay import ReplayAccident, ReplayResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vmtool.executors import Executor, TaskResult
    from vmtool.replay.rules import Rules
    from vmtool.results.kv_replay import ReplaySettings


_EVERY_S: Final = 0.5
_POLL_S: Final = 0.05
#: How long a child that was asked to stop may take to release everything.
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a child replays.

    Attributes:
        trace: The arguments of :class:`vmtool.kv.traces.trace.Trace`.
        rules: The rules.
        backing: The name of the backing.
        method: How it commits.
        prefault: Whether it faults pages in.
        touch: Whether each page is written to.
        find_budget: Whether the smallest budget is looked for.
    """

    trace: Mapping[str, Any]
    rules: Rules
    backing: str
    method: str | None
    prefault: bool
    touch: bool
    find_budget: bool


def replay_in_child(
    job: Job, stop: Callable[[], bool], seen: Callable[[int], None] = lambda _requests: None
) -> ReplayResult:
    """Replay *job* in another process.

    Args:
        job: What.
        seen: Called now and then with the requests that the child has read.
        stop: Called from time to time; once it returns true, the child stops, and the result is
            what it did until then.

    Raises:
        VmtoolError: If the replay fails, or the child dies before it has done anything.
    """
    before, used_s = read_facts(), ended_children_s()
    child = start_child("vmtool.replay.replay_process")
    try:
        lines = _Lines(child)
    except BaseException:
        end_child(child)
        raise
    assert child.stdin is not None  # noqa: S101 - a pipe
    with suppress(OSError):  # it died already
        child.stdin.write(base64.b64encode(pickle.dumps(job)).decode() + "\n")
        child.stdin.flush()
    asked_s: float | None = None
    try:
        while _runs_on(child):
            now = time.monotonic()
            seen(lines.requests)
            if asked_s is None and stop():
                asked_s = now
                with suppress(OSError):
                    child.stdin.close()
            elif asked_s is not None and now - asked_s > _PATIENCE_S:
                child.kill()
    except BaseException:
        child.kill()  # a second Ctrl-C
        raise
    finally:
        child.wait()
        lines.join()
        with suppress(OSError):
            child.stdin.close()
    if lines.unheard:
        raise MemoryError
    if lines.error is not None:
        raise _error(lines.error)
    if lines.result is not None:
        return replace(lines.result, settings=job.rules.settings)
    name = signal_name(-child.returncode) if child.returncode < 0 else None
    died = diagnose_kill(before, read_facts(), ended_children_s() - used_s)
    if asked_s is not None:
        died = KILLED_BY_VMTOOL
    how = f"got {name}" if name else f"ended with code {child.returncode}"
    if lines.partial is None:
        last = (lines.stderr.strip().splitlines() or [""])[-1]
        raise errors.VmtoolError(
            f"the replay process {how} before it replayed anything" + (f": {last}" if last else ""),
            cause=died.cause if name else None,
            hint=died.remedy if name else None,
        )
    accident = ReplayAccident(
        name, child.returncode if name is None else None, died.cause, died.remedy
    )
    return replace(lines.partial, settings=job.rules.settings, complete=False, accident=accident)


def _runs_on(child: subprocess.Popen[str]) -> bool:
    """Wait a moment for *child*, and return whether it still runs.

    Raises:
        OSError: If a seccomp filter refuses the wait; ``poll`` would say for ever that it runs.
    """
    try:
        child.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


class _Lines:
    """What a child writes, as it comes."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.partial: ReplayResult | None = None
        self.result: ReplayResult | None = None
        self.error: dict[str, Any] | None = None
        self.requests = 0
        self.stderr = ""
        self.unheard = False
        self._child = child
        self._threads = [start_thread(self._follow), start_thread(self._listen)]

    def join(self) -> None:
        """Wait for the end of both streams."""
        for thread in self._threads:
            thread.join()
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()

    def _follow(self) -> None:
        try:
            self._read()
        except MemoryError:
            self.unheard = True
            self._child.kill()  # it would wait for ever for a reader

    def _read(self) -> None:
        last = ""
        for line in self._child.stdout or ():
            if not line.endswith("\n"):
                break  # it died while it wrote
            last = line
            with suppress(KeyError):  # an error has none
                self.requests = msgspec.json.decode(line)["result"]["trace"]["requests"]
        if not last:
            return
        message = msgspec.json.decode(last)
        if "error" in message:
            self.error = message
        elif message["partial"]:
            self.partial = decode(ReplayResult, message["result"])
        else:
            self.result = decode(ReplayResult, message["result"])

    def _listen(self) -> None:
        self.stderr = "".join(self._child.stderr or ())


def _error(message: Mapping[str, Any]) -> errors.VmtoolError:
    """Return the error that a child told of."""
    kinds = {
        "CheckFailedError": errors.CheckFailedError,
        "UnavailableError": errors.UnavailableError,
        "RefusedError": errors.RefusedError,
        "UsageError": errors.UsageError,
        "InputError": errors.UsageError,
    }
    kind = kinds.get(message["error"], errors.VmtoolError)
    return kind(message["message"], cause=message["cause"], hint=message["hint"])


def replay_remotely(
    tasks: Mapping[int, tuple[Sequence[str], ReplaySettings]],
    executor: Executor,
    stop: Callable[[], bool],
) -> Iterator[tuple[int, ReplayResult | str]]:
    """Run replays and yield the key and the result of each, or why it was lost, as they end.

    Args:
        tasks: By key, the arguments of vmtool and the settings as they are known here.
        executor: What runs them.
        stop: Called from time to time; once it returns true, what is not done is left out.

    Raises:
        VmtoolError: If a replay fails there.
    """
    keys = list(tasks)
    for index, ended in executor.run([tasks[key][0] for key in keys], stop):
        key = keys[index]
        if ended.kind in {"died", "gone"}:
            yield key, ended.stderr
        else:
            yield key, replace(_result(ended), settings=tasks[key][1])


def _result(ended: TaskResult) -> ReplayResult:
    if ended.code != 0:
        lines = ended.stderr.strip().splitlines() or [f"it ended with code {ended.code}"]
        raise VmtoolError(f"a replay in another process failed: {lines[-1]}")
    try:
        return decode(ReplayResult, parse("the result of a replay", ended.stdout.encode()))
    except DocumentError as error:
        raise VmtoolError(f"a replay in another process gave no result: {error}") from error


def main() -> int:
    """Replay the job on stdin, and return the exit code."""
    prepare_child()
    job: Job = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301 - of the parent
    stopping = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stopping.set()

    try:
        start_thread(wait)
        result = _replay(job, stopping)
    except errors.VmtoolError as error:
        _tell(
            {
                "error": type(error).__name__,
                "message": str(error),
                "cause": str(error.cause) if error.cause else None,
                "hint": error.hint,
            }
        )
        return error.exit_code
    _tell({"partial": False, "result": plain(result)})
    return 0


def _replay(job: Job, stopping: threading.Event) -> ReplayResult:
    trace = Trace(**job.trace)
    plan, settings = job.rules.plan, job.rules.settings
    backing = open_backing(
        job.backing, method=job.method, prefault=job.prefault, label="vmtool kv-replay"
    )
    due_s = time.monotonic() + _EVERY_S

    def snapshot(make: Callable[[], ReplayResult]) -> None:
        nonlocal due_s
        now = time.monotonic()
        if now >= due_s:
            due_s = now + _EVERY_S
            _tell({"partial": True, "result": plain(make())})

    with open_memory(
        backing, plan.policy.granule, plan.budget_bytes, plan.retain_bytes, touch=job.touch
    ) as memory:
        return run_replay(
            trace,
            plan,
            settings,
            memory=memory,
            find_budget=job.find_budget,
            stop=stopping.is_set,
            snapshot=snapshot,
        )


def _tell(message: Mapping[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
