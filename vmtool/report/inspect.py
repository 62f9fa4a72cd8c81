"""The report of ``vmtool inspect``: the answer, counters, trends, reservations and children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.errors import printable
from vmtool.json_documents import plain
from vmtool.report.console import paragraph, show
from vmtool.report.inspect_sentences import (
    COUNTERS,
    describe_check,
    describe_devices,
    describe_ending,
    describe_finding,
    describe_programs,
    describe_unavailable,
    headline,
    shown_count,
    shown_rate,
    shown_size,
    time_left,
)
from vmtool.report.machine import conditions_line
from vmtool.report.table import pairs, table
from vmtool.results.inspect import FindingRating
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from vmtool.results.check_outcomes import Check
    from vmtool.results.inspect import (
        ChildProcess,
        InspectResult,
        LimitUse,
        ProcessCgroup,
        ReservedRange,
        Trend,
    )


_STYLES: Final = {
    FindingRating.PROBLEM: "bold red",
    FindingRating.WARNING: "yellow",
    FindingRating.NOTE: "",
}
OTHER_NAMESPACE: Final = "it runs in another PID namespace, where its PID is different"
#: The columns that the table of reservations needs with addresses.
_WITH_ADDRESSES: Final = 100
#: The headings of the rows of :func:`trend_rows`.
TREND_HEADINGS: Final = ("counter", "per minute", "99 % interval", "trend")
#: What a trend is called that is not plainly growth, and why.
_VERDICTS: Final = {
    "small": "the interval is above zero, but growth over the whole watch is below 1 MiB (8 for a count) "
    "or below 1 % of the counter",
    "slowing": "the interval is above zero, but growth slows down: at the pace of the later half "
    "it is too small to count, or the last quarter grew less than half as much as the one before. "
    "A heap that warms up slows down like this; a leak does not",
    "not proven": "the interval includes both zero and growth that would count",
}


def to_text(result: InspectResult, console: Console) -> None:
    """Print *result*."""
    show(console, _parts(result, console.width))


def _parts(result: InspectResult, width: int) -> Iterator[RenderableType]:
    yield paragraph(headline(result), style="bold")
    if ending := describe_ending(result):
        yield paragraph(ending, style="yellow")
    if len(result.programs) > 1:
        yield paragraph(describe_programs(result.programs), indent="  ")
    if result.process.own_pid_namespace:
        yield paragraph(OTHER_NAMESPACE, indent="  ")
    findings = [finding for finding in result.findings if finding.rating is not FindingRating.NOTE]
    notes = [finding for finding in result.findings if finding.rating is FindingRating.NOTE]
    for finding in findings + notes:
        message, remedy = describe_finding(finding)
        yield paragraph(
            f"{finding.rating.value}: {message}", indent="  ", style=_STYLES[finding.rating]
        )
        if remedy:
            yield paragraph(f"  {remedy}", indent="  ")
    if result.samples:
        yield ""
        yield pairs(counter_rows(result))
    if result.trends:
        yield ""
        yield from _trend_table(result)
    if result.reservations:
        yield ""
        yield from _reservation_parts(result, width)
    if result.devices:
        yield ""
        for text in describe_devices(result.devices):
            yield paragraph(text, indent="  ")
    if result.children:
        yield ""
        yield table(*child_table(result.children), left=2, label=2)
    if result.checks:
        yield ""
        for check in result.checks:
            yield Text(describe_check(check), style=_check_style(check))
    if result.unavailable:
        yield ""
        for text in describe_unavailable(result.unavailable):
            yield paragraph(text, indent="  ")
    if result.conditions is not None:
        yield ""
        yield paragraph(conditions_line(result.conditions, None, plain(result.machine)))


def counter_rows(result: InspectResult) -> list[tuple[str, str]]:
    """Return the latest counters, each with its limit."""
    last = result.last
    limits = {limit.counter: limit for limit in result.limits if limit.where != "group"}
    parts = [
        f"{shown_size(value)} {name}"
        for name, value in (
            ("anonymous", last.anonymous_bytes),
            ("of files", last.file_bytes),
            ("shared", last.shared_bytes),
        )
        if value is not None
    ]
    huge = last.huge_bytes
    rows = [
        ("address space", _held(last.address_space_bytes, limits.get("address_space_bytes"))),
        ("charge", shown_size(last.charge_bytes) + _commit_limit(result)),
        ("resident", shown_size(last.resident_bytes) + (f": {', '.join(parts)}" if parts else "")),
        ("transparent huge pages", shown_size(huge) + _share(huge, result)),
        ("swapped", shown_size(last.swapped_bytes)),
        ("page tables", shown_size(last.page_table_bytes)),
        *(
            (COUNTERS[name], shown_size(value))
            for name in ("hugetlb_bytes", "pinned_bytes")
            if (value := getattr(last, name))
        ),
        ("locked", _held(last.locked_bytes, limits.get("locked_bytes"))),
        ("memory areas", _held_count(last.areas, limits.get("areas"))),
        ("threads", shown_count(last.threads) + _tasks(result)),
        ("descriptors", _held_count(last.descriptors, limits.get("descriptors"))),
        ("page faults", _faults(result)),
    ]
    if result.group is not None:
        rows.append(("control group", _group(result.group)))
    if result.oom_score is not None:
        rows.append(("OOM score", str(result.oom_score)))
    return [(name, value) for name, value in rows if not value.startswith("not available")]


def _commit_limit(result: InspectResult) -> str:
    """Return what bounds the charge of all processes together."""
    for limit in result.limits:
        if limit.counter == "charge_bytes" and limit.where == "machine":
            used, most = shown_size(limit.used), shown_size(limit.soft)
            mode = ", vm.overcommit_memory=2" if limit.name == "CommitLimit" else ""
            return f"; all processes {used} of {most} ({limit.name}{mode})"
    commit = None if result.machine is None else result.machine.commit
    if commit is None or commit.mode is None or commit.limit_bytes is None:
        return ""
    return (
        f"; vm.overcommit_memory={commit.mode} does not enforce the commit limit of "
        f"{shown_size(commit.limit_bytes)}"
    )


def _group(group: ProcessCgroup) -> str:
    words = shown_size(group.current_bytes)
    words += " (no limit)" if group.max_bytes is None else f" of {shown_size(group.max_bytes)}"
    if group.high_bytes is not None:
        words += f", slowed down above {shown_size(group.high_bytes)} (memory.high)"
    if group.reclaimable_bytes:
        words += f", {shown_size(group.reclaimable_bytes)} of it is file cache"
    if group.pressure_some_percent:
        words += f", waits for memory {group.pressure_some_percent:g} % of the time"
    if group.pressure_full_percent:
        words += f" (all tasks at once {group.pressure_full_percent:g} %)"
    if group.events:
        words += f"; events: {', '.join(f'{name} {n:,}' for name, n in group.events.items())}"
    return f"{words} ({group.path})"


def _faults(result: InspectResult) -> str:
    last = result.last
    if last.minor_faults is None:
        return "not available"
    first = result.samples[0]
    words = f"{shown_count(last.minor_faults)}, {shown_count(last.major_faults)} with I/O"
    seconds = (last.at_ns - first.at_ns) / 1e9
    if seconds > 0 and first.minor_faults is not None:
        words += f"; {(last.minor_faults - first.minor_faults) / seconds:,.0f}/s while watched"
    return words


def trend_rows(result: InspectResult) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return counter, slope, interval and verdict of each trend, and what there is to say of them."""
    rows: list[tuple[str, ...]] = []
    filling, notes = [], {}
    for trend in sorted(result.trends, key=lambda trend: not trend.grows):
        name = COUNTERS.get(trend.counter, trend.counter)
        word = _verdict(trend)
        if word in _VERDICTS:
            notes[word] = _VERDICTS[word]
        if trend.full_in_s is not None:
            filling.append(f"{name}: {trend.limit} is reached in {time_left(trend)} at this rate")
        rate, low, high = (
            shown_rate(trend.counter, each) for each in (trend.per_second, trend.low, trend.high)
        )
        rows.append((name, rate, f"{low} to {high}", word))
    return rows, [*filling, *(f"{word}: {note}" for word, note in notes.items())]


