"""The driver calls of a stress run on a device, each apart, and what running work does to them."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.report.chart import histogram_rows
from vmtool.report.table import backing_label, plain_table
from vmtool.results.stress import (
    COUNTERS,
    DEVICE_COUNTERS,
    Outcome,
)
from vmtool.stats import bucket_start
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from vmtool.report.table import ReportTable
    from vmtool.results.stress import Checkpoint, MethodResult, StressResult, UnmapResult, Verdict

HEADINGS: Final = ("driver call", "median", "p99", "max", "calls", "a commit")


def call_rows(method: MethodResult) -> list[tuple[str, ...]]:
    """Return one row for each driver call of *method*, below :data:`HEADINGS`."""
    return [
        (
            call.call,
            _duration(call.summary.median_ns),
            _duration(call.summary.p99_ns),
            _duration(call.summary.max_ns),
            f"{call.summary.samples:,}",
            f"{call.summary.samples / method.cycles:.2f}" if method.cycles else "-",
        )
        for call in method.calls
    ]


def unmapping_words(found: UnmapResult) -> str:
    """Return in a sentence whether unmapping waited for running work."""
    idle, busy, work = map(format_duration, (found.idle_ns, found.busy_ns, found.work_ns))
    words = {
        True: "cuMemUnmap waited for work that ran on another range",
        False: "cuMemUnmap did not wait for work that ran on another range",
        None: "whether cuMemUnmap waits for running work could not be told: the work was too short",
    }
    return (
        f"{words[found.waited]}: {idle} idle, {busy} beside {work} of work "
        f"(medians of {found.rounds}); synchronising before it costs "
        f"{format_duration(found.idle_synchronise_ns)} on an idle device"
    )


def _duration(ns: int | None) -> str:
    return "-" if ns is None else format_duration(ns)


# Below this width the statistics become rows, so that four phases still fit beside each other.
_NARROW: Final = 72
_COLUMNS: Final = {
    "median": "median_ns",
    "p90": "p90_ns",
    "p99": "p99_ns",
    "p99.9": "p999_ns",
    "max": "max_ns",
}
_OUTCOMES: Final = {
    Outcome.COMPLETE: "complete",
    Outcome.INTERRUPTED: "interrupted: the figures cover what was done until then",
    Outcome.CALL_FAILED: "a call failed; the figures cover what was done until then",
    Outcome.CRASHED: "a worker died; the figures are its last report",
    Outcome.HUNG: "a worker hung and was killed; the figures are its last report",
}
_INVARIANTS: Final = ("contents", "zero", "base", "budget", "leases", "released")


def to_text(result: StressResult, console: Console) -> None:
    """Print *result*."""
    for line in _head(result):
        console.print(line)
    for method in result.methods:
        console.print()
        console.print(_method_line(method))
        console.print(_latencies(method, console.width))
        console.print()
        console.print(histogram_rows(method, console.width))
        if method.calls:
            console.print()
            console.print(_calls(method))
    console.print()
    for block in _tail(result):
        console.print(block)


def _head(result: StressResult) -> Iterator[RenderableType]:
    settings = result.settings
    place = backing_label(settings.backing, result.device)
    granule, capacity, budget = (
        format_size(nbytes)
        for nbytes in (settings.granule_bytes, settings.capacity_bytes, settings.budget_bytes)
    )
    parts = [
        f"{place}, {settings.pattern} pattern, granules of {granule}",
        f"{capacity} reserved for each buffer, at most {budget} committed",
    ]
    if settings.workers * settings.threads > 1:
        parts.append(f"workers: {settings.workers}, threads in each: {settings.threads}")
    options = [f"touch {settings.touch}", f"verify {settings.verify}"]
    options += [name for name in ("huge", "prefault") if getattr(settings, name)]
    parts.append(f"{', '.join(options)}, seed {settings.seed}")
    system = result.machine.get("system", {})
    if system.get("os") == "Wine":
        parts.append(f"on Wine {system['kernel']}, not Windows")
    if settings.inject:
        parts.append(f"injected faults: {', '.join(settings.inject)}")
    for part in parts:
        yield Text(part)
    if result.outcome is not Outcome.COMPLETE:
        yield Text(_OUTCOMES[result.outcome], style="bold yellow")


def _method_line(method: MethodResult) -> Text:
    return Text.assemble(
        (method.method, "bold"),
        f": {method.cycles:,} cycles in {format_duration(method.wall_ns)}, "
        f"{method.cycles_per_s:,.0f} cycles/s, {format_size(round(method.bytes_per_s))}/s",
    )


def _latencies(method: MethodResult, width: int) -> ReportTable:
    cells = {
        heading: [_duration(getattr(phase.summary, name)) for phase in method.phases]
        for heading, name in _COLUMNS.items()
        if any(getattr(phase.summary, name) is not None for phase in method.phases)
    }
    names = [phase.phase for phase in method.phases]
    if width >= _NARROW:
        table = plain_table("", *cells, "bytes/s")
        for index, phase in enumerate(method.phases):
            rate = phase.total_bytes * 10**9 // max(phase.histogram.sum_ns, 1)
            row = [column[index] for column in cells.values()]
            table.add_row(phase.phase, *row, f"{format_size(rate)}/s")
        return table
    table = plain_table("", *names)
    for name, row in cells.items():
        table.add_row(name, *row)
    return table


def _calls(method: MethodResult) -> ReportTable:
    table = plain_table(*HEADINGS)
    for row in call_rows(method):
        table.add_row(*row)
    return table


def _tail(result: StressResult) -> Iterator[RenderableType]:
    yield Text(f"harness overhead: {format_duration(result.overhead_ns)} in each sample")
    before, after = result.resident_before_bytes, result.resident_after_bytes
    if before is not None and after is not None:
        yield Text(f"resident memory: {format_size(before)} before, {format_size(after)} after")
    if result.unmapping is not None:
        yield Text(unmapping_words(result.unmapping))
    for name in ("degraded", "quarantined"):
        total = sum(getattr(method, f"{name}_bytes") for method in result.methods)
        if total:
            yield Text(f"{name}: {format_size(total)}")
    for scaling in result.scaling:
        yield Text(
            f"scaling of {scaling.method}: {scaling.speedup:.2f} times one "
            f"({scaling.single_cycles_per_s:,.0f} to {scaling.cycles_per_s:,.0f} cycles/s)"
        )
    if result.recommendation is not None:
        yield Text(f"use {result.recommendation.method}: {result.recommendation.reason}")
    yield from _checks(result)
    for failure in result.failures:
        why = "injected" if failure.injected else "not injected"
        yield _problem(
            f"failed in {failure.operation} of granule {failure.granule}, cycle {failure.cycle} "
            f"({why}): {failure.message}",
            failure.cause,
            failure.hint,
        )
    for accident in result.accidents:
        how = accident.signal or (
            f"exit code {accident.exit_code}" if accident.kind == "exit" else "no progress"
        )
        yield _problem(
            f"worker {accident.worker} ended by {how} in {accident.operation} of granule "
            f"{accident.granule}, cycle {accident.cycle}, method {accident.method}",
            accident.cause,
            accident.hint,
        )


def _checks(result: StressResult) -> Iterator[RenderableType]:
    verdicts = {verdict.check: verdict for verdict in result.verdicts}
    if not verdicts:
        yield Text("checks: none could be made, as no worker ended by itself")
        return
    ledgers = (*DEVICE_COUNTERS, *COUNTERS)
    groups = (
        ("checks", {name: name for name in _INVARIANTS}),
        ("ledgers", {f"ledger.{name}": name.replace("_", " ") for name in ledgers}),
        ("leaks", {f"leak.{name}": name.replace("_", " ") for name in ledgers}),
    )
    for title, members in groups:
        found = {verdicts[check]: name for check, name in members.items() if check in verdicts}
        yield Text(f"{title}: {_summary(found)}")
    skipped = {v.hint: v.detail for v in result.verdicts if v.passed is None and v.hint}
    for hint, detail in skipped.items():
        yield Text(f"  {detail}; {hint}")
    rest = set(verdicts) - {check for _, members in groups for check in members}
    for check in sorted(rest):
        yield Text(f"{check}: {_word(verdicts[check])} ({verdicts[check].detail})")
    for verdict in result.verdicts:
        if verdict.passed is False:
            yield _problem(f"{verdict.check} FAILED: {verdict.detail}", None, verdict.hint)


def _summary(found: dict[Verdict, str]) -> str:
    """Return names by outcome, such as ``contents, zero ok; base FAILED``."""
    parts = []
    for word in ("ok", "FAILED", "not checked"):
        names = [name for verdict, name in found.items() if _word(verdict) == word]
        if names:
            parts.append(f"{', '.join(names)} {word}")
    return "; ".join(parts)


def _word(verdict: Verdict) -> str:
    if verdict.passed is None:
        return "not checked"
    return "ok" if verdict.passed else "FAILED"


def _problem(message: str, cause: str | None, hint: str | None) -> RenderableType:
    text = Text(message, style="bold red")
    for label, more in (("cause", cause), ("hint", hint)):
        if more:
            text.append(f"\n{label}: {more}", style="not bold default")
    return text


#: One row is one number. ``record`` is ``rate``, ``latency``, ``histogram``, ``driver_call``,
#: ``ledger`` or ``process``; ``subject`` is a phase, a driver call or a ledger. A histogram's row
#: counts the samples from ``from_ns`` to below ``to_ns``; a ledger's row was read at ``from_ns``
#: after the first cycle.
COLUMNS: Final = (
    *("record", "method", "worker", "subject", "statistic"),
    *("cycle", "from_ns", "to_ns", "value"),
)

_Row = tuple[object, ...]


def stress_csv(result: StressResult) -> str:
    """Return the table of one run; what was not told is left out."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for method in result.methods:
        writer.writerows(_method_rows(method))
    for point in result.checkpoints:
        writer.writerows(_checkpoint_rows(point))
    return file.getvalue()


