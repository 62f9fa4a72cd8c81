"""``vmtool compare``: what got faster or slower between two sets of stress runs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import click

from vmtool.cli.options import Command, html_option, option_group, output_options
from vmtool.errors import ExitCode, InputError, UsageError


class _Percent(click.FloatRange):
    """A float range that also rejects NaN, and digits that are not ASCII."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, str) and (not value.strip() or not value.isascii() or "_" in value):
            self.fail(f"{value!r} is not a number; write it like 5", param, ctx)
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


@click.command("compare", cls=Command)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@option_group(
    click.option(
        "--fail-on",
        "conditions",
        multiple=True,
        metavar="CONDITION",
        help="Exit 3 when the whole interval of the change meets the condition, such as "
        "cycle.median>+20%. Can be given several times.",
    ),
    click.option("--strict", is_flag=True, help="Exit 3 also if a condition is not proven."),
    heading="Checks",
)
@option_group(
    click.option(
        "--threshold",
        type=_Percent(0, 1000),
        default=5,
        show_default=True,
        metavar="PERCENT",
        help="Call smaller changes unchanged.",
    ),
    click.option(
        "--confidence",
        type=_Percent(50, 99.99),
        default=95,
        show_default=True,
        metavar="PERCENT",
        help="The minimum confidence of every interval.",
    ),
    heading="Verdicts",
)
@html_option
@output_options
def command(
    before: str,
    after: str,
    conditions: tuple[str, ...],
    strict: bool,
    threshold: float,
    confidence: float,
    html: str | None,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Show what got faster or slower between two sets of runs, and how certain that is.

    \b
    vmtool compare before.json after.json
    vmtool compare before/ after/ --fail-on 'cycle.median>+20%'

    BEFORE and AFTER are each a result of "vmtool stress --json -o FILE", which holds several runs,
    or a folder of results. A figure is faster or slower when the change reaches the threshold and
    its interval, estimated from the variation between runs, does not include zero. With fewer than
    four runs per side nothing is proven.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.output import Output, command_line, keep_inputs
    from vmtool.compare.assertions import parse_change
    from vmtool.compare.changes import compare
    from vmtool.compare.confidence_intervals import fewest_runs
    from vmtool.compare.run_sets import read_set
    from vmtool.report.compare import left_out_text, to_text, warnings_of

    if before == after == "-":
        raise UsageError(
            "BEFORE and AFTER cannot both be -, as stdin holds one result",
            hint="give a file or a folder for one of them",
        )
    keep_inputs(before, after)
    fail_on = [parse_change(text) for text in conditions]
    needed = fewest_runs(confidence / 100)
    sides = [read_set(name) for name in (before, after)]
    output = Output(as_json=as_json, path=path, quiet=quiet)
    for side in sides:
        if not side.runs:
            why = "; ".join(map(left_out_text, side.incomplete)) or "there are no runs"
            raise InputError(side.path, f"nothing to compare: {why}")
        if fail_on and len(side.runs) < needed:
            raise UsageError(
                f"--fail-on needs {needed} runs per side, and {side.path} has {len(side.runs)}",
                hint=f"make them with: vmtool stress --runs {max(needed, 5)} --json -o FILE",
            )
    result = compare(
        sides[0],
        sides[1],
        confidence=confidence / 100,
        threshold=Fraction(threshold) / 100,
        fail_on=fail_on,
        strict=strict,
    )
    if not result.changes:
        raise UsageError(
            f"{before} and {after} have no method and phase in common: "
            f"{'; '.join(result.unmatched)}"
        )
    if [file.result for file in sides[0].files] == [file.result for file in sides[1].files]:
        what = f"are the same: {before}" if before == after else "hold the same results"
        output.notice(f"warning: BEFORE and AFTER {what}")
    for warning in warnings_of(result):
        output.notice(f"warning: {warning}")
    output.emit(result, lambda console: to_text(result, console))

    def page() -> str:
        from vmtool.report.compare_page import to_html

        return to_html(sides[0], sides[1], result, command_line())

    output.save(html, page)
    return ExitCode.DONE if result.passed else ExitCode.CHECK_FAILED
