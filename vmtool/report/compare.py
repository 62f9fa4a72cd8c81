"""The report of ``vmtool compare``: the verdict first, then each figure with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.compare.changes import DETECTED_CHANGE
from vmtool.compare.confidence_intervals import fewest_runs
from vmtool.report.console import paragraph, show
from vmtool.report.machine import fact_name, fact_text, moment
from vmtool.report.table import ReportTable
from vmtool.results.check_outcomes import NOT_PROVEN, CheckOutcome
from vmtool.results.compare import Direction, Doubt
from vmtool.results.stress import Outcome
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.results.check_outcomes import Check
    from vmtool.results.compare import (
        Change,
        ComparedSet,
        CompareResult,
        Difference,
        LeftOut,
    )

#: How each outcome of a check looks.
_CHECK_STYLES: Final = {
    CheckOutcome.PASSED: "green",
    CheckOutcome.FAILED: "bold red",
    CheckOutcome.NOT_DONE: "yellow",
}
_STYLES: Final = {Direction.FASTER: "green", Direction.SLOWER: "red"}
_ENDED: Final = {
    Outcome.INTERRUPTED: "was interrupted",
    Outcome.CALL_FAILED: "ended because a call failed",
    Outcome.CRASHED: "crashed",
    Outcome.HUNG: "hung",
    Outcome.COMPLETE: "measured nothing",
}
_MANY_RUNS: Final = 1000
_FEW: Final = 3  # settings that the first line names
_CHANGED: Final = (Direction.SLOWER, Direction.FASTER)
_ALTERNATE: Final = (
    "alternate the runs: `vmtool stress --runs 1 --json -o A/1.json`, then B/1.json, A/2.json and so on,"
    " at least four each, and compare the folders A and B"
)
_DAY_NS: Final = 24 * 3600 * 10**9


def to_text(result: CompareResult, console: Console) -> None:
    """Print the verdict, the figures, what is uncertain about them, and the checks."""
    show(console, _parts(result))


def _parts(result: CompareResult) -> Iterator[RenderableType]:
    yield paragraph(headline(result), style="bold")
    yield from map(paragraph, other_rows(result))
    for text in caveats(result):
        yield paragraph(text, style="yellow")
    yield paragraph(side_text("before", result.before))
    yield paragraph(side_text("after", result.after))
    methods = methods_of(result)
    for name in methods:
        yield ""
        if len(methods) > 1:
            yield Text(name, "bold")
        changes = [change for change in result.changes if method_text(change) == name]
        made = ReportTable(
            "" if len(methods) > 1 else name,
            *("before", "after", "change", f"{percent(result.confidence)} interval"),
            ("verdict", "left"),
        )
        for change in changes:
            made.add_row(
                f"{change.phase} {change.statistic}",
                format_duration(change.before_ns),
                format_duration(change.after_ns),
                change_text(change.ratio),
                interval_text(change),
                change.direction.value,
                style=_STYLES.get(change.direction, ""),
            )
        yield made
    notes = list(footnotes(result))
    if notes:
        yield ""
        yield from (paragraph(note) for note in notes)
    if result.checks:
        yield ""
    for check in result.checks:
        yield paragraph(check_text(check), indent="  ", style=_CHECK_STYLES[check.outcome])


def headline(result: CompareResult) -> str:
    """Return the answer in one sentence: the verdict on the whole cycle, where it was measured."""
    text = _verdict(result)
    if result.doubts and any(change.direction in _CHANGED for change in _judged(result)):
        text = f"uncertain: {text}"
    if result.settings:
        more = ", …" if len(result.settings) > _FEW else ""
        text += f"; settings differ ({_pairs_text(result.settings[:_FEW])}{more})"
    return text


def _verdict(result: CompareResult) -> str:
    runs = runs_text(result)
    judged = _judged(result)
    if all(change.low is None for change in judged):
        needed = fewest_runs(result.confidence)
        return (
            f"not proven: {runs}; a verdict needs {needed} runs per side "
            f"(`vmtool stress --runs {max(needed, 5)}`)"
        )
    parts = list(_by_verdict(judged, _CHANGED)) or list(
        _by_verdict(judged, (Direction.NOT_PROVEN,))
    )
    if not parts:
        what = "the whole cycle is " if judged and judged[0].phase == "cycle" else ""
        parts = [f"{what}unchanged within {percent(result.threshold)}"]
    return f"{'; '.join(parts)}; {runs}"


def _judged(result: CompareResult) -> list[Change]:
    """Return what the headline is about: the cycles, or where there are none the medians."""
    whole = [change for change in result.changes if change.phase == "cycle"]
    return whole or [change for change in result.changes if change.statistic == "median"]


def other_rows(result: CompareResult) -> Iterator[str]:
    """Yield which other figures have a verdict that is not also that of their cycle."""
    judged = _judged(result)
    known = {(method_text(change), change.direction) for change in judged}
    found = [
        f"{_found_text(change)} ({change.direction.value})"
        for change in result.changes
        if change not in judged
        and change.direction in _CHANGED
        and (method_text(change), change.direction) not in known
    ]
    if found:
        yield f"other rows that differ: {', '.join(found)}"


def caveats(result: CompareResult) -> Iterator[str]:
    """Yield why the sides may differ although nothing changed, and what to do about it."""
    for doubt in result.doubts:
        yield f"{_doubt_text(result, doubt)}: rows may differ for that reason alone; {_ALTERNATE}"


def _doubt_text(result: CompareResult, doubt: Doubt) -> str:
    if doubt is Doubt.APART:
        return f"measured one after the other, {_apart_text(result.apart_ns or 0)} apart"
    idle = min(
        file.idle_share
        for side in (result.before, result.after)
        for file in side.files
        if file.runs and file.idle_share is not None
    )
    return f"measured one after the other on a busy machine ({percent(round(idle, 2))} idle)"


def _by_verdict(changes: Sequence[Change], directions: Iterable[Direction]) -> Iterator[str]:
    """Yield for each verdict which figures have it, with their changes."""
    for direction in directions:
        found = [_found_text(change) for change in changes if change.direction is direction]
        if found:
            yield f"{direction.value}: {', '.join(found)}"


def _found_text(change: Change) -> str:
    name = "the whole cycle" if change.phase == "cycle" else f"{change.phase} {change.statistic}"
    text = f"{name} of {method_text(change)} {change_text(change.ratio)}"
    if change.direction is Direction.NOT_PROVEN:
        text += f" ({interval_text(change) or 'no interval'})"
    return text


def runs_text(result: CompareResult) -> str:
    """Return how many runs each side has."""
    before, after = result.before.runs, result.after.runs
    return f"{before} run{'s' if before > 1 else ''} against {after}"


def side_text(name: str, side: ComparedSet) -> str:
    """Return which runs one side has, when and where they were made."""
    runs = f"{side.runs} run{'' if side.runs == 1 else 's'}"
    files = len(side.files)
    parts = [runs if files == 1 else f"{runs} of {files} results"]
    starts = sorted(file.started for file in side.files if file.started)
    if starts:
        first, last = moment(starts[0]), moment(starts[-1])
        parts.append(first if first == last else f"{first} to {last}")
    for what, values in (
        ("host", {file.host for file in side.files if file.host}),
        ("label", {file.label for file in side.files if file.label}),
        ("vmtool", {file.vmtool for file in side.files}),
    ):
        if values:
            parts.append(f"{what} {', '.join(sorted(values))}")
    parts += _range("load", [file.load for file in side.files], "{:.1f}")
    idle = [None if f.idle_share is None else 100 * f.idle_share for f in side.files]
    parts += _range("idle", idle, "{:.0f} %")
    return f"{name}: {side.path} ({'; '.join(parts)})"


def _range(what: str, values: Sequence[float | None], form: str) -> list[str]:
    known = [value for value in values if value is not None]
    if not known:
        return []
    ends = dict.fromkeys(form.format(value) for value in (min(known), max(known)))
    return [f"{what} {' to '.join(ends)}"]


def methods_of(result: CompareResult) -> list[str]:
    """Return each method that was compared, in the order of the changes."""
    return list(dict.fromkeys(method_text(change) for change in result.changes))


def footnotes(result: CompareResult) -> Iterator[str]:
    """Yield what a reader must know about the verdicts."""
    unproven = [c for c in result.changes if c.direction is Direction.NOT_PROVEN]
    if not unproven or unproven[0].low is None:
        return
    first = unproven[0]
    needed = first.runs_needed or 0
    runs = f"about {needed:,}" if needed <= _MANY_RUNS else f"more than {_MANY_RUNS:,}"
    yield (
        f"not proven: the interval reaches beyond ±{percent(result.threshold)}, so there may be a"
        f" change. The {first.phase} {first.statistic} varies by"
        f" {percent(round(first.variation or 0, 3))} from run to run; {runs} runs per side would show"
        f" a change of {percent(DETECTED_CHANGE)}."
    )


def warnings_of(result: CompareResult) -> Iterator[str]:
    """Yield what may make the comparison unfair, for stderr."""
    for side in (result.before, result.after):
        yield from (left_out_text(item) for item in side.incomplete)
        yield from _unlike_texts(side)
    if result.machine:
        yield differences("the machines differ", result.machine)
    if result.settings:
        yield differences("the settings differ", result.settings)
    if result.unmatched:
        yield f"not compared: {'; '.join(result.unmatched)}"


def _apart_text(apart_ns: int) -> str:
    for unit, size_ns in (("days", _DAY_NS), ("hours", _DAY_NS // 24)):
        if apart_ns >= 2 * size_ns:
            return f"{apart_ns // size_ns:,} {unit}"
    return f"{apart_ns // (60 * 10**9)} minutes"


def _unlike_texts(side: ComparedSet) -> Iterator[str]:
    """Yield which files of a side are no repetitions of its first one, those that differ alike together."""
    paths: dict[tuple[Difference, ...], list[str]] = {}
    for file in side.unlike:
        paths.setdefault(file.differences, []).append(file.path)
    first = next(file.path for file in side.files if file.runs or file is side.files[-1])
    for found, names in paths.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        verb = "differ" if more else "differs"
        yield differences(f"{names[0]}{more} {verb} from {first} of the same side", found)


def left_out_text(item: LeftOut) -> str:
    """Return how a run ended, and whether it was compared all the same."""
    text = f"{item.path}: run {item.run + 1} {_ENDED[item.outcome]} after {item.cycles:,} cycles"
    return text if item.compared else f"{text} and is left out"


def differences(what: str, found: Sequence[Difference]) -> str:
    """Return a sentence that lists differences, for the user to judge."""
    return f"{what}: {_pairs_text(found)}"


def _pairs_text(found: Sequence[Difference]) -> str:
    return "; ".join(
        f"{fact_name(d.name)}: {fact_text(d.name, d.before)} and {fact_text(d.name, d.after)}"
        for d in found
    )


def check_text(check: Check) -> str:
    """Return how a ``--fail-on`` was decided, with the figures."""
    word = "FAILED" if check.failed else check.word
    return f"{word}: --fail-on {check.values['condition']} ({check_detail(check)})"


def check_detail(check: Check) -> str:
    """Return the change of each method that a check looked at, and why it is not proven."""
    details = []
    for key, value in check.values.items():
        method, _, what = key.rpartition(".")
        if what == "change" and isinstance(value, float):
            low, high = check.values.get(f"{method}.low"), check.values.get(f"{method}.high")
            interval = f", interval {_part(low)} to {_part(high)}"
            details.append(f"{method} {_part(value)}{interval}")
    reason = check.values.get("reason")
    if reason == NOT_PROVEN:
        details.append("the interval includes the limit; more runs would narrow it")
    elif reason is not None:
        details.append(str(reason))
    return "; ".join(details)


def change_text(ratio: float) -> str:
    """Return a ratio as a signed change: 1.104 is ``+10.4 %``."""
    # Adding zero turns the -0.0 that rounding leaves into 0.0, which has no direction.
    return f"{round((ratio - 1) * 100, 1) + 0.0:+,.1f} %"


def interval_text(change: Change) -> str:
    """Return the interval of a change, if it has one."""
    if change.low is None or change.high is None:
        return ""
    low, high = ((end - 1) * 100 for end in (change.low, change.high))
    return f"{low + 0.0:+,.1f} to {high + 0.0:+,.1f} %"


def percent(part: float) -> str:
    """Return a part as percent, without decimals that say nothing: 0.05 is ``5 %``."""
    return f"{part * 100:.4g} %"


def method_text(item: Change) -> str:
    """Return the method, or both when the sides had one each and not the same."""
    if item.method == item.method_after:
        return item.method
    return f"{item.method} -> {item.method_after}"


def _part(value: object) -> str:
    return f"{value * 100:+,.1f} %" if isinstance(value, float) else "unknown"
