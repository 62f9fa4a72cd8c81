"""``vmtool granularity``: what this machine can map, and in what unit."""

from __future__ import annotations

import click

from vmtool.cli.options import SIZE, Command, all_backings_option, output_options
from vmtool.cli.output import Output, command_line
from vmtool.errors import CheckFailedError, UnavailableError


@click.command("granularity", cls=Command)
@all_backings_option
@click.option("--prove", is_flag=True, help="Really try g, g/2 and g+1, and show what happens.")
@click.option(
    "--model",
    metavar="MODEL",
    help="Add tokens per granule of each KV tensor of a model; see vmtool kv-estimate -h.",
)
@click.option(
    "--bytes-per-token",
    type=SIZE,
    metavar="SIZE",
    help="Add tokens per granule of a KV tensor of this size per token.",
)
@output_options
def command(
    backing: str,
    prove: bool,
    model: str | None,
    bytes_per_token: int | None,
    as_json: bool,
    path: str,
    quiet: bool,
) -> None:
    """Show what this machine can map, in what unit, and what limits it.

    \b
    vmtool granularity
    vmtool granularity --prove --model llama-3.1-8b

    Nothing is committed except two granules with --prove. The largest reservation is searched for
    with at most 64 reservations, each given back at once.
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.probes.granularity import survey, survey_all
    from vmtool.report.granularity import GranularityReport, to_document, to_text

    tensors = () if bytes_per_token is None else (("KV tensor", bytes_per_token),)
    if model is not None:
        from vmtool.cli.options import kv_tensors

        tensors = (*tensors, *kv_tensors(model))
    facts = read_facts()  # before the survey loads libraries, whose memory areas count too
    output = Output(as_json, path, quiet)
    if backing == "all":
        surveys = survey_all(prove=prove, announce=output.announce)
    else:
        output.announce(backing)
        surveys = (survey(backing, prove=prove),)
    report = GranularityReport(facts, surveys, tensors)
    output.emit(
        lambda: to_document(report, command_line()), lambda console: to_text(report, console)
    )
    wrong = [proof for found in surveys for proof in found.proofs if not proof.expected]
    if wrong:
        raise CheckFailedError(
            f"the granularity is not what it is said to be: {wrong[0].who}: {wrong[0].attempt}: "
            f"{wrong[0].answer}",
            hint="report this with the output of vmtool granularity --prove --json",
        )
    if backing != "all" and surveys[0].absent is not None:
        raise UnavailableError(surveys[0].absent, hint=surveys[0].hint)
