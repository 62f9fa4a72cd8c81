"""A run of stress as one CSV table: percentiles, histograms and the ledgers over time."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from vmtool.stats import bucket_start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.results import Checkpoint, MethodResult, StressResult

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
