"""``vmtool grow``: grow and shrink a buffer in place, check it, and compare with copying."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from vmtool.cli.interrupt import watch_signals
from vmtool.cli.options import (
    COUNT,
    SIZE,
    Command,
    backing_options,
    huge_option,
    into_dataclass,
    node_option,
    option_group,
    output_options,
)
from vmtool.cli.output import Output
from vmtool.cli.streams import progress_line
from vmtool.errors import CallError, CheckFailedError, ExitCode, RefusedError, UsageError
from vmtool.units import GIB, align_down, align_up, format_size, two_sizes

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts
    from vmtool.results.grow import GrowResult

#: Up to this size the growth is also done by copying, unless --against says otherwise.
_COPY_UP_TO: Final = GIB
#: Without --step: steps to the peak, and the part of it at which doubling starts.
_STEPS: Final = 32
_DOUBLING_PART: Final = 1024


@dataclass(frozen=True, slots=True)
class GrowOptions:
    """The options; sizes are in bytes, ``None`` is not given."""

    to: int
    step: int | None
    tokens: int | None
    model: str | None
    pattern: str
    against: str | None
    budget: int | None
    backing: str
    chunk: int | None
    method: str | None
    huge: bool
    huge_page_bytes: int | None
    node: int | None


@click.command("grow", cls=Command)
@option_group(
    click.option("--to", type=SIZE, required=True, metavar="SIZE", help="The length to grow to."),
    click.option(
        "--step",
        type=SIZE,
        metavar="SIZE",
        help="The length of a step; by default 1/32 of the peak, or 1/1024 for doubling.",
    ),
    click.option(
        "--tokens",
        type=COUNT,
        metavar="N",
        help="Tokens of --model per step, instead of --step.",
    ),
    click.option(
        "--model", metavar="MODEL", help="The model for --tokens; see vmtool kv-estimate -h."
    ),
    click.option(
        "--pattern",
        type=click.Choice(("linear", "doubling", "sawtooth")),
        default="linear",
        show_default=True,
        help="How the length rises and falls.",
    ),
    click.option(
        "--against",
        type=click.Choice(("realloc", "nothing")),
        help="Also grow by copying into ever larger blocks, for at most 2 s. "
        "The default is realloc up to 1 GiB, otherwise nothing.",
    ),
    click.option(
        "--budget",
        type=SIZE,
        metavar="SIZE",
        help="The most to commit; the default is what is safe on this machine.",
    ),
    heading="How to grow",
)
@option_group(
    backing_options,
    click.option("--method", metavar="NAME", help="The commit method; see vmtool stress -h."),
    huge_option,
    node_option,
    heading="Memory",
)
@output_options
@into_dataclass("options", lambda: GrowOptions)
def command(*, options: GrowOptions, as_json: bool, path: str, quiet: bool) -> int:
    """Grow a buffer to a size and shrink it again, and check every step.

    \b
    vmtool grow --to 256MiB
    vmtool grow --to 64MiB --model llama-3.1-8b --tokens 16 --pattern sawtooth

    The base must stay the same, contents must survive, new memory must be zero, and the committed
    memory must be the length rounded up to whole granules; otherwise the exit code is 3. The same
    growth is then done by copying into larger blocks. A plan that commits more than is safe on
    this machine is refused with exit code 5.
    """  # noqa: D301 - click's own mark
    return _run(options, Output(as_json, path, quiet))


def _run(options: GrowOptions, output: Output) -> int:
    from vmtool.machine import read_facts
    from vmtool.machine.device_facts import is_fresh_zero, read_device_of
    from vmtool.machine.device_memory import device_free
    from vmtool.machine.preflight import safe_device_part
    from vmtool.memory.backing_by_name import open_backing
    from vmtool.memory.governor import Governor
    from vmtool.probes.grow import GrowPlan, plan_lengths, run_growth
    from vmtool.report.grow import to_text

    facts = read_facts()
    output.announce(options.backing)
    governor = Governor()
    opened = open_backing(
        options.backing,
        method=options.method,
        chunk=options.chunk,
        node=options.node,
        label="vmtool grow",
        governor=governor,
        huge=options.huge,
        huge_page_bytes=options.huge_page_bytes,
    )
    granule = opened.granularity
    step = _step(options, granule)
    free = device_free(opened)
    _refuse_unsafe(align_up(options.to, granule), granule, options, free, facts)
    safe = facts.safe_bytes if free is None else safe_device_part(free)
    plan = GrowPlan(
        lengths=tuple(plan_lengths(options.pattern, options.to, step)),
        budget_bytes=safe if options.budget is None else options.budget,
        node=options.node,
        against_copying=_copy_too(options, facts, free, output),
    )
    with watch_signals() as interruption, progress_line(quiet=output.quiet) as show:
        result, error = run_growth(
            opened,
            plan,
            replace(facts, device=read_device_of(options.backing, users=True)),
            governor=governor,
            stop=lambda: interruption.requested,
            progress=lambda done: show(lambda: f"step {done:,} of {len(plan.lengths):,}"),
        )
    if error is None and result.machine.device is not None:
        try:
            device = replace(result.machine.device, fresh_zero=is_fresh_zero(options.backing))
            result = replace(result, machine=replace(result.machine, device=device))
        except CallError as failure:
            error = failure
    output.emit(result, lambda console: to_text(result, console))
    if error is not None:
        raise error
    code = _exit_code(result, output)
    if free is not None:
        from vmtool.memory.cuda.backing import CudaBacking

        assert isinstance(opened, CudaBacking)  # noqa: S101 - the only backing with device memory
        opened.close()  # a handle that its pool cannot give back is a call that failed
    return code


def _step(options: GrowOptions, granule: int) -> int:
    """Return the step in bytes that *options* ask for."""
    to, step, tokens, model = options.to, options.step, options.tokens, options.model
    if (tokens is None) != (model is None):
        raise UsageError("--tokens and --model belong together", hint="give both, or --step SIZE")
    if tokens is not None and model is not None:
        from vmtool.cli.kv_model_and_budget import step_bytes

        if step is not None:
            raise UsageError("--step and --tokens both set the step", hint="give one of them")
        step = step_bytes(model, tokens)
    elif step is None:
        parts = _DOUBLING_PART if options.pattern == "doubling" else _STEPS
        step = min(align_up(-(-to // parts), granule), to)
    if step > to:
        larger, peak = two_sizes(step, to)
        raise UsageError(
            f"a step of {larger} is larger than the peak of {peak}",
            hint="raise --to, or use a smaller step",
        )
    return step


def _refuse_unsafe(
    commit: int, granule: int, options: GrowOptions, free: int | None, facts: MachineFacts
) -> None:
    """Raise if the budget, the machine or the device does not allow to commit so much."""
    from vmtool.machine.preflight import Demand, SizeOption, check, refuse_unsafe

    budget = options.budget
    if budget is not None and commit > budget:
        more, less = two_sizes(commit, budget)
        whole = align_down(budget, granule)
        raise RefusedError(
            f"this commits {more}, but the budget is {less}",
            hint=f"raise --budget to {commit} ({format_size(commit)})"
            + (f", or use --to {whole} ({format_size(whole)}) or less" if whole else ""),
        )
    to = SizeOption("--to", granule)
    if free is not None:
        demand = Demand(device_bytes=commit, device_free_bytes=free, commit_option=to)
    else:
        demand = Demand(
            reserve_bytes=commit,
            commit_bytes=commit,
            largest_commit_bytes=commit,
            huge_page_bytes=options.huge_page_bytes,
            reserve_option=to,
            commit_option=to,
            writable_option=to,
        )
    refuse_unsafe(check(demand, facts))


def _copy_too(options: GrowOptions, facts: MachineFacts, free: int | None, output: Output) -> bool:
    """Return whether to grow by copying as well, which needs an old and a new block at once."""
    from vmtool.machine.preflight import Demand, Severity, check

    to, against = options.to, options.against
    if against == "nothing" or (against is None and to > _COPY_UP_TO):
        return False
    demand = Demand(reserve_bytes=2 * to, commit_bytes=2 * to, largest_commit_bytes=to)
    if free is not None:
        demand = Demand(device_bytes=2 * to, device_free_bytes=free)
    refused = [found for found in check(demand, facts) if found.severity is Severity.REFUSE]
    if not refused:
        return True
    if against is None:
        output.notice(
            f"not compared with copying, which needs two blocks at once: {refused[0].message}"
        )
        return False
    raise RefusedError(
        f"copying needs two blocks of {format_size(to)} at once: {refused[0].message}",
        hint=f"use --to {refused[0].safe // 2} or less, or --against nothing"
        if refused[0].safe > 1
        else "use --against nothing",
    )


def _exit_code(result: GrowResult, output: Output) -> int:
    from vmtool.report.grow import check_label, describe_failure

    failed = next((check for check in result.checks if check.failed), None)
    if failed is not None:
        raise CheckFailedError(
            f"{check_label(failed)}: {describe_failure(failed)}",
            hint="run again with another --method; if both fail, test the RAM"
            if result.device is None
            else "run again with another --method, and no other process on the device",
        )
    if result.interrupted:
        output.notice(
            f"interrupted after {len(result.steps.elapsed_ns)} steps; everything is released"
        )
        return ExitCode.INTERRUPTED
    return ExitCode.DONE
