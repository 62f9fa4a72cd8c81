"""Which method is recommended, why, and what the others lack, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.results.stress import MethodReason, base_method
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.results.stress import Recommendation


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
