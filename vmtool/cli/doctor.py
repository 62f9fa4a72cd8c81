"""``vmtool doctor``: what on this machine would stop or slow such memory."""

from __future__ import annotations

import click

from vmtool.cli.options import Command, all_backings_option, output_options
from vmtool.cli.output import Output, command_line
from vmtool.errors import CheckFailedError


@click.command("doctor", cls=Command)
@all_backings_option
@click.option("--strict", is_flag=True, help="Exit with code 3 if there is a problem.")
@output_options
def command(backing: str, strict: bool, as_json: bool, path: str, quiet: bool) -> None:
    """Check everything on this machine that would stop or slow such memory.

    \b
    vmtool doctor
    vmtool doctor --json --quiet

    Each finding is rated ok, note or problem, with the command that changes it. A note is worth
    knowing; a problem makes ordinary use fail. Nothing is changed.
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.machine.doctor import Rating, examine, examine_device, examine_devices
    from vmtool.memory import device_ordinal
    from vmtool.report.doctor import to_document, to_text

    ordinal = None if backing == "all" else device_ordinal(backing)
    facts = read_facts()
    output = Output(as_json, path, quiet)
    sections = []
    if ordinal is None:
        sections.append(("this machine", examine(facts)))
    if backing == "all":
        sections.append(("CUDA", examine_devices()))
    elif ordinal is not None:
        output.announce(backing)
        sections.append(("CUDA", examine_device(ordinal)))
    output.emit(
        lambda: to_document(sections, facts, command_line()),
        lambda console: to_text(sections, facts if ordinal is None else None, console),
    )
    problems = [
        check for _, checks in sections for check in checks if check.rating is Rating.PROBLEM
    ]
    if strict and problems:
        raise CheckFailedError(
            f"{len(problems)} problem{'s'[: len(problems) > 1]}, the first: {problems[0].kind}",
            hint=problems[0].remedy,
        )