def _trend_table(result: InspectResult) -> Iterator[RenderableType]:
    rows, notes = trend_rows(result)
    yield table(TREND_HEADINGS, rows)
    for line in notes:
        yield paragraph(line)


def _verdict(trend: Trend) -> str:
    if trend.grows:
        return "grows"
    if trend.high < 0:
        return "shrinks"
    if trend.low <= 0:
        return "none" if trend.growth_most < trend.growth_least else "not proven"
    return "small" if trend.growth < trend.growth_least else "slowing"


def _reservation_parts(result: InspectResult, width: int) -> Iterator[RenderableType]:
    """Yield the tables of the reservations, as wide as *width* allows."""
    addresses = width >= _WITH_ADDRESSES
    headings, rows = reservation_table(result.reservations)
    if addresses:
        headings = (*headings, "base")
        rows = [
            (*row, f"{item.base:#x}") for row, item in zip(rows, result.reservations, strict=True)
        ]
    yield table(headings, rows)
    headings, rows = node_table(result.reservations)
    if rows:
        yield ""
        yield table(headings, rows)
    notes = describe_hidden(result)
    if not addresses:
        notes.append(f"addresses need {_WITH_ADDRESSES} columns or --json")
    age = result.areas_age_ns
    if age is not None and age > 2 * 10**9:
        notes.append(f"read {format_duration(age)} ago")
    if notes:
        yield paragraph("; ".join(notes))


