"""``vmtool granularity``: what this machine can map, and in what unit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from vmtool.cli.options import SIZE, Command, all_backings_option, host_option, output_options
from vmtool.cli.output import Output
from vmtool.errors import CallError, CheckFailedError, UnavailableError

if TYPE_CHECKING:
    from vmtool.results.granularity import BackingGranularity, PeerTrial


@click.command("granularity", cls=Command)
@all_backings_option
@click.option(
    "--prove",
    is_flag=True,
    help="Commit g, g/2 and g+1 bytes, where g is the granule, and show what happens.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Also show the tokens per granule of each KV tensor of a model; see vmtool kv-estimate -h.",
)
@click.option(
    "--bytes-per-token",
    type=SIZE,
    metavar="SIZE",
    help="Also show the tokens per granule of a KV tensor with this size per token.",
)
@host_option
@output_options
def command(
    *,
    backing: str,
    prove: bool,
    model: str | None,
    bytes_per_token: int | None,
    name_host: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> None:
    """Show what this machine can map, in what unit, and what limits it.

    \b
    vmtool granularity
    vmtool granularity --prove --model llama-3.1-8b

    Nothing is committed, except two granules with --prove. The search for the largest reservation
    makes at most 64 reservations, one at a time. On a device --prove also creates and exports a
    handle of each kind, shares memory with a second process, and tries every pair of devices
    (--backing cuda:all: devices only).
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.machine.run_conditions import RunConditionsWatch
    from vmtool.probes.granularity import make_result, probe, probe_all
    from vmtool.report.granularity import to_text

    tensors = () if bytes_per_token is None else (("KV tensor", bytes_per_token),)
    if model is not None:
        from vmtool.cli.kv_model_and_budget import kv_tensors

        tensors = (*tensors, *kv_tensors(model))
    facts = read_facts()  # before libraries are loaded, whose memory areas count too
    watch = RunConditionsWatch(name_host=name_host)
    output = Output(as_json, path, quiet)
    peers: tuple[PeerTrial, ...] = ()
    failures: list[CallError] = []
    if backing in {"all", "cuda:all"}:
        backings = probe_all(
            host=backing == "all", prove=prove, announce=output.announce, failures=failures
        )
        busy = any(each.used_by for each in backings)
        if prove and not busy and not failures and _has_pairs(backings):
            from vmtool.probes.sharing import try_peers

            try:
                peers = try_peers()
            except CallError as error:
                failures.append(error)
    else:
        output.announce(backing)
        backings = (probe(backing, prove=prove, failures=failures),)
    result = replace(make_result(facts, backings, tensors, peers), conditions=watch.finish())
    output.emit(result, lambda console: to_text(result, console))
    wrong = [check for found in backings for check in found.checks if check.failed]
    if wrong:
        values = wrong[0].values
        raise CheckFailedError(
            f"the granularity is wrong: {values['who']}: {wrong[0].name}: {values['answer']}",
            hint="report this with the output of vmtool granularity --prove --json",
        )
    if failures and (prove or backing != "all"):  # what was asked for was not found
        raise failures[0]
    if backing != "all" and backings and backings[0].absent is not None:
        raise UnavailableError(backings[0].absent, hint=backings[0].hint)


def _has_pairs(backings: tuple[BackingGranularity, ...]) -> bool:
    return sum(each.device is not None and each.absent is None for each in backings) > 1
