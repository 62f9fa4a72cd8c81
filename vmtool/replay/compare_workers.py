"""Replays in other processes: commands out, results back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.errors import VmtoolError
from vmtool.json_documents import DocumentError, decode, parse
from vmtool.results.kv_replay import ReplayResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vmtool.executors import Executor, TaskResult
    from vmtool.results.kv_replay import ReplaySettings


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
