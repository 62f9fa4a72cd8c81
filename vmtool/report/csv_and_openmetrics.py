"""Results as files for other programs: CSV for spreadsheets, OpenMetrics for a textfile collector.

Format of OpenMetrics: https://prometheus.io/docs/specs/om/open_metrics_spec/
Apart from the other reports, as a watch writes metrics at each sample and needs no tables for it.
"""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import printable_lines
from vmtool.histograms import bucket_start
from vmtool.results.check_outcomes import CheckOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vmtool.kv.estimate_compare_result import ComparisonRow
    from vmtool.results.fleet import FleetResult
    from vmtool.results.inspect import InspectResult, LimitUse, ProcessIdentity, Sample
    from vmtool.results.kv_replay import ReplayComparison, ReplayResult
    from vmtool.results.stress import Checkpoint, MethodResult, StressResult


#: A spreadsheet takes a text that begins so for a formula, and runs it.
_FORMULA: Final = ("=", "+", "-", "@")
#: One row is one number. ``record`` is ``rate``, ``latency``, ``histogram``, ``driver_call``,
#: ``counter`` or ``process``; ``run`` is empty for all runs together; ``subject`` is a phase, a
#: driver call or a counter. A histogram's row counts the samples from ``from_ns`` to below
#: ``to_ns``; a counter's row was read at ``from_ns`` after the first cycle.
STRESS_COLUMNS: Final = (
    *("record", "run", "method", "worker", "subject", "statistic"),
    *("cycle", "from_ns", "to_ns", "value"),
)
_Row = tuple[object, ...]


def stress_csv(result: StressResult) -> str:
    """Return the numbers of *result*, one a row; what is not available is left out."""
    return csv_table(STRESS_COLUMNS, _stress_rows(result))


def _stress_rows(result: StressResult) -> Iterator[_Row]:
    for method in result.methods:
        yield from _method_rows("", method)
    for run in result.runs if len(result.runs) > 1 else ():
        for method in run.methods:
            yield from _method_rows(run.index, method)
    for point in result.checkpoints:
        yield from _checkpoint_rows(point)


def _method_rows(run: object, method: MethodResult) -> Iterator[_Row]:
    name = method.method
    for rate in ("cycles_per_s", "bytes_per_s"):
        yield "rate", run, name, "", "", rate, "", "", "", getattr(method, rate)
    for phase in method.phases:
        for item in fields(phase.summary):
            value = getattr(phase.summary, item.name)
            if value is not None:
                yield "latency", run, name, "", phase.phase, item.name, "", "", "", value
        for index, count in phase.histogram.buckets:
            edges = bucket_start(index), bucket_start(index + 1)
            yield "histogram", run, name, "", phase.phase, "count", "", *edges, count
    for call in method.calls:
        for item in fields(call.summary):
            value = getattr(call.summary, item.name)
            if value is not None:
                yield "driver_call", run, name, "", call.call, item.name, "", "", "", value


def _checkpoint_rows(point: Checkpoint) -> Iterator[_Row]:
    for reading in point.buffers:
        for statistic in ("expected", "observed", "low", "high"):
            value = getattr(reading, statistic)
            if value is not None:
                yield _counter_row("counter", point, reading.counter, statistic, value)
    for counter, value in point.process.items():
        if value is not None:
            yield _counter_row("process", point, counter, "beyond_expected", value)


def _counter_row(record: str, point: Checkpoint, counter: str, statistic: str, value: int) -> _Row:
    place = record, point.run, point.method, point.worker, counter, statistic
    return *place, point.cycle, point.at_ns, "", value


def stress_metrics(result: StressResult) -> str:
    """Return medians, percentiles, rates and checks as OpenMetrics text."""
    metrics = _Metrics()
    backing = result.settings.backing
    for method in result.methods:
        labels = {"backing": backing, "method": method.method}
        metrics.add("cycles_per_second", method.cycles_per_s, **labels)
        for phase in method.phases:
            for quantile in ("median", "p90", "p99"):
                value = getattr(phase.summary, f"{quantile}_ns")
                if value is not None:
                    at = {"phase": phase.phase, "quantile": quantile}
                    metrics.add("phase_seconds", value / 1e9, **labels, **at)
    for check in result.checks:
        if check.outcome is not CheckOutcome.NOT_DONE:
            metrics.add("check_passed", int(not check.failed), backing=backing, check=check.name)
    return metrics.text()


def samples_csv(result: InspectResult) -> str:
    """Return the samples as a table, one row a sample; empty cells are not available."""
    from vmtool.results.inspect import Sample  # noqa: PLC0415 - not for the files of other commands

    names = [field.name for field in fields(Sample)]
    return csv_table(
        names, ([getattr(sample, name) for name in names] for sample in result.samples)
    )


def process_metrics(
    process: ProcessIdentity | None, sample: Sample | None, limits: Iterable[LimitUse]
) -> str:
    """Return the counters of *sample* and the limits as OpenMetrics text."""
    metrics = _Metrics()
    if process is None or sample is None:
        return metrics.text()
    who = {"pid": process.pid, "name": process.name}
    for field in fields(sample):
        value = getattr(sample, field.name)
        if field.name == "at_ns" or value is None:
            continue
        if field.name == "cpu_ns":
            metrics.add("process_cpu_seconds", value / 1e9, **who)
        else:
            metrics.add(f"process_{field.name}", value, **who)
    for limit in limits:
        if limit.soft is not None:
            metrics.add("process_limit", limit.soft, **who, limit=limit.name)
            if limit.used is not None:
                metrics.add("process_limit_used", limit.used, **who, limit=limit.name)
    return metrics.text()


