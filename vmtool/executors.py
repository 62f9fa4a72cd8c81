"""vmtool's commands, run elsewhere: in other processes on this machine, or on other machines."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a command ended.

    Attributes:
        code: Its exit code, negative for a signal; ``None`` if it did not end by itself.
        stdout: What it wrote to stdout.
        stderr: What it wrote to stderr, or why it did not run or end.
        kind: ``ended`` by itself, ``timeout``, ``died`` with its worker, ``gone`` with the scheduler, or
            ``failed`` to run.
    """

    code: int | None
    stdout: str
    stderr: str
    kind: str = "ended"


class Executor(Protocol):
    """Runs commands, several at once."""

    def run(
        self, commands: Sequence[Sequence[str]], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, TaskResult]]:
        """Run each of *commands*, the arguments of vmtool, and yield its index and how it ended.

        Args:
            commands: The arguments of each.
            stop: Called from time to time; once it returns true, what still runs is ended and not
                yielded.
        """


class LocalExecutor:
    """Runs commands in processes of this machine.

    Args:
        jobs: How many at once.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._running: list[subprocess.Popen[str]] = []

    def run(
        self, commands: Sequence[Sequence[str]], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, TaskResult]]:
        with ThreadPoolExecutor(self._jobs) as pool:
            futures = {pool.submit(self._run, command): at for at, command in enumerate(commands)}
            waiting = set(futures)
            try:
                while waiting and not stop():
                    done, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
                    for future in done:
                        yield futures[future], future.result()
            finally:
                for future in waiting:
                    future.cancel()
                for process in list(self._running):
                    process.kill()

    def _run(self, arguments: Sequence[str]) -> TaskResult:
        # A session of its own: Ctrl-C on the terminal reaches this process alone.
        process = subprocess.Popen(
            [sys.executable, "-m", "vmtool", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._running.append(process)
        try:
            stdout, stderr = process.communicate()
        finally:
            self._running.remove(process)
        return TaskResult(process.returncode, stdout, stderr)
