"""``vmtool grow``: grow and shrink a buffer in place, checked, beside copying it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from vmtool.cli.options import (
    COUNT,
    SIZE,
    Command,
    backing_options,
    output_options,
)
from vmtool.cli.output import Output, command_line
from vmtool.errors import CheckFailedError, ExitCode, RefusedError, UsageError
from vmtool.units import GIB, align_down, align_up, format_size

if TYPE_CHECKING:
    from vmtool.machine.facts import MachineFacts
    from vmtool.probes.grow import GrowResult

#: Up to this size the growth is also done by copying, unless --against says otherwise.
_COPY_UP_TO: Final = GIB
#: Without --step, this many steps lead to the peak; doubling starts at this part of it.
_STEPS: Final = 32
_DOUBLING_PART: Final = 1024


@click.command("grow", cls=Command)
@click.option("--to", type=SIZE, required=True, metavar="SIZE", help="The peak length.")
@click.option(
    "--step",
    type=SIZE,
    metavar="SIZE",
    help="Length of a step; a 32nd of the peak by default (doubling starts at a 1024th).",
)
@click.option(
    "--tokens",
    type=COUNT,
    metavar="N",
    help="Make each step so many tokens of --model, instead of --step.",
)
@click.option(
    "--model", metavar="MODEL", help="Whose tokens --tokens counts; see vmtool kv-estimate -h."
)
@click.option(
    "--pattern",
    type=click.Choice(("linear", "doubling", "sawtooth")),
    default="linear",
    show_default=True,
    help="The way up and down.",
)
@click.option(
    "--against",
    type=click.Choice(("realloc", "nothing")),
    help="Also grow by copying into ever larger blocks, for 2 s at most. "
    "realloc up to 1 GiB and nothing beyond, unless given.",
)
@click.option(
    "--budget",
    type=SIZE,
    metavar="SIZE",
    help="Refuse to commit more; what is safe on this machine by default.",
)
@backing_options
@click.option("--method", metavar="NAME", help="How to commit; see vmtool stress -h.")
@click.option("--huge", is_flag=True, help="Align the base to 2 MiB and ask for huge pages.")
@output_options
def command(
    to: int,
    step: int | None,
    tokens: int | None,
    model: str | None,
    pattern: str,
    against: str | None,
    budget: int | None,
    backing: str,
    chunk: int | None,
    method: str | None,
    huge: bool,
    as_json: bool,
    path: str,
    quiet: bool,
) -> int:
    """Grow a buffer to a size and shrink it again, and check every step of it.

    \b
    vmtool grow --to 256MiB
    vmtool grow --to 64MiB --model llama-3.1-8b --tokens 16 --pattern sawtooth

    The base must stay, old contents survive, new memory be zero, and no more be committed than the
    length rounded up to granules; else the exit code is 3. Beside it the same growth is done by
    reallocating and copying. More than the machine can safely give is refused with exit code 5.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.options import device_free
    from vmtool.cli.progress import progress_line
    from vmtool.machine import read_facts
    from vmtool.machine.preflight import safe_device_part
    from vmtool.memory import open_backing
    from vmtool.memory.governor import Governor
    from vmtool.probes.grow import GrowPlan, run_growth
    from vmtool.probes.patterns import lengths
    from vmtool.report.grow import to_document, to_text

    output = Output(as_json, path, quiet)
    facts = read_facts()
    output.announce(backing)
    governor = Governor()
    opened = open_backing(
        backing, method=method, huge=huge, chunk=chunk, label="vmtool grow", governor=governor
    )
    granule = opened.granularity
    step = _step(to, granule, pattern, step, tokens, model)
    free = device_free(opened)
    _refuse_unsafe(align_up(to, granule), granule, budget, free, facts)
    safe = facts.safe_bytes if free is None else safe_device_part(free)
    plan = GrowPlan(
        lengths=tuple(lengths(pattern, to, step)),
        budget_bytes=safe if budget is None else budget,
        against_copying=free is None and _copy_too(to, against, facts, output),
    )
    with watch_signals() as interruption, progress_line(quiet=quiet) as show:
        result = run_growth(
            opened,
            plan,
            governor=governor,
            stop=lambda: interruption.requested,
            progress=lambda done: show(lambda: f"step {done:,} of {len(plan.lengths):,}"),
        )
    output.emit(
        lambda: to_document(result, plan, facts, command_line()),
        lambda console: to_text(result, console),
    )
    return _verdict(result, output)


