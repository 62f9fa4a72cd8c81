"""The report of ``vmtool check``: the verdict, what it rests on, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.machine.findings import Rating
from vmtool.report.checks import (
    describe,
    huge_text,
    method_option_words,
    recommendation_text,
    summarize,
)
from vmtool.report.page import Markup, facts, join, page, section, tag
from vmtool.report.table import backing_label, pairs, paragraph
from vmtool.results.check import CheckOutcome
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vmtool.machine.findings import Finding
    from vmtool.results.machine_check import MachineCheckResult, MemoryCheck

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
    return words


def memory_rows(memory: MemoryCheck, system: str) -> list[tuple[str, str]]:
    """Return what was found with one kind of memory, by name.

    Args:
        memory: What was found.
        system: Where, as ``SystemFacts.os`` names it.
    """
    if memory.refused is not None:
        return [("not measured", memory.refused)]
    rows = [("ended early", describe(c)) for c in memory.checks if c.name == "run" and c.failed]
    best = memory.recommendation
    if best is not None:
        rows.append(("best method", recommendation_text(best, system).removeprefix("use ")))
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
    rest = [check for check in memory.checks if not check.name.startswith("leak.")]
    rows.append(("checks", summarize(rest)))
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
        line = f"use {method_option_words(best.method)}{where}"
        if memory.best_granule is not None:
            line += f" and commit {format_size(memory.best_granule.granule_bytes)} at a time"
        steps.append(line)
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
        f"| safe to commit | {format_size(result.safe_bytes)} ({result.limiting_bound}) |",
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
        lines += ["", "Do this:", "", *(f"* {step}" for step in steps)]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def to_html(result: MachineCheckResult, *, command: Sequence[str], version: str) -> str:
    """Return the page of *result*.

    Args:
        result: What was found.
        command: The command line that made it.
        version: The version of vmtool that made it.
    """
    steps = [tag("li", step) for step in advice(result)]
    state = "good" if result.passed else "bad"
    started = "" if result.conditions is None else result.conditions.started
    return page(
        "vmtool check",
        tag("h1", "vmtool check"),
        tag("p", f"{started} {' '.join(command)}".strip(), class_="soft"),
        tag("p", answer(result), class_=f"state {state}"),
        section("Do this", tag("ul", *steps)) if steps else Markup(""),
        section(
            "This machine",
            facts((f.rating.value, f"{f.message}. {f.remedy or ''}") for f in _shown(result)),
        ),
        *(
            section(
                backing_label(each.backing, each.device), facts(memory_rows(each, _system(result)))
            )
            for each in result.memory
        ),
        section("All checks", join(*(_memory_checks(each) for each in result.memory))),
        tag("p", f"made by vmtool {version}", class_="soft"),
    )


def _memory_checks(memory: MemoryCheck) -> Markup:
    return facts((check.name, f"{check.word}: {describe(check)}") for check in memory.checks)


def _shown(result: MachineCheckResult) -> list[Finding]:
    """Return every problem, and the first notes."""
    problems = [f for f in result.findings if f.rating is Rating.PROBLEM]
    notes = [f for f in result.findings if f.rating is Rating.NOTE]
    return problems + notes[:_MOST_NOTES]
