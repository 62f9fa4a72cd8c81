"""``vmtool compare``: what got faster or slower between two runs of stress."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import click

from vmtool.cli.options import Command, html_option, keep_inputs, output_options


class _Percent(click.FloatRange):
    """A number in a range, which that which is no number would pass: it compares with nothing."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


@click.command(cls=Command)
@click.argument("before", metavar="BEFORE.json")
@click.argument("after", metavar="AFTER.json")
@click.option(
    "--fail-on",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit 3 when the change is so, such as commit.median>+20%. Can be given several times.",
)
@click.option(
    "--threshold",
    type=_Percent(0, 1000),
    default=5,
    show_default=True,
    metavar="PERCENT",
    help="Call smaller changes unchanged.",
)
@click.option(
    "--confidence",
    type=_Percent(50, 99.99),
    default=95,
    show_default=True,
    metavar="PERCENT",
    help="The least confidence of every interval.",
)
@html_option
@output_options
def command(
    before: str,
    after: str,
    conditions: tuple[str, ...],
    threshold: float,
    confidence: float,
    html: str | None,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Say what got faster or slower between two runs of stress, and how certain that is.

    The files are written by "vmtool stress --json -o FILE". A phase is faster or slower when the
    interval of its median's change excludes no change and the change reaches the threshold.

    \b
    vmtool compare before.json after.json
    vmtool compare before.json after.json --fail-on 'commit.median>+20%'
    """  # noqa: D301 - click's own mark
    from vmtool.cli.output import Output, command_line
    from vmtool.compare.assertions import parse_change
    from vmtool.compare.runs import compare
    from vmtool.compare.stored import read_run
    from vmtool.errors import ExitCode
    from vmtool.report.compare import (
        ComparedRuns,
        compare_document,
        differences,
        label,
        print_comparison,
    )

    keep_inputs(before, after)
    fail_on = [parse_change(text) for text in conditions]
    old, new = read_run(before), read_run(after)
    comparison = compare(
        old.result,
        new.result,
        confidence=confidence / 100,
        threshold=Fraction(threshold) / 100,
        fail_on=fail_on,
    )
    runs = ComparedRuns(label(old), label(new))
    output = Output(as_json=as_json, path=path, quiet=quiet)
    if comparison.machine:
        output.notice(differences("warning: the machines differ", comparison.machine))
    if comparison.settings:
        output.notice(differences("warning: the settings differ", comparison.settings))
    if comparison.unmatched:
        output.notice(f"warning: not compared: {'; '.join(comparison.unmatched)}")
    output.emit(
        lambda: compare_document(runs, comparison, command=command_line()),
        lambda console: print_comparison(runs, comparison, console),
    )

    def page() -> str:
        from vmtool.report.compare_page import compare_page

        return compare_page(old, new, comparison)

    output.save(html, page)
    return ExitCode.DONE if comparison.passed else ExitCode.CHECK_FAILED
