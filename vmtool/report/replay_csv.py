"""The totals of one replay over simulated time, as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

from vmtool.replay.results import Point

if TYPE_CHECKING:
    from vmtool.replay.results import ReplayResult


def timeline_csv(result: ReplayResult) -> str:
    """Return a row for each point of the timeline, in exact integers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in fields(Point)])
    writer.writerows(astuple(point) for point in result.timeline)
    return file.getvalue()