def _step(
    to: int, granule: int, pattern: str, step: int | None, tokens: int | None, model: str | None
) -> int:
    """Return the step in bytes that the options ask for."""
    if (tokens is None) != (model is None):
        raise UsageError("--tokens and --model belong together", hint="give both, or --step SIZE")
    if tokens is not None and model is not None:
        from vmtool.cli.options import step_bytes

        if step is not None:
            raise UsageError("--step and --tokens both say how long a step is", hint="give one")
        step = step_bytes(model, tokens)
    elif step is None:
        step = align_up(-(-to // (_DOUBLING_PART if pattern == "doubling" else _STEPS)), granule)
        step = min(step, to)
    if step > to:
        raise UsageError(
            f"a step of {step} bytes is larger than the peak of {to} bytes",
            hint="raise --to, or make a step shorter",
        )
    return step


def _refuse_unsafe(
    commit: int, granule: int, budget: int | None, free: int | None, facts: MachineFacts
) -> None:
    """Raise if budget, machine or device do not allow to commit so much."""
    from vmtool.machine.preflight import Demand, SizeOption, check, refuse_unsafe

    if budget is not None and commit > budget:
        raise RefusedError(
            f"this commits {commit} bytes and the budget is {budget}",
            hint=f"use --to {align_down(budget, granule)} or less, or raise --budget"
            if budget >= granule
            else f"raise --budget to {granule} or more: nothing smaller can be committed",
        )
    to = SizeOption("--to", granule)
    if free is not None:
        demand = Demand(device_bytes=commit, device_free_bytes=free, commit_option=to)
    else:
        demand = Demand(
            reserve_bytes=commit,
            commit_bytes=commit,
            largest_commit_bytes=commit,
            reserve_option=to,
            commit_option=to,
            writable_option=to,
        )
    refuse_unsafe(check(demand, facts))


def _copy_too(to: int, against: str | None, facts: MachineFacts, output: Output) -> bool:
    """Tell whether to grow by copying as well, for which an old and a new block live at once."""
    from vmtool.machine.preflight import Demand, Severity, check

    if against == "nothing" or (against is None and to > _COPY_UP_TO):
        return False
    demand = Demand(reserve_bytes=2 * to, commit_bytes=2 * to, largest_commit_bytes=to)
    refused = [found for found in check(demand, facts) if found.severity is Severity.REFUSE]
    if not refused:
        return True
    if against is None:
        output.notice(f"not compared with copying, which holds two blocks: {refused[0].message}")
        return False
    raise RefusedError(
        f"copying holds two blocks of {format_size(to)}: {refused[0].message}",
        hint=f"use --to {refused[0].safe // 2} or less, or --against nothing"
        if refused[0].safe > 1
        else "use --against nothing",
    )


def _verdict(result: GrowResult, output: Output) -> int:
    if result.error is not None:
        raise result.error
    failure = result.failure
    if failure is not None:
        raise CheckFailedError(
            f"{failure.check}: {failure.failure}",
            hint="run again with another --method; if both fail, test the RAM"
            if result.device is None
            else "run again while nobody else uses the device, with another --method",
        )
    if result.interrupted:
        output.notice(f"interrupted after {len(result.elapsed_ns)} steps; all was given back")
        return ExitCode.INTERRUPTED
    return ExitCode.DONE
