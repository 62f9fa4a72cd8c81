"""The samples of a process as CSV, and the last one as OpenMetrics text.

Apart from the other reports, as a watch writes metrics at each sample and needs no tables for it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from vmtool.report.export_formats import Metrics, csv_table
from vmtool.results.inspect import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vmtool.results.inspect import InspectResult, LimitUse, ProcessIdentity


def to_csv(result: InspectResult) -> str:
    """Return the samples as a table, one row a sample; empty cells are not available."""
    names = [field.name for field in fields(Sample)]
    return csv_table(
        names, ([getattr(sample, name) for name in names] for sample in result.samples)
    )


def metrics_of(
    process: ProcessIdentity | None, sample: Sample | None, limits: Iterable[LimitUse]
) -> str:
    """Return the counters of *sample* and the limits as OpenMetrics text."""
    metrics = Metrics()
    if process is None or sample is None:
        return metrics.text()
    who = {"pid": process.pid, "name": process.name}
    for field in fields(Sample):
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