def _method_rows(method: MethodResult) -> Iterator[_Row]:
    name = method.method
    for rate in ("cycles_per_s", "bytes_per_s"):
        yield "rate", name, "", "", rate, "", "", "", getattr(method, rate)
    for phase in method.phases:
        for item in fields(phase.summary):
            value = getattr(phase.summary, item.name)
            if value is not None:
                yield "latency", name, "", phase.phase, item.name, "", "", "", value
        for index, count in phase.histogram.buckets:
            edges = bucket_start(index), bucket_start(index + 1)
            yield "histogram", name, "", phase.phase, "count", "", *edges, count
    for call in method.calls:
        for item in fields(call.summary):
            value = getattr(call.summary, item.name)
            if value is not None:
                yield "driver_call", name, "", call.call, item.name, "", "", "", value


def _checkpoint_rows(point: Checkpoint) -> Iterator[_Row]:
    for reading in point.buffers:
        for statistic in ("believed", "observed", "low", "high"):
            value = getattr(reading, statistic)
            if value is not None:
                yield _ledger_row("ledger", point, reading.ledger, statistic, value)
    for ledger, value in point.process.items():
        if value is not None:
            yield _ledger_row("process", point, ledger, "beyond_belief", value)


def _ledger_row(record: str, point: Checkpoint, ledger: str, statistic: str, value: int) -> _Row:
    place = record, point.method, point.worker, ledger, statistic
    return *place, point.cycle, point.at_ns, "", value
