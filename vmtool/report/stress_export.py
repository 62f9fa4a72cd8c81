"""A result of ``vmtool stress`` as CSV, one number per row, and as OpenMetrics text."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from vmtool.histograms import bucket_start
from vmtool.report.export_formats import Metrics, csv_table
from vmtool.results.check_outcomes import CheckOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.results.stress import Checkpoint, MethodResult, StressResult

#: One row is one number. ``record`` is ``rate``, ``latency``, ``histogram``, ``driver_call``,
#: ``counter`` or ``process``; ``run`` is empty for all runs together; ``subject`` is a phase, a
#: driver call or a counter. A histogram's row counts the samples from ``from_ns`` to below
#: ``to_ns``; a counter's row was read at ``from_ns`` after the first cycle.
COLUMNS: Final = (
    *("record", "run", "method", "worker", "subject", "statistic"),
    *("cycle", "from_ns", "to_ns", "value"),
)

_Row = tuple[object, ...]


def to_csv(result: StressResult) -> str:
    """Return the numbers of *result*, one a row; what is not available is left out."""
    return csv_table(COLUMNS, _rows(result))


def _rows(result: StressResult) -> Iterator[_Row]:
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


def to_metrics(result: StressResult) -> str:
    """Return medians, percentiles, rates and checks as OpenMetrics text."""
    metrics = Metrics()
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
