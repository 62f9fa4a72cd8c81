"""The report of ``vmtool guards``: how writes to committed, released and other memory ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.report.check_sentences import shown_word
from vmtool.report.table import plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from vmtool.results.guards import GuardsResult

_CASES: Final = {
    "committed": "committed memory",
    "never": "memory never committed",
    "released": "released memory",
}


def to_text(result: GuardsResult, console: Console) -> None:
    """Print how each write ended."""
    console.print(Text(answer(result), style="bold"))
    console.print()
    table = plain_table("method", ("a write to", "left"), ("ended", "left"), ("", "left"))
    for check in result.checks:
        values = check.values
        ended = values["signal"] or ("succeeded" if values["written"] else values["error"])
        style = "bold red" if check.failed else ""
        word = shown_word(check)
        if not check.failed and not values["must_fault"] and values["case"] != "committed":
            word = "ok: this method has no guards"
        table.add_row(
            str(values["method"]),
            _CASES[str(values["case"])],
            str(ended or "no answer"),
            Text(word, style=style),
        )
    console.print(table)


def answer(result: GuardsResult) -> str:
    """Return in one line which methods have guards."""
    if not result.passed:
        failed = sum(check.failed for check in result.checks)
        return f"{failed} of {len(result.checks)} writes did not end as expected"
    guarded = _methods(result, must_fault=True)
    rest = [name for name in _methods(result, must_fault=False) if name not in guarded]
    text = f"memory that is not committed faults: {', '.join(guarded)}" if guarded else ""
    if rest:
        text += ("; " if text else "") + f"not with {', '.join(rest)}, which has no guards"
    return text or "nothing was tried"


def _methods(result: GuardsResult, *, must_fault: bool) -> list[str]:
    return list(
        dict.fromkeys(
            str(check.values["method"])
            for check in result.checks
            if check.values["must_fault"] == must_fault
        )
    )
