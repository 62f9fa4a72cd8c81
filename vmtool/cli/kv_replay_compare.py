"""``vmtool kv-replay --compare``: a replay for each combination, in this process or elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.cli.kv_compare_axes import combinations, read_axes, read_granule
from vmtool.cli.kv_replay_options import AXES
from vmtool.errors import InputError, RefusedError, UsageError
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.cli.kv_replay_options import ReplayOptions
    from vmtool.executors import Executor
    from vmtool.replay.rules import Rules
    from vmtool.results.kv_replay import ComparedReplay, ReplayComparison, ReplayResult

    #: Labels and options of one combination.
    Cell = tuple[dict[str, str], ReplayOptions]


def _policy(text: str) -> str:
    from vmtool.kv.packing.policies import POLICIES

    if text not in POLICIES:
        raise ValueError(f"unknown policy {text[:40]!r}; use {', '.join(POLICIES)}")
    return text


def _dtype(text: str) -> str:
    from vmtool.kv.element_formats import choose_formats

    choose_formats(None, key=text, value=text)
    return text


def _mode(text: str) -> str:
    if text not in ("wait", "reject", "preempt"):
        raise ValueError(f"{text[:40]!r} is not wait, reject or preempt")
    return text


#: How a value on each axis is read.
_READERS: Final[dict[str, Callable[[str], Any]]] = dict(
    zip(AXES, (read_granule, _policy, _dtype, parse_count, _mode, parse_count), strict=True)
)
#: Each row replays the whole trace.
_MOST_ROWS: Final = 100


def replay_cells(options: ReplayOptions, axes: Sequence[str]) -> list[Cell]:
    """Return every combination of *axes*; each value is read before the first replay.

    Raises:
        UsageError: If an axis or a value on it is unknown, or there are too many combinations.
    """
    values = read_axes(axes, AXES, _MOST_ROWS)
    read = {(axis, text): _read(axis, text) for axis, found in values.items() for text in found}
    cells = []
    for labels in combinations(values) if values else ():
        changed = {axis.replace("-", "_"): read[axis, text] for axis, text in labels.items()}
        if "dtype" in changed:
            changed |= {"dtype_k": None, "dtype_v": None}
        cells.append((labels, replace(options, **changed)))
    return cells


def _read(axis: str, value: str) -> Any:
    try:
        found = _READERS[axis](value)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"--compare {axis}: {error}") from None
    if axis == "block" and not found:
        raise UsageError("--compare block: a block has at least one token")
    return found


def compare_cells(
    cells: Sequence[Cell], replay: Callable[[ReplayOptions], ReplayResult]
) -> ReplayComparison:
    """Replay every combination, one after the other; one that did not come to its end is no row.

    Raises:
        UsageError: If no combination is possible.
        RefusedError: If no combination is safe on this machine.
    """
    from vmtool.report.kv_replay import how_it_ended
    from vmtool.results.kv_replay import ComparedReplay

    def rows() -> Iterator[ComparedReplay | None]:
        for labels, options in cells:
            try:
                result = replay(options)
            except InputError:
                raise  # the trace is bad, and so in every row
            except (UsageError, RefusedError) as error:
                refusals.append(error)
                yield ComparedReplay(labels, None, str(error))
            else:
                if result.accident is not None:
                    problems.append(how_it_ended(result.accident))
                yield ComparedReplay(labels, result, "") if result.complete else None

    refusals: list[UsageError | RefusedError] = []
    problems: list[str] = []
    found = _compared(rows(), refusals)
    return replace(found, problem=problems[0]) if problems else found


def compare_elsewhere(
    cells: Sequence[Cell],
    rules_of: Callable[[ReplayOptions], Rules],
    budget: int,
    where: tuple[int, str | None],
    stop: Callable[[], bool],
) -> ReplayComparison:
    """Replay the combinations in several processes, or on a cluster.

    Where some were lost, it is incomplete and says why.

    Args:
        cells: The combinations.
        rules_of: The rules of one.
        budget: In bytes, of this machine.
        where: How many processes, or the address of a cluster.
        stop: Called from time to time; once it returns true, what is not done is left out.
    """
    from vmtool.replay.replay_process import replay_remotely
    from vmtool.results.kv_replay import ComparedReplay, ReplayComparison

    lost = ""

    rows: list[ComparedReplay | None] = []
    refusals: list[UsageError | RefusedError] = []
    tasks = {}
    for at, (labels, options) in enumerate(cells):
        try:
            settings = rules_of(options).settings
        except (UsageError, RefusedError) as error:
            refusals.append(error)
            rows.append(ComparedReplay(labels, None, str(error)))
        else:
            rows.append(None)
            tasks[at] = options.arguments(budget), settings
    with _executor(*where) as executor:
        for at, result in replay_remotely(tasks, executor, stop):
            if isinstance(result, str):
                lost = result
            else:
                rows[at] = ComparedReplay(cells[at][0], result, "")
    if lost:
        done = [row for row in rows if row is not None]
        return ReplayComparison.of(done, complete=False, problem=lost)
    return _compared(rows, refusals)


@contextmanager
def _executor(jobs: int, address: str | None) -> Iterator[Executor]:
    if address is None:
        from vmtool.executors import LocalExecutor

        yield LocalExecutor(jobs)
        return
    from vmtool.fleet.dask_hosts import connected

    with connected(address) as cluster:
        yield cluster


def _compared(
    found: Iterable[ComparedReplay | None], refusals: Sequence[UsageError | RefusedError]
) -> ReplayComparison:
    """Return the comparison of the rows before the first that is missing."""
    from vmtool.results.kv_replay import ReplayComparison

    rows: list[ComparedReplay] = []
    complete = True
    for row in found:
        if row is None:
            complete = False
            break
        rows.append(row)
    if refusals and complete and all(row.result is None for row in rows):
        raise refusals[0]
    return ReplayComparison.of(rows, complete=complete)
