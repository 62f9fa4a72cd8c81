"""``vmtool limits``: how far reserving, committing, mapping and locking go, and what stops them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import Command, backing_option, host_option, output_options
from vmtool.cli.output import Output
from vmtool.cli.streams import progress_line
from vmtool.cli.stress_options import method_option
from vmtool.errors import ExitCode, VmtoolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.results.limits import KindLimits, MethodLimit


#: What is searched by default; ``lock`` faults memory in, so it has to be asked for.
_KINDS = ("reserve", "commit", "mappings")


@click.command("limits", cls=Command)
@click.argument("kind", type=click.Choice((*_KINDS, "lock")), required=False)
@backing_option
@method_option
@host_option
@click.option("--force", is_flag=True, help="Exhaust a device even if other programs may use it.")
@output_options
def command(
    *,
    kind: str | None,
    backing: str,
    methods: tuple[str, ...],
    name_host: bool,
    force: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Find how much can be reserved, committed, mapped and locked, trying each size in a new process.

    \b
    vmtool limits
    vmtool limits mappings --method fixed

    Memory is not touched, except with advise, which commits by touching, so its search ends at
    half of what is safe. Without a kind, all except lock are searched, which takes up to half a
    minute. lock keeps host memory in RAM, at most 1 GiB: with mlock, or pinned for a device with
    --backing cuda (cuMemHostRegister).

    On a device, commit and mappings go on until the driver refuses. Unless NVML shows that no other
    program uses the device, this needs --force; without it the exit code is 5.
    """  # noqa: D301 - click's own mark
    from vmtool.json_documents import plain
    from vmtool.machine import read_facts
    from vmtool.machine.device_facts import read_device_of
    from vmtool.machine.run_conditions import RunConditionsWatch
    from vmtool.memory.backing_by_name import describe_device
    from vmtool.probes.limits import refuse_shared_device
    from vmtool.report.limits import to_text
    from vmtool.results.limits import LimitsResult
    from vmtool.stress.plan import method_names

    output = Output(as_json, path, quiet)
    output.announce(backing)
    if not force:
        for each in _KINDS if kind is None else (kind,):
            refuse_shared_device(backing, each)
    # Locking is the same whatever committed the memory, and it is the host's.
    of, every = ("host", None) if kind == "lock" else (backing, "all")
    names = method_names(of, next(iter(methods), every))
    device = describe_device(backing)
    watch = RunConditionsWatch(name_host=name_host)
    with watch_signals() as interruption, progress_line(quiet=output.quiet, every_ns=0) as show:
        search = partial(_search, backing, names, show, lambda: interruption.requested)
        searched = [search(each) for each in (_KINDS if kind is None else (kind,))]
    kinds = [of_kind for of_kind, _ in searched]
    failures = [error for _, errors in searched for error in errors]
    if failures and all(not limit.tries for of_kind in kinds for limit in of_kind.methods):
        raise failures[0]
    limits = [limit for of_kind in kinds for limit in of_kind.methods]
    result = LimitsResult(
        backing=backing,
        kinds=tuple(kinds),
        complete=all(len(of_kind.methods) == len(names) for of_kind in kinds)
        and all(limit.outcome != "partial" for limit in limits),
        found=all(limit.outcome != "not found" for limit in limits),
        device=None if device is None else device.name,
        conditions=watch.finish(),
        machine=plain(replace(read_facts(), device=read_device_of(backing))),
    )
    output.emit(result, lambda console: to_text(result, console))
    if not result.complete:
        output.notice("interrupted; everything is released, but the search is not finished")
        return ExitCode.INTERRUPTED
    if failures:
        raise failures[0]
    if not result.found:
        first = next(limit for limit in limits if limit.outcome == "not found")
        raise VmtoolError(
            f"{first.method}: no limit was found: {first.error}",
            cause=first.cause,
            hint="`vmtool doctor` shows what limits this machine"
            if device is None
            else "run nvidia-smi, and look for Xid messages in dmesg",
        )
    return ExitCode.DONE


def _search(
    backing: str,
    methods: Sequence[str],
    show: Callable[[Callable[[], str]], None],
    stopping: Callable[[], bool],
    kind: str,
) -> tuple[KindLimits, list[VmtoolError]]:
    """Search how far *kind* goes with each method; the error of one does not hide the others."""
    from vmtool.probes.limits import find_limits
    from vmtool.results.limits import KindLimits, MethodLimit

    found: list[MethodLimit] = []
    errors: list[VmtoolError] = []
    for method in methods:
        try:
            one = find_limits(
                kind, backing, (method,), partial(_show_try, show, kind), stopping=stopping
            )
            found += one.methods
        except VmtoolError as error:
            errors.append(error)
            words = str(error)
            found.append(MethodLimit(method, "not found", None, None, 0, words, error.cause))
    return KindLimits(kind, tuple(found)), errors


def _show_try(show: Callable[[Callable[[], str]], None], kind: str, tries: int) -> None:
    show(lambda: f"{kind}: attempt {tries}")