def fleet_csv(result: FleetResult) -> str:
    """Return a row for each machine and measure."""
    head = ("group", "machine", "measure", "value", "usual", "ratio", "p_value", "outlier")
    return csv_table(head, _fleet_rows(result))


def _fleet_rows(result: FleetResult) -> Iterator[list[object]]:
    for number, group in enumerate(result.groups, 1):
        found = {(each.host, each.measure): each for each in group.outliers}
        for spread in group.spreads:
            for host, value in zip(group.hosts, spread.values, strict=True):
                if value is None:
                    continue
                outlier = found.get((host, spread.measure))
                usual = spread.usual if outlier is None else outlier.usual
                ratio = value / usual if spread.logarithmic else ""
                p_value = "" if outlier is None else outlier.p_value
                row = [number, host, spread.measure, value, usual, ratio, p_value]
                yield [*row, int(outlier is not None)]


def replay_csv(result: ReplayResult) -> str:
    """Return a row for each point of the timeline, in exact integers."""
    from vmtool.results.kv_replay import Point  # noqa: PLC0415 - likewise

    names = [field.name for field in fields(Point)]
    return csv_table(names, map(astuple, result.timeline))


def replay_comparison_csv(result: ReplayComparison) -> str:
    """Return the comparison as CSV, in exact integers."""
    rows, best = result.rows, result.best
    axes = list(rows[0].labels) if rows else []
    names = [name for name, _ in _replay_figures(None)]
    return csv_table(
        [*axes, *names, "best", "impossible"],
        (
            [
                *row.labels.values(),
                *(value for _, value in _replay_figures(row.result)),
                int(index in best),
                row.impossible,
            ]
            for index, row in enumerate(rows)
        ),
    )


def _replay_figures(result: ReplayResult | None) -> list[tuple[str, object]]:
    """Return names and values of one row's columns; no values without a result."""
    paths = (
        *("requests.arrived", "requests.finished", "requests.rejected", "requests.cut"),
        *("requests.too_long", "requests.too_large", "requests.preemptions"),
        *("usage.live.peak_bytes", "usage.live.mean_bytes"),
        *("usage.committed.peak_bytes", "usage.committed.mean_bytes"),
        *("usage.charged.peak_bytes", "usage.charged.mean_bytes"),
        *("usage.reserved.peak_bytes", "usage.reserved.mean_bytes"),
        *("usage.saved.peak_bytes", "usage.waste", "usage.fragmentation"),
        *("peak_sequences", "mean_sequences", "waiting.median_ns", "waiting.p99_ns"),
        *("first_token.median_ns", "first_token.p99_ns", "end_to_end.median_ns"),
        *("end_to_end.p99_ns", "generated_per_s", "enough_budget_bytes"),
        *("operations.commits", "operations.releases", "duration_ns"),
    )
    found: list[tuple[str, object]] = []
    for path in paths:
        value: Any = result
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        found.append((path.replace(".", "_"), "" if value is None else value))
    return found


def estimates_csv(rows: Sequence[ComparisonRow]) -> str:
    """Return *rows* as CSV, in exact integers; an empty count is any number, or without a budget."""
    axes = [
        axis for axis in rows[0].labels if axis not in ("model", "granule", "policy", "context")
    ]
    head = ("model", "format_k", "format_v", "granule_bytes", "policy", "context_tokens")
    amounts = ("floor_bytes", "used_bytes", "committed_bytes", "wasted_bytes", "waste_ends_tokens")
    engine = ("engine_tokens", "engine_sequences", "engine_bytes")
    fits = ("max_tokens", "max_sequences")

    def cells(row: ComparisonRow) -> list[object]:
        line: list[object] = [
            *(getattr(row, name) for name in head),
            *(row.labels[axis] for axis in axes),
        ]
        line.append(row.budget_bytes)
        if row.answer is None:
            line += [None] * (len(amounts) + len(fits))
        else:
            line += [getattr(row.answer, name) for name in amounts]
            for name in fits:
                capacity = getattr(row.answer, name)
                line.append(None if capacity is None else capacity.fits)
        return [*line, *(getattr(row, name) for name in engine), row.problem]

    names = (*head, *axes, "budget_bytes", *amounts, *fits, *engine, "problem")
    return csv_table(names, map(cells, rows))


def csv_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV; ``None`` is an empty cell.

    Names of hosts, files and models come from outside, so a text that a spreadsheet would run gets
    an apostrophe in front, which makes it text there as well. Numbers stay as they are.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(
        [
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in row
        ]
        for row in rows
    )
    return printable_lines(file.getvalue())


class _Metrics:
    """Gauges, each family kept together as the format wants."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, value: float, /, **labels: object) -> None:
        """Add one sample of the family ``vmtool_NAME``."""
        pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
        self._families.setdefault(f"vmtool_{name}", []).append(f"vmtool_{name}{{{pairs}}} {value}")

    def text(self) -> str:
        """Return the whole exposition."""
        lines = []
        for name, samples in self._families.items():
            lines += [f"# TYPE {name} gauge", *samples]
        return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    # A line break has an escape in the format; other control characters are spelled out.
    return printable_lines(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
