"""``vmtool allocators``: a device's other allocators, compared with virtual memory management."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import COUNT, SIZE, BackingName, Command, option_group, output_options
from vmtool.cli.output import Output
from vmtool.cli.streams import progress_line
from vmtool.errors import (
    CheckFailedError,
    ExitCode,
    RefusedError,
    UnavailableError,
    UsageError,
    VmtoolError,
)
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.probes.allocators import AllocatorOptions
    from vmtool.results.allocators import DeviceAllocators

_WORK_BYTES = 64 << 20
_BACKINGS: Final = "cuda, cuda:N or cuda:all"


@click.command("allocators", cls=Command)
@option_group(
    click.option(
        "--backing",
        type=BackingName(_BACKINGS),
        default="cuda",
        show_default=True,
        metavar="NAME",
        help=f"{_BACKINGS}; plain cuda is device VMTOOL_DEVICE, or 0.",
    ),
    click.option(
        "--most",
        type=SIZE,
        default="1GiB",
        show_default=True,
        metavar="SIZE",
        help="The largest allocation to measure.",
    ),
    click.option(
        "--budget",
        type=SIZE,
        metavar="SIZE",
        help="The most memory to use on the device at once; by default half of what is safe.",
    ),
    click.option(
        "--rounds",
        type=COUNT,
        default="9",
        show_default=True,
        metavar="N",
        help="How many rounds to measure; each round measures every allocator once.",
    ),
    heading="What to measure",
)
@option_group(
    click.option(
        "--beside-work",
        is_flag=True,
        help="In a child process, also map and unmap one range while work runs on another.",
    ),
    heading="Checks",
)
@output_options
def command(
    *,
    backing: str,
    most: int,
    budget: int | None,
    rounds: int,
    beside_work: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Compare virtual memory management with the allocators that an engine uses today.

    \b
    vmtool allocators
    vmtool allocators --backing cuda:1 --most 256MiB --beside-work --json

    It measures in turn, at sizes from one granule up: cold (handles created and released), pooled
    (kept, not cleared), malloc (cuMemAlloc) and async (cuMemAllocAsync with a pool that keeps
    everything); then the doubling of a buffer, in place and by copying on the device, and a range
    of chunk sizes. Several devices are measured one after the other. With --beside-work, wrong
    contents exit 3 and a lost device exits 1.
    """  # noqa: D301 - click's own mark
    from vmtool.memory.backing_by_name import ALL_DEVICES, device_ordinal
    from vmtool.memory.cuda.devices import devices
    from vmtool.probes.allocators import AllocatorOptions
    from vmtool.report.allocators import to_text
    from vmtool.results.allocators import AllocatorsResult

    ordinal = None if backing == ALL_DEVICES else device_ordinal(backing)
    if ordinal is None and backing != ALL_DEVICES:
        raise UsageError("the host has no such allocators", hint="use --backing cuda")
    output = Output(as_json, path, quiet)
    output.announce(backing)
    ordinals = [each.ordinal for each in devices()] if ordinal is None else [ordinal]
    budgets = [_budget(each, budget) for each in ordinals]  # what is refused is refused at once
    found: list[DeviceAllocators] = []
    failed: VmtoolError | None = None
    with watch_signals() as interruption, progress_line(quiet=quiet) as show:
        for number, most_bytes in zip(ordinals, budgets, strict=True):
            if not interruption.requested:
                options = AllocatorOptions(most, most_bytes, rounds)
                try:
                    device, failed = _measure(
                        number,
                        options,
                        beside_work=beside_work,
                        show=lambda what: show(lambda: what),
                        stopping=lambda: interruption.requested,
                    )
                    found.append(device)
                except VmtoolError as error:
                    if not found:
                        raise
                    failed = error
                if failed is not None:
                    failed.add_note(
                        f"cuda:{number} failed; the result has what was measured before"
                    )
                    break
        interrupted = interruption.requested
    result = AllocatorsResult(tuple(found))
    output.emit(result, lambda console: to_text(result, console))
    if failed is not None:
        raise failed
    if interrupted:
        output.notice("interrupted; everything is released, and the figures are partial")
        return ExitCode.INTERRUPTED
    for device in found:
        _judge(device)
    return ExitCode.DONE


def _measure(
    ordinal: int,
    options: AllocatorOptions,
    *,
    beside_work: bool,
    show: Callable[[str], None],
    stopping: Callable[[], bool],
) -> tuple[DeviceAllocators, VmtoolError | None]:
    from vmtool.probes.allocators import measure_allocators
    from vmtool.probes.allocators_beside_work import run_beside_work

    result, failed = measure_allocators(ordinal, options, progress=show, stopping=stopping)
    if not beside_work or failed is not None or stopping():
        return result, failed
    show("mapping beside work")
    work = max(min(_WORK_BYTES, options.budget_bytes // 2), result.granularity_bytes)
    work -= work % result.granularity_bytes
    return replace(result, beside=run_beside_work(ordinal, work)), None


def _judge(device: DeviceAllocators) -> None:
    """Raise the error of mapping beside work, if there is one."""
    beside = device.beside
    if beside is None:
        return
    if beside.error is not None and not beside.available:
        raise UnavailableError(
            f"mapping beside work was not measured: {beside.error}",
            hint="update the NVIDIA driver, or leave out --beside-work: everything else was measured",
        )
    if beside.error is not None:
        raise VmtoolError(
            f"mapping while other work ran on {device.backing} "
            f"{'ended the context' if beside.lost else 'failed'}: {beside.error}",
            hint="synchronise before unmapping on this device" if beside.lost else None,
        )
    if not (beside.work_intact and beside.range_intact):
        raise CheckFailedError(
            f"memory of {device.backing} did not keep what was written to it while other work ran"
        )


def _budget(ordinal: int, budget: int | None) -> int:
    from vmtool.machine.device_memory import read_device_memory
    from vmtool.machine.preflight import safe_device_part
    from vmtool.memory.cuda.devices import device

    safe = safe_device_part(read_device_memory(device(ordinal)).free_bytes)
    if budget is None:
        return safe // 2
    if budget > safe:
        raise RefusedError(
            f"a budget of {format_size(budget)} is more than the {format_size(safe)} that is safe",
            hint=f"use --budget {safe} or less",
        )
    return budget
