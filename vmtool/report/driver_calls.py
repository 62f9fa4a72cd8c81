"""The driver calls of a stress run on a device, each apart, and what running work does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.units import format_duration

if TYPE_CHECKING:
    from vmtool.results import MethodResult, UnmapResult

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