def describe_hidden(result: InspectResult) -> list[str]:
    """Return how many reservations are left out, if any are."""
    hidden = result.reservations_total - len(result.reservations)
    return [f"{hidden:,} smaller ones not shown (see --top)"] if hidden > 0 else []


def reservation_table(
    reservations: Sequence[ReservedRange],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and cells, without the columns that hold nothing in any row."""
    read = any(item.resident_bytes is not None for item in reservations)
    columns = {
        "reservation": [reservation_name(item) for item in reservations],
        "capacity": [shown_size(item.capacity_bytes) for item in reservations],
        "committed": [shown_size(item.committed_bytes) for item in reservations],
        "resident": [
            ("not read" if read else "-")
            if item.resident_bytes is None
            else shown_size(item.resident_bytes)
            for item in reservations
        ],
        "huge": [shown_size(item.huge_bytes) if item.huge_bytes else "-" for item in reservations],
        "granule": [_granule(item) for item in reservations],
        "areas": [shown_count(item.pieces) for item in reservations],
        "perms": [item.permissions for item in reservations],
    }
    kept = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    return tuple(kept), list(zip(*kept.values(), strict=True))


def _granule(item: ReservedRange) -> str:
    if item.granule_bytes is None or item.committed_bytes == item.capacity_bytes:
        return "-"
    return ("" if item.granule_exact else "≤ ") + format_size(item.granule_bytes)


def reservation_name(item: ReservedRange) -> str:
    """Return what a reservation is: its owner where that is certain, or the kernel's name of it."""
    name = printable(item.name)
    if item.kind == "file":
        name = name.rsplit("/", 1)[-1]
    if item.owner:
        return f"{item.owner}{f' {name}' if name and item.kind != 'anonymous' else ''}"
    return name or item.kind


def node_table(
    reservations: Sequence[ReservedRange],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and cells of where the pages of the reservations are that have any."""
    placed = [(reservation_name(item), item.node_bytes) for item in reservations if item.node_bytes]
    count = max((len(nodes) for _, nodes in placed), default=0)
    rows = [
        (name, *(format_size(n) for n in (*nodes, *[0] * (count - len(nodes)))))
        for name, nodes in placed
    ]
    return ("resident on", *(f"node {node}" for node in range(count))), rows


def child_table(
    children: Sequence[ChildProcess],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and cells of the descendants."""
    rows: list[tuple[str, ...]] = [
        (
            str(child.pid),
            child.name,
            shown_size(child.resident_bytes),
            shown_size(child.swapped_bytes),
            shown_count(child.threads),
        )
        for child in children
    ]
    return ("child", "name", "resident", "swapped", "threads"), rows


def _check_style(check: Check) -> str:
    return {"passed": "", "failed": "bold red"}.get(check.outcome.value, "yellow")


def _held(used: int | None, limit: LimitUse | None) -> str:
    if limit is None or limit.soft is None:
        return shown_size(used) + (f" ({limit.name} unlimited)" if limit is not None else "")
    return f"{shown_size(used)} of {shown_size(limit.soft)} ({limit.name})"


def _held_count(used: int | None, limit: LimitUse | None) -> str:
    if used is None:
        return "not available"
    if limit is None or limit.soft is None:
        return shown_count(used)
    return f"{shown_count(used)} of {shown_count(limit.soft)} ({limit.name})"


def _share(huge: int | None, result: InspectResult) -> str:
    could = result.huge_possible_bytes
    return "" if huge is None or not could else f" of {format_size(could)} eligible"


def _tasks(result: InspectResult) -> str:
    """Return what counts the threads: those of its user, and those of its control group."""
    names = {"user_tasks": "of its user", "group_tasks": "of its control group"}
    parts = [
        f"{shown_count(limit.used)} of {shown_count(limit.soft)} {names[limit.counter]} ({limit.name})"
        for limit in result.limits
        if limit.counter in names and limit.soft is not None
    ]
    return f"; {', '.join(parts)}" if parts else ""
