"""Which method is recommended and why, and what to do about a warning of stress, in sentences."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vmtool.report.check_sentences import Values, plain_values
from vmtool.results.stress import MethodReason, base_method
from vmtool.units import count_of, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vmtool.results.stress import Advice, Recommendation


#: The methods that a backing has by default; others need ``--method``.
_DEFAULTS: Final = frozenset({"fixed", "view", "cold"})
#: What is true of a method that promises more than this one.
_GAINS: Final = {
    "protect": "a release gives the commit charge back",
    "advise": "released memory faults",
    "pooled": "released device memory is given back at once",
}
#: What each method does not do.
_LACKS: Final = {
    "protect": "keeps the commit charge after a release",
    "advise": "has no guards, so released memory does not fault",
    "pooled": "keeps unused device memory until it is trimmed",
}
_KEPT_ON_MACOS: Final = "keeps its pages until memory is short, and they are not zero"
_GAINS_ON_MACOS: Final = _GAINS | {"protect": "released pages are given back at once"}
_LACKS_ON_MACOS: Final = {
    "protect": _KEPT_ON_MACOS,
    "advise": f"has no guards and {_KEPT_ON_MACOS}",
}


def recommendation_text(found: Recommendation) -> str:
    """Return which method to use and what a cycle of it costs."""
    text = f"use {method_option_words(found.method, pasted=True)}"
    cost = found.cycle_ns.get(found.method)
    return text if cost is None else f"{text}: one cycle takes {format_duration(cost)}"


def recommendation_rows(found: Recommendation, system: str) -> Iterator[tuple[str, str]]:
    """Yield what the other methods cost and the reasons, each by name.

    Args:
        found: The recommendation.
        system: Where, as ``SystemFacts.os`` names it.
    """
    others = [
        f"{method_option_words(name)} {format_duration(cost)}"
        for name, cost in sorted(found.cycle_ns.items(), key=lambda item: item[1])
        if name != found.method
    ]
    if others:
        yield "other methods", ", ".join(others)
    yield from reason_rows(found.method, found.fastest, found.reason, system)


def reason_rows(
    method: str, fastest: str | None, reason: MethodReason | None, system: str
) -> Iterator[tuple[str, str]]:
    """Yield why *method* is to be used although another one may be faster, and what it lacks.

    Args:
        method: The one to use.
        fastest: The cheapest.
        reason: Why it is not that one, if it is not.
        system: Where, as ``SystemFacts.os`` names it.
    """
    lacks = _LACKS_ON_MACOS if system == "Darwin" else _LACKS
    if reason is MethodReason.PROMISES_MORE and fastest is not None:
        text = f"it is not clearly more than 25 % slower than {method_option_words(fastest)}"
        gains = _GAINS_ON_MACOS if system == "Darwin" else _GAINS
        gain = gains.get(base_method(fastest))
        if gain is not None and base_method(fastest) != base_method(method):
            text += f", and unlike with {base_method(fastest)}, {gain}"
        yield "why this method", text
    elif reason is MethodReason.NO_CLEAR_WINNER:
        yield "why this method", "it is the cheapest, though not clearly"
    own = lacks.get(base_method(method))
    if own is not None:
        yield "drawback", f"{base_method(method)} {own}"


def huge_text(found: Recommendation) -> str | None:
    """Return what huge pages do for the recommended method, where that was measured."""
    if found.huge_factor is None or found.without_huge is None:
        return None
    factor = found.huge_factor
    if factor >= 1.05:
        return f"with --huge a cycle of {found.without_huge} is {factor:.1f} times faster here"
    if factor <= 0.95:
        return f"with --huge a cycle of {found.without_huge} is {1 / factor:.1f} times slower here"
    return f"--huge makes no difference of 5 % to {found.without_huge} here"


def method_option_words(method: str, *, pasted: bool = False) -> str:
    """Return *method* as the options that ask for it.

    Args:
        method: One that was measured.
        pasted: With ``--method`` where the method is not the default, to be put on a command line.
    """
    base = base_method(method)
    words = f"--method {base}" if pasted and base not in _DEFAULTS else base
    return words if base == method else f"{words} --huge"


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
