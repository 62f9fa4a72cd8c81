"""A comparison of two runs as text: what changed, how certain that is, and what the gates say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.compare.runs import QUANTILES, Direction
from vmtool.report.document import document
from vmtool.report.table import plain_table
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from vmtool.compare.differences import Difference
    from vmtool.compare.runs import Change, Comparison, Rate
    from vmtool.compare.stored import StoredRun
    from vmtool.report.table import ReportTable

SCHEMA: Final = "vmtool.compare"
VERSION: Final = 1

_STYLES: Final = {
    Direction.FASTER: "green",
    Direction.SLOWER: "red",
    Direction.UNCHANGED: "default",
}


@dataclass(frozen=True, slots=True)
class RunLabel:
    """Which run this was.

    Attributes:
        path: The file it was read from.
        command: The command line that made it.
        vmtool: The version that made it.
    """

    path: str
    command: tuple[str, ...]
    vmtool: str


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """The two runs that a comparison is about.

    Attributes:
        before: The reference.
        after: The run that is judged.
    """

    before: RunLabel
    after: RunLabel


def label(run: StoredRun) -> RunLabel:
    """Return which run *run* is, without its samples."""
    return RunLabel(run.path, run.command, run.vmtool)


def compare_document(
    runs: ComparedRuns, comparison: Comparison, *, command: list[str]
) -> dict[str, Any]:
    """Return the comparison as a document ``vmtool.compare``."""
    body = {name: getattr(runs, name) for name in ("before", "after")}
    body |= {name: getattr(comparison, name) for name in type(comparison).__slots__}
    return document(SCHEMA, VERSION, command=command, body=body)


def print_comparison(runs: ComparedRuns, comparison: Comparison, console: Console) -> None:
    """Print the verdict on every phase, the rates, and the gates."""
    console.print(f"{runs.before.path} -> {runs.after.path}\n")
    shown = comparison.changes
    if not shown:
        console.print("the runs have no phase in common")
    for name in dict.fromkeys(method_text(change) for change in shown):
        console.print(name, style="bold")
        rows = [change for change in shown if method_text(change) == name]
        console.print(_table(rows, comparison.confidence))
        for rate in comparison.rates:
            if method_text(rate) == name:
                console.print(_rate_line(rate) + "\n")
    for line in footnotes(comparison):
        console.print(line)
    for gate in comparison.gates:
        console.print(
            f"{'FAILED' if gate.failed else 'passed'}  fail-on {gate.condition} ({gate.detail})",
            style="red" if gate.failed else "green",
        )


def footnotes(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader must know about the verdicts."""
    if any(not change.certain for change in comparison.changes):
        yield (
            f"? the interval reaches beyond ±{percent(comparison.threshold)}, so a change may be "
            "hidden: more cycles, or a quieter machine, would tell"
        )
    found: dict[tuple[str, str], set[str]] = {}
    for change in comparison.changes:
        found.setdefault((method_text(change), change.phase), set()).add(change.statistic)
    many = len({name for name, _ in found}) > 1
    missing = {
        statistic: [
            f"{name} {phase}" if many else phase
            for (name, phase), statistics in found.items()
            if statistic not in statistics
        ]
        for statistic in QUANTILES
    }
    listed = [f"{name} of {', '.join(places)}" for name, places in missing.items() if places]
    if listed:
        yield (
            "left out, as the samples are too few, or too dependent on each other, to bound it: "
            f"{'; '.join(listed)}"
        )


def differences(what: str, found: Sequence[Difference]) -> str:
    """Return a sentence that lists what is not alike, for the user to weigh."""
    items = "; ".join(f"{d.name}: {_fact(d.before)} and {_fact(d.after)}" for d in found)
    return f"{what}: {items}"


def change_text(ratio: float) -> str:
    """Return a ratio as a signed change: 1.104 is ``+10.4 %``."""
    # Adding zero turns the -0.0 that rounding leaves into 0.0, which has no direction.
    return f"{round((ratio - 1) * 100, 1) + 0.0:+,.1f} %"


def interval_text(change: Change) -> str:
    """Return the interval of a change; without an upper end it is only ``over`` something."""
    if change.high is None:
        return f"over {_signed(change.low)} %"
    return f"{_signed(change.low)} to {_signed(change.high)} %"


def verdict_text(change: Change) -> str:
    """Return the verdict, with a question mark when it is not certain."""
    return change.direction.value + ("" if change.certain else "?")


def percent(part: float) -> str:
    """Return a part as percent, without decimals that say nothing: 0.05 is ``5 %``."""
    return f"{part * 100:.4g} %"


def method_text(item: Change | Rate) -> str:
    """Return the method, or both when the runs had one each and not the same."""
    if item.method == item.method_after:
        return item.method
    return f"{item.method} -> {item.method_after}"


def _signed(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+,.1f}"


def _table(rows: Sequence[Change], confidence: float) -> ReportTable:
    interval = f"{percent(confidence)} interval"
    table = plain_table("", "before", "after", "change", interval, ("verdict", "left"))
    for change in rows:
        table.add_row(
            f"{change.phase} {change.statistic}",
            format_duration(change.before_ns),
            format_duration(change.after_ns),
            change_text(change.ratio),
            interval_text(change),
            verdict_text(change),
            style=_STYLES[change.direction],
        )
    return table


def _rate_line(rate: Rate) -> str:
    before, after = rate.before_cycles_per_s, rate.after_cycles_per_s
    change = f" ({change_text(after / before)})" if before > 0 else ""
    return f"cycles/s: {before:,.0f} to {after:,.0f}{change}"


def _fact(value: str | float | None) -> str:
    return "not told" if value is None else str(value)
