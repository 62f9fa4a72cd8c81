"""The report of ``vmtool limits``: how far each method got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.report.machine import device_words
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from vmtool.results.limits import LimitsResult, MethodLimit

_TITLES: Final = {
    "reserve": "the largest reservation",
    "commit": "the largest single commit, not touched, that leaves room for one more granule",
    "mappings": "memory areas of one process",
    "lock": "memory locked into RAM by one mlock",
}
_SHORT: Final = {
    "reserve": "reserve",
    "commit": "commit at once",
    "mappings": "memory areas",
    "lock": "lock",
}
_DEVICE_SHORT: Final = {"commit": "commit", "mappings": "mappings of one handle", "lock": "pin"}
_DEVICE_TITLES: Final = {
    "lock": "memory of the host pinned by one cuMemHostRegister; a new process for each attempt",
    "commit": "memory committed granule by granule, untouched; one process",
    "mappings": "mappings of one handle; one process",
}


def to_text(result: LimitsResult, console: Console) -> None:
    """Print the answer, and how far each method got."""
    console.print(Text(answer(result), style="bold"))
    if result.device:
        console.print(f"on {result.device}")
    if device := result.machine.get("device"):
        console.print(device_words(device))
    for of_kind in result.kinds:
        console.print()
        title = f"{_TITLES[of_kind.kind]}; a new process for each attempt"
        if result.device:
            title = _DEVICE_TITLES.get(of_kind.kind, title)
        console.print(title)
        for method in of_kind.methods:
            for line in _lines(of_kind.kind, method):
                console.print(line)
        if of_kind.kind == "commit" and _always_overcommits(result):
            console.print(
                "vm.overcommit_memory is 1: every commit is granted until addresses run out, "
                "and the OOM killer ends a process when more memory is touched than there is"
            )
    if not result.complete:
        console.print("\ninterrupted: the search is not finished")


def answer(result: LimitsResult) -> str:
    """Return the limit of each kind in one line: the lowest of its methods, and whose it is."""
    parts = []
    for of_kind in result.kinds:
        short = _SHORT[of_kind.kind]
        if result.device:
            short = _DEVICE_SHORT.get(of_kind.kind, short)
        found = {m.method: m.reached for m in of_kind.methods if m.outcome == "found" and m.reached}
        if found:
            least = min(found, key=found.__getitem__)
            which = f" with {least}" if len(set(found.values())) > 1 else ""
            parts.append(f"{short} {_bound(of_kind.kind, found[least])}{which}")
            if of_kind.kind == "commit" and _always_overcommits(result):
                parts[-1] += " (of addresses: vm.overcommit_memory is 1)"
        elif all(m.outcome == "none" for m in of_kind.methods):
            parts.append(f"{short}: no limit found")
        elif any(m.outcome == "found" for m in of_kind.methods):
            parts.append(f"{short}: not even the smallest size works")
        else:
            parts.append(f"{short}: not found")
    return "limits: " + "; ".join(parts)


def _always_overcommits(result: LimitsResult) -> bool:
    commit = result.machine.get("commit") if result.device is None else None
    return isinstance(commit, dict) and commit.get("mode") == 1


def _lines(kind: str, limit: MethodLimit) -> Iterator[str]:
    if limit.outcome == "not found":
        yield f"{limit.method}: not found: {limit.error}"
        return
    mappings = kind == "mappings"
    if mappings and limit.outcome == "none" and limit.cause and limit.reached is not None:
        has = _amount(kind, limit.reached)
        yield f"{limit.method}: no limit: {limit.cause} (the process has {has})"
        return
    tries = "1 attempt" if limit.tries == 1 else f"{limit.tries} attempts"
    most = "" if limit.most is None else f", searched up to {_bound(kind, limit.most)}"
    if kind == "commit" and limit.tries == 1:  # counted in granules
        most = ""
    if limit.reached is None:
        yield f"{limit.method}: not even the smallest size works ({tries}{most})"
    else:
        yield f"{limit.method}: {_amount(kind, limit.reached)} works ({tries}{most})"
    if limit.per_gib_ns is not None:
        yield f"  it takes {format_duration(limit.per_gib_ns)} per GiB, page faults included"
    if limit.refused is not None:
        yield f"  {_amount(kind, limit.refused)} is refused: {limit.error}"
        if limit.cause is not None:
            yield f"  cause: {limit.cause}"
    elif limit.outcome == "partial":
        yield "  nothing was refused so far"
    elif kind == "commit" and limit.method == "advise":
        yield (
            "  nothing was refused; the search ends at half of what is safe, as this method commits "
            "by faulting memory in"
        )
    else:
        yield "  nothing was refused up to the end of the search"
        if kind == "lock" and limit.cause is not None:
            yield f"  {limit.cause}"


def _amount(kind: str, number: int) -> str:
    exact = "" if kind == "mappings" else f" ({number:,} bytes)"
    return _bound(kind, number) + exact


def _bound(kind: str, number: int) -> str:
    return f"{number:,}" if kind == "mappings" else format_size(number)
