"""``vmtool check``: whether this machine is fine, and how to commit memory on it."""

from __future__ import annotations

import os

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import (
    Command,
    all_backings_option,
    host_option,
    html_option,
    output_options,
)
from vmtool.cli.output import Output, command_line
from vmtool.cli.streams import progress_line, tell
from vmtool.errors import CheckFailedError, ExitCode, VmtoolError
from vmtool.units import format_duration

_HANG_NS = 30 * 10**9


@click.command("check", cls=Command)
@all_backings_option
@html_option
@host_option
@output_options
def command(
    *,
    backing: str,
    html: str | None,
    name_host: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Check in fifteen seconds whether this machine is fine, and how to commit memory on it.

    \b
    vmtool check
    vmtool check --markdown

    It shows the limits of the machine, the best method and granule, and the effect of huge pages.
    It looks for leaks, checks contents, counters and guards, and does the same for each CUDA
    device. It commits at most 256 MiB. The exit code is 3 if something is wrong.
    """  # noqa: D301 - click's own mark
    from vmtool.check import run_check
    from vmtool.machine import read_facts
    from vmtool.machine.doctor.device_rules import examine_devices
    from vmtool.machine.doctor.findings import Rating
    from vmtool.memory.backing_by_name import ALL_DEVICES, device_ordinal, open_backing
    from vmtool.report.check import answer, to_html, to_markdown, to_text
    from vmtool.stress.safe_memory import measure_room

    output = Output(as_json, path, quiet)
    facts = read_facts()
    several = backing in {"all", ALL_DEVICES}
    backings = _backings(host=backing == "all") if several else [backing]
    devices = any(device_ordinal(name) is not None for name in backings)
    findings = examine_devices() if devices or backing == "all" else ()
    if not devices:  # no driver is as good as no device; one that does not start is a problem
        findings = tuple(each for each in findings if each.rating is Rating.PROBLEM)
    if not several and backing != "host":
        open_backing(backing)  # a device that was asked for and is not there is an error
    with watch_signals() as interruption, progress_line(quiet=quiet, every_ns=0) as show:
        result = run_check(
            facts,
            backings,
            room_of=lambda opened: measure_room(opened, facts, workers=1),
            device_findings=findings,
            seed=int.from_bytes(os.urandom(4), "big"),
            hang_ns=_HANG_NS,
            name_host=name_host,
            stopping=lambda: interruption.requested,
            progress=lambda what, done, total, left_ns: show(
                lambda: f"{done + 1} of {total}, {format_duration(left_ns)} left: {what}"
            ),
        )
    output.emit(result, lambda console: to_text(result, console), lambda: to_markdown(result))
    output.save(html, lambda: to_html(result, command=command_line()))
    if not result.complete:
        output.notice("interrupted; everything is released, and the check is partial")
        return ExitCode.INTERRUPTED
    if not result.passed:
        raise CheckFailedError(
            answer(result), hint="run `vmtool doctor` and `vmtool stress --explain` for the details"
        )
    if all(memory.refused is not None for memory in result.memory):
        tell(f"vmtool: error: {answer(result)}")
        return ExitCode.REFUSED
    return ExitCode.DONE


def _backings(*, host: bool) -> list[str]:
    """Return the host, or none, and every CUDA device that can be used."""
    from vmtool.memory.cuda.devices import devices

    try:
        found = [f"cuda:{device.ordinal}" for device in devices()]
    except VmtoolError:
        if not host:
            raise
        found = []
    return ["host", *found] if host else found
