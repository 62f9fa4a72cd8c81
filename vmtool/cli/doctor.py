"""``vmtool doctor``: what on this machine would stop virtual memory or slow it down."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from vmtool.cli.options import Command, all_backings_option, host_option, output_options
from vmtool.cli.output import Output
from vmtool.errors import CheckFailedError, VmtoolError

if TYPE_CHECKING:
    from vmtool.machine.device_facts import DeviceFacts
    from vmtool.machine.doctor.findings import Finding


@click.command("doctor", cls=Command)
@all_backings_option
@click.option("--strict", is_flag=True, help="Exit with code 3 if there is a problem.")
@host_option
@output_options
def command(
    *, backing: str, strict: bool, name_host: bool, as_json: bool, path: str, quiet: bool
) -> None:
    """Check every limit on this machine that virtual memory can run into.

    \b
    vmtool doctor
    vmtool doctor --json --quiet

    Each finding is rated ok, note or problem, with the command that fixes it. A problem makes
    ordinary use fail. Nothing is changed.
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.machine.doctor.examine import examine
    from vmtool.machine.doctor.findings import Rating
    from vmtool.machine.run_conditions import RunConditionsWatch
    from vmtool.memory.backing_by_name import ALL_DEVICES, device_ordinal
    from vmtool.report.doctor import to_text
    from vmtool.results.doctor import DoctorResult

    ordinal = None if backing in {"all", ALL_DEVICES} else device_ordinal(backing)
    facts = read_facts()
    watch = RunConditionsWatch(name_host=name_host) if as_json else None
    output = Output(as_json, path, quiet)
    on_machine = examine(facts) if backing in {"all", "host"} else ()
    on_devices = () if backing == "host" else _examine_devices(ordinal, output, backing)
    devices = _describe_devices(ordinal) if as_json and backing != "host" else ()
    conditions = None if watch is None else watch.finish()
    result = DoctorResult.of(facts, on_machine, on_devices, conditions, devices)
    output.emit(result, lambda console: to_text(result, console))
    problems = [each for each in (*on_machine, *on_devices) if each.rating is Rating.PROBLEM]
    if strict and problems:
        raise CheckFailedError(
            f"{len(problems)} problem{'s'[: len(problems) > 1]}, the first: {problems[0].kind}",
            hint=problems[0].remedy,
        )


def _describe_devices(ordinal: int | None) -> tuple[DeviceFacts, ...]:
    """Return the facts of one device, or of all; none where the driver fails: the findings say it."""
    from vmtool.machine.device_facts import read_device_facts
    from vmtool.memory.cuda.devices import device, devices

    with suppress(VmtoolError):
        infos = devices() if ordinal is None else (device(ordinal),)
        return tuple(map(read_device_facts, infos))
    return ()


def _examine_devices(ordinal: int | None, output: Output, backing: str) -> tuple[Finding, ...]:
    """Return the findings of one device, or of all; the host alone needs none of these modules."""
    from vmtool.machine.doctor.device_rules import examine_device, examine_devices

    if ordinal is None:
        return examine_devices()
    output.announce(backing)
    return examine_device(ordinal)
