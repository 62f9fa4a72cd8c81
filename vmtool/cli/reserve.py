"""``vmtool reserve``: reserve addresses and show that this takes no memory."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from vmtool.cli.interrupt import wait_for_enter
from vmtool.cli.options import SIZE, Command, backing_options, huge_option, output_options
from vmtool.cli.output import Output
from vmtool.errors import CheckFailedError, ExitCode


@click.command("reserve", cls=Command)
@click.argument("size", type=SIZE)
@backing_options
@click.option("--method", metavar="NAME", help="The commit method; see vmtool stress -h.")
@huge_option
@click.option(
    "--hold", is_flag=True, help="Keep the reservation until you press Enter or a signal arrives."
)
@output_options
def command(
    size: int,
    backing: str,
    chunk: int | None,
    method: str | None,
    huge: bool,
    huge_page_bytes: int | None,
    hold: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Reserve SIZE bytes of addresses and show that this takes no memory.

    \b
    vmtool reserve 1TiB
    vmtool reserve 64GiB --hold --json

    SIZE is rounded up to whole granules. The change of address space, commit charge, resident
    memory and memory areas is measured: charge and resident memory must not change, and the number
    of memory areas may change by at most one; otherwise the exit code is 3. Nothing is committed,
    so SIZE may be larger than RAM.
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.machine.device_facts import read_device_of
    from vmtool.memory.backing_by_name import open_backing
    from vmtool.probes.reserve import measured_reservation
    from vmtool.report.reserve import counter_label, to_text

    output = Output(as_json, path, quiet)
    facts = read_facts()
    output.announce(backing)
    opened = open_backing(
        backing,
        method=method,
        huge=huge,
        huge_page_bytes=huge_page_bytes,
        chunk=chunk,
        label="vmtool reserve",
    )
    facts = replace(facts, device=read_device_of(backing, users=True))
    with measured_reservation(opened, size, facts) as result:
        output.emit(result, lambda console: to_text(result, console))
        if hold and not _hold(output, result.base):
            return ExitCode.INTERRUPTED
    if not result.passed:
        wrong = next(check for check in result.checks if check.failed)
        raise CheckFailedError(
            f"reserving changed the {counter_label(wrong)} by more than allowed",
            hint="run it again; if it repeats, report it with --json",
        )
    return ExitCode.DONE


def _hold(output: Output, base: int) -> bool:
    """Wait; return whether Enter ended it, not a signal."""
    message = f"holding {base:#x} in process {os.getpid()}; press Enter or Ctrl-C to end"
    try:
        wait_for_enter(lambda: output.notice(message))
    except KeyboardInterrupt:
        output.notice("interrupted; the reservation is released")
        return False
    return True
