"""The sentences of advice on a result of stress, made from its numbers."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vmtool.report.check_sentences import Values, plain_values
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.results.stress import Advice


def advice_text(advice: Advice) -> tuple[str, str]:
    """Return the sentence of a warning, and something to try."""
    values: Values = dict(advice.values)
    message, remedy = f"{advice.kind}: {plain_values(values)}", ""
    if "message" in values:  # as version 1 stored it
        return str(values["message"]), str(values.get("hint", ""))
    if advice.kind in _ADVICE:
        with suppress(KeyError, TypeError, ValueError):
            message, remedy = _ADVICE[advice.kind](values)
    return (f"{advice.method}: {message}" if advice.method else message), remedy


def _few_samples(values: Values) -> tuple[str, str]:
    return (
        f"{values['commits']} commits are too few for percentiles",
        "raise --cycles or --duration",
    )


def _outliers(values: Values) -> tuple[str, str]:
    count, phase = values["count"], values["phase"]
    plural = "es" if phase == "touch" else "s"
    return (
        (
            f"{count} of {values['samples']:,} {phase}{plural} took over "
            f"{values['times_median']} times the median (up to "
            f"{format_duration(values['max_ns'] or 0)})"
        ),
        "stop other work on this machine, or look at the median rather than at p99 and the mean",
    )


def _drift(values: Values) -> tuple[str, str]:
    pin = ", or pin vmtool to a core (taskset -c 0)" if sys.platform == "linux" else ""
    low, high = format_duration(values["low_ns"]), format_duration(values["high_ns"])
    return (
        f"the median {values['phase']} moved between rounds, from {low} to {high}",
        f"stop other work on this machine{pin}",
    )


def _overhead(values: Values) -> tuple[str, str]:
    return (
        (
            f"{format_duration(values['overhead_ns'])} of the median {values['phase']} of "
            f"{format_duration(values['median_ns'])} is overhead of the harness"
        ),
        "use a larger --granule, or compare runs with each other only",
    )


def _resident(values: Values) -> tuple[str, str]:
    before, after = format_size(values["before_bytes"]), format_size(values["after_bytes"])
    return (
        f"resident memory went from {before} to {after}",
        "run with --soak 10m: its slope separates a leak from a warm-up",
    )


def _checkpoints(values: Values) -> tuple[str, str]:
    return (
        f"checkpoints took {100 * values['share']:.1f} % of the run",
        "run for longer, or with fewer mappings (a larger --granule)",
    )


def _interpreter_lock(_values: Values) -> tuple[str, str]:
    return (
        (
            "threads wait for Python's lock after each call, and with full verification also in touch; "
            "that is part of their samples"
        ),
        "use --workers to measure contention in the kernel alone",
    )


def _budget_not_reached(values: Values) -> tuple[str, str]:
    peak, budget = format_size(values["peak_bytes"]), format_size(values["budget_bytes"])
    return (
        f"at most {peak} of the budget of {budget} was committed at once",
        "use --hold to commit and check the whole budget once, or run for longer",
    )


def _throttled(values: Values) -> tuple[str, str]:
    high, times = format_size(values["high_bytes"]), count_of(values["times"], "time")
    return (
        (
            f"control group {values['path']} was above memory.high, {high}: the kernel slowed its "
            f"tasks down {times}, which is part of the samples"
        ),
        "raise memory.high, or use a smaller --budget",
    )


def _huge_pages(_values: Values) -> tuple[str, str]:
    return (
        "transparent huge pages are switched off, so --huge changes nothing",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root",
    )


def _huge_granule(values: Values) -> tuple[str, str]:
    size = format_size(values["huge_page_bytes"]).replace(" ", "")
    return (
        (
            f"a granule of {format_size(values['granule_bytes'])} is not a whole number of huge pages; "
            "the rest of a huge page stays resident when the granule is released"
        ),
        f"use --granule {size}",
    )


def _degraded(values: Values) -> tuple[str, str]:
    return (
        (
            f"{format_size(values['bytes'])} could be released only in part: the process has too many "
            "memory areas"
        ),
        "raise vm.max_map_count, or use a larger --granule",
    )


_ADVICE: Final[dict[str, Callable[[Values], tuple[str, str]]]] = {
    "few-samples": _few_samples,
    "outliers": _outliers,
    "drift": _drift,
    "overhead": _overhead,
    "resident": _resident,
    "checkpoints": _checkpoints,
    "interpreter-lock": _interpreter_lock,
    "budget-not-reached": _budget_not_reached,
    "throttled": _throttled,
    "huge-pages": _huge_pages,
    "huge-granule": _huge_granule,
    "degraded": _degraded,
}
