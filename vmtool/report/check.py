"""The report of ``vmtool check``: the verdict, what it rests on, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.errors import printable
from vmtool.machine.doctor.findings import Rating
from vmtool.machine.memory_limit_sentences import BOUND_WORDS
from vmtool.report.check_sentences import describe, summarize
from vmtool.report.console import paragraph
from vmtool.report.machine import device_words, moment, page_place
from vmtool.report.page import facts, join, report, section, tag
from vmtool.report.recommendation_and_advice import (
    huge_text,
    method_option_words,
    recommendation_rows,
    recommendation_text,
)
from vmtool.report.table import backing_label, pairs
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vmtool.machine.doctor.findings import Finding
    from vmtool.results.check import MachineCheckResult, MemoryCheck

_MOST_NOTES: Final = 3
_MOST_STEPS: Final = 3


def to_text(result: MachineCheckResult, console: Console) -> None:
    """Print *result*."""
    console.print(Text(answer(result), style="bold" if result.passed else "bold red"))
    console.print()
    for finding in _shown(result):
        style = "red" if finding.rating is Rating.PROBLEM else ""
        line = f"{finding.rating.value}: {finding.message}"
        console.print(paragraph(line, indent="  ", style=style))
    for memory in result.memory:
        console.print()
        console.print(Text(backing_label(memory.backing, memory.device), style="bold"))
        console.print(pairs(memory_rows(memory, _system(result))))
    steps = advice(result)
    if steps:
        console.print()
        console.print(Text("do this:", style="bold"))
        for step in steps:
            console.print(paragraph(f"  {step}", indent="    "))


def _system(result: MachineCheckResult) -> str:
    return str(result.machine.get("system", {}).get("os", ""))


def answer(result: MachineCheckResult) -> str:
    """Return the verdict in one line."""
    wrong = [f for f in result.findings if f.rating is Rating.PROBLEM]
    failed = [(each, check) for each in result.memory for check in each.checks if check.failed]
    if failed:
        memory, check = failed[0]
        where = "" if memory.backing == "host" else f"{memory.backing}: "
        return f"{where}{check.name} failed: {describe(check)}"
    if wrong:
        return f"{len(wrong)} problem{'s'[: len(wrong) > 1]}: {wrong[0].message}"
    size = format_size(result.safe_bytes)
    words = f"this machine is fine: nothing here stops a KV cache of {size} in RAM"
    if not result.complete:
        return f"{words}, as far as the check went before it was interrupted"
    refused = [each for each in result.memory if each.refused is not None]
    if refused:
        return f"{backing_label(refused[0].backing, refused[0].device)}: {refused[0].refused}"
    if any(_too_short(memory) for memory in result.memory):
        return f"{words}; the run was too short to look for leaks"
    return words


def _too_short(memory: MemoryCheck) -> bool:
    """Return whether leaks were not looked for although the platform has what that takes."""
    return any(check.values.get("reason") == "too few checkpoints" for check in memory.checks)


def memory_rows(memory: MemoryCheck, system: str) -> list[tuple[str, str]]:
    """Return what was found with one kind of memory, by name.

    Args:
        memory: What was found.
        system: Where, as ``SystemFacts.os`` names it.
    """
    if memory.refused is not None:
        return [("not measured", memory.refused)]
    rows = [("ended early", describe(c)) for c in memory.checks if c.name == "run" and c.failed]
    if memory.stress is not None and (device := memory.stress.machine.get("device")):
        rows.append(("device", device_words(device)))
    best = memory.recommendation
    if best is not None:
        text = recommendation_text(best).removeprefix("use ").removeprefix("--method ")
        rows += [("best method", text), *recommendation_rows(best, system)]
        huge = huge_text(best)
        if huge is not None:
            rows.append(("huge pages", huge))
    if memory.granules:
        costs = ", ".join(
            f"{format_size(choice.granule_bytes)} {format_duration(choice.per_gib_ns)}"
            for choice in memory.granules
        )
        rows.append(("cost per GiB", costs))
    rows.append(("leaks", _leaks(memory)))
    rows.append(("checks", summarize(memory.checks)))
    return rows


def _leaks(memory: MemoryCheck) -> str:
    checks = [check for check in memory.checks if check.name.startswith("leak.")]
    failed = [check for check in checks if check.failed]
    if failed:
        return f"{failed[0].name.removeprefix('leak.')} grows: {describe(failed[0])}"
    done = [check for check in checks if check.outcome is CheckOutcome.PASSED]
    if not done:
        return "not done: " + (describe(checks[0]) if checks else "no checkpoints")
    seen = next((c for c in done if c.name == "leak.resident"), done[0])
    name = seen.name.removeprefix("leak.").replace("_", " ")
    return f"none in {len(done)} counters; {name}: {describe(seen)}"


def advice(result: MachineCheckResult) -> list[str]:
    """Return what to do, at most three lines: first what mends a problem."""
    steps = [
        finding.remedy
        for finding in result.findings
        if finding.rating is Rating.PROBLEM and finding.remedy
    ]
    for memory in result.memory:
        best = memory.recommendation
        if best is None:
            continue
        where = "" if memory.backing == "host" else f" on {memory.backing}"
        line = f"use {method_option_words(best.method, pasted=True)}{where}"
        if memory.best_granule is not None:
            line += f" and commit {format_size(memory.best_granule.granule_bytes)} at a time"
        steps.append(line)
    if any(_too_short(memory) for memory in result.memory):
        steps.append("run `vmtool stress --duration 1m --require leaks` to look for leaks")
    if not steps and not result.passed:
        steps.append("run `vmtool stress --explain` for the details of what failed")
    return steps[:_MOST_STEPS]


def to_markdown(result: MachineCheckResult) -> str:
    """Return *result* for a bug report."""
    system = dict(result.machine.get("system", {}))
    lines = [
        f"**vmtool check**: {answer(result)}",
        "",
        "| fact | value |",
        "|---|---|",
        f"| system | {_cell(system.get('os'))} {_cell(system.get('kernel'))} |",
        f"| processor | {_cell(system.get('cpu_model'))} |",
        f"| safe to commit | {format_size(result.safe_bytes)} (limited by {BOUND_WORDS[result.limiting_bound]}) |",
    ]
    if result.conditions is not None:
        lines.append(f"| started | {result.conditions.started} |")
    lines += [f"| {f.rating.value} | {_cell(f.message)} |" for f in _shown(result)]
    for memory in result.memory:
        label = backing_label(memory.backing, memory.device)
        lines += [
            f"| {_cell(label)}: {name} | {_cell(value)} |"
            for name, value in memory_rows(memory, _system(result))
        ]
    steps = advice(result)
    if steps:
        lines += ["", "What to do:", "", *(f"* {step}" for step in steps)]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return printable(str(value)).replace("|", "\\|")


_READING: Final = """\
A cycle commits one granule, touches it and releases it again. Its time is the sum of the medians of these
three. Of the methods that do not clearly cost over 25 % more than the cheapest, the best method guarantees the most.

