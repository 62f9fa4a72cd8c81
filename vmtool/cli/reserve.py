"""``vmtool reserve``: reserve addresses and show that nothing else is taken."""

from __future__ import annotations

import os

import click

from vmtool.cli.options import SIZE, Command, backing_options, output_options
from vmtool.cli.output import Output, command_line
from vmtool.errors import CheckFailedError, ExitCode


@click.command("reserve", cls=Command)
@click.argument("size", type=SIZE)
@backing_options
@click.option("--method", metavar="NAME", help="How it would commit; see vmtool stress -h.")
@click.option("--huge", is_flag=True, help="Align the base to 2 MiB and ask for huge pages.")
@click.option("--hold", is_flag=True, help="Keep the reservation until Enter or a signal.")
@output_options
def command(
    size: int,
    backing: str,
    chunk: int | None,
    method: str | None,
    huge: bool,
    hold: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Reserve SIZE bytes of addresses and show that no memory is taken for them.

    \b
    vmtool reserve 1TiB
    vmtool reserve 64GiB --hold --json

    The change of address space, commit charge, resident memory and memory areas is measured. It
    must be zero but for the first, and one area: if it is not, the exit code is 3. Nothing is ever
    committed, so SIZE may be far more than there is RAM.
    """  # noqa: D301 - click's own mark
    from vmtool.machine import read_facts
    from vmtool.memory import open_backing
    from vmtool.probes.reserve import measured_reservation
    from vmtool.report.reserve import to_document, to_text

    output = Output(as_json, path, quiet)
    output.announce(backing)
    opened = open_backing(backing, method=method, huge=huge, chunk=chunk, label="vmtool reserve")
    with measured_reservation(opened, size) as result:
        output.emit(
            lambda: to_document(result, read_facts(), command_line()),
            lambda console: to_text(result, console),
        )
        if hold and not _hold(output, result.base):
            return ExitCode.INTERRUPTED
    if not result.passed:
        wrong = next(check.ledger for check in result.ledgers if check.passed is False)
        raise CheckFailedError(
            f"reserving changed the {wrong} of this process by more than it may",
            hint="run it again; if it repeats, report it with --json",
        )
    return ExitCode.DONE


def _hold(output: Output, base: int) -> bool:
    """Wait; return whether Enter ended it, and not a signal."""
    from vmtool.cli.interrupt import wait_for_enter

    message = f"holding {base:#x} in process {os.getpid()}; press Enter or Ctrl-C to end"
    try:
        wait_for_enter(lambda: output.notice(message))
    except KeyboardInterrupt:
        output.notice("interrupted; the reservation is given back")
        return False
    return True