The cost per GiB shows the effect of the granule: a small one needs more calls for the same memory.

A leak is a counter that keeps growing with the cycles, by more than an interpreter takes while it warms up. A
check that was not done is never counted as passed.
"""


def to_html(result: MachineCheckResult, *, command: Sequence[str]) -> str:
    """Return the page of *result*, which *command* made."""
    steps = [tag("li", step) for step in advice(result)]
    conditions = result.conditions
    return report(
        result,
        "check",
        answer(result),
        section("What to do", tag("ul", *steps)) if steps else "",
        *(
            section(
                backing_label(each.backing, each.device), facts(memory_rows(each, _system(result)))
            )
            for each in result.memory
        ),
        section(
            "This machine",
            facts(
                (f.rating.value, "; ".join(filter(None, (f.message, f.remedy))))
                for f in _shown(result)
            ),
        ),
        section("All checks", join(*(_memory_checks(each) for each in result.memory))),
        command=command,
        good=result.passed,
        title=[] if conditions is None else [conditions.host, moment(conditions.started)],
        place=page_place(conditions, result.machine),
        reading=_READING.split("\n\n"),
    )


def _memory_checks(memory: MemoryCheck) -> str:
    return facts((check.name, f"{check.word}: {describe(check)}") for check in memory.checks)


def _shown(result: MachineCheckResult) -> list[Finding]:
    """Return every problem, and the first notes."""
    problems = [f for f in result.findings if f.rating is Rating.PROBLEM]
    notes = [f for f in result.findings if f.rating is Rating.NOTE]
    return problems + notes[:_MOST_NOTES]
