"""The options of ``vmtool kv-replay``, in the groups that its help shows them in."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.kv_estimate import (
    BLOCK,
    IN_FLIGHT,
    MODEL_OPTIONS,
    POLICY,
    RESERVE,
)
from vmtool.cli.kv_question import read_granule
from vmtool.cli.options import (
    COUNT,
    SIZE,
    SIZE_OR_ZERO,
    Command,
    csv_option,
    html_option,
    keep_inputs,
    option_group,
    output_options,
    read_axes,
)
from vmtool.cli.output import Output, command_line
from vmtool.errors import (
    ExitCode,
    InputError,
    RefusedError,
    UsageError,
)
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vmtool.report.replay_table import ComparedReplay
    from vmtool.results.replay import ReplayResult

_TRACE: Final = (
    click.argument("trace", nargs=-1),
    click.option(
        "--limit", type=COUNT, metavar="N", help="Replay only the first N requests of the trace."
    ),
    click.option(
        "--rate",
        type=float,
        metavar="N",
        help="Requests in a second where the trace has no times (Poisson); all at once by default.",
    ),
    click.option(
        "--max-bad-lines",
        type=click.IntRange(0),
        default=100,
        show_default=True,
        metavar="N",
        help="Fail when more lines than N are no requests.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        show_default=True,
        metavar="N",
        help="Of what is drawn: a synthetic trace, arrivals at --rate.",
    ),
)

_MODEL: Final = (
    click.option("--model", metavar="MODEL", help="Whose KV cache; see vmtool kv-estimate -h."),
    *MODEL_OPTIONS,
)

_PACKING: Final = (
    click.option(
        "--budget",
        metavar="SIZE",
        help="Memory for the KV cache of one rank: a size, auto, 75% or cuda:0.  [default: auto, "
        "what this machine has available; in a real run what is safe]",
    ),
    click.option(
        "--find-budget",
        is_flag=True,
        help="If something is refused, find the smallest budget that refuses nothing: the trace is "
        "simulated once more, without a limit.",
    ),
    click.option("--weights", metavar="SIZE|FILE", help="Subtract the weights from --budget."),
    RESERVE,
    click.option(
        "--context",
        type=COUNT,
        metavar="TOKENS",
        help="The longest sequence; the model's own by default. Longer requests are rejected.",
    ),
    IN_FLIGHT,
    POLICY,
    click.option(
        "--granule",
        type=SIZE,
        metavar="SIZE",
        help="The unit of commits.  [default: the backing's; 2MiB in a simulation]",
    ),
    BLOCK,
    click.option(
        "--commit-ahead",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="TOKENS",
        help="Commit for so many tokens before they are due.",
    ),
    click.option(
        "--retain",
        type=SIZE_OR_ZERO,
        default=0,
        metavar="SIZE",
        help="Keep so much released memory in a pool for the next commit.",
    ),
    click.option(
        "--share/--no-share",
        default=True,
        show_default=True,
        help="Share the whole granules (or blocks) of equal prefixes, where the trace names them.",
    ),
    click.option(
        "--prefix-cache",
        is_flag=True,
        help="Keep them when no sequence has them any more, until the memory is needed; what is "
        "there is not prefilled again.",
    ),
)

_CLOCK: Final = (
    click.option(
        "--tokens-per-second",
        type=float,
        default=30.0,
        show_default=True,
        metavar="N",
        help="How fast each sequence decodes.",
    ),
    click.option(
        "--prefill-rate",
        type=float,
        default=8000.0,
        show_default=True,
        metavar="N",
        help="Prompt tokens of a sequence in a second.",
    ),
    click.option(
        "--max-sequences",
        type=COUNT,
        default=256,
        show_default=True,
        metavar="N",
        help="Sequences at once, at most.",
    ),
    click.option(
        "--on-refusal",
        type=click.Choice(("wait", "reject", "preempt")),
        default="preempt",
        show_default=True,
        help="When memory is refused: wait for it, end the request, or take it from the youngest, "
        "which begins anew. An admission waits, or with reject ends.",
    ),
)

_REAL: Final = (
    click.option(
        "--backing",
        metavar="NAME",
        help="Do it on real memory too: host, cuda or cuda:N.  [default: only simulate]",
    ),
    click.option("--method", metavar="NAME", help="How the host commits; see vmtool stress -h."),
    click.option(
        "--touch/--no-touch",
        default=True,
        show_default=True,
        help="Write to each page after its commit, as an engine does that fills it; without, the "
        "times of a host leave its page faults out.",
    ),
    click.option("--prefault", is_flag=True, help="Fault every page in at commit (host, Linux)."),
)

_FILES: Final = (
    click.option(
        "--compare",
        multiple=True,
        metavar="AXIS=A,B",
        help="Compare granule, policy, dtype, block, on-refusal or commit-ahead in one table; more "
        "axes may follow.",
    ),
    html_option,
    csv_option("the totals over time, or the table of --compare, as CSV"),
)

#: Every option of the command but those that other commands share.
replay_options: Final = option_group(*_TRACE, *_MODEL, *_PACKING, *_CLOCK, *_REAL, *_FILES)


def _policy(text: str) -> str:
    from vmtool.kv.packing import POLICIES

    if text not in POLICIES:
        raise ValueError(f"unknown policy {text[:40]!r}; use {', '.join(POLICIES)}")
    return text


def _dtype(text: str) -> str:
    from vmtool.kv.formats import choose_formats

    choose_formats(None, key=text, value=text)
    return text


def _mode(text: str) -> str:
    if text not in ("wait", "reject", "preempt"):
        raise ValueError(f"{text[:40]!r} is none of wait, reject and preempt")
    return text


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "granule": read_granule,
    "policy": _policy,
    "dtype": _dtype,
    "block": parse_count,
    "on-refusal": _mode,
    "commit-ahead": parse_count,
}
#: Each row replays the whole trace.
_MOST_ROWS: Final = 100


def is_axis(text: str) -> bool:
    """Tell whether *text* is an axis of a comparison, such as ``granule=64KiB,2MiB``."""
    return text.partition("=")[0] in _READERS and "=" in text


def replay_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values on each axis; see :func:`vmtool.cli.options.read_axes`."""
    return read_axes(texts, _READERS, _MOST_ROWS)


def replay_rows(
    options: Mapping[str, Any],
    axes: Mapping[str, Sequence[str]],
    replay: Callable[[Mapping[str, Any]], ReplayResult],
) -> tuple[list[ComparedReplay], bool]:
    """Replay every combination.

    Args:
        options: As click has them.
        axes: The values on each axis.
        replay: Replays the trace under changed options.

    Returns:
        The rows, and whether they are all there: an interrupted replay is no row.

    Raises:
        UsageError: If a value on an axis is unknown, or no combination is possible.
        RefusedError: If no combination is safe on this machine.
    """
    from vmtool.report.replay_table import ComparedReplay

    rows: list[ComparedReplay] = []
    refusal: UsageError | RefusedError | None = None
    for labels, changed in _combinations(options, axes):
        try:
            result = replay(changed)
        except (UsageError, RefusedError) as error:
            if isinstance(error, InputError):
                raise  # the trace is bad, and so in every row
            rows.append(ComparedReplay(labels, None, str(error)))
            refusal = refusal or error
            continue
        if not result.complete:
            return rows, False
        rows.append(ComparedReplay(labels, result, ""))
    if refusal is not None and all(row.result is None for row in rows):
        raise refusal
    return rows, True


def answer_compare(
    rows: Sequence[ComparedReplay], options: Mapping[str, Any], output: Output, *, complete: bool
) -> int:
    """Print one table of *rows*, and write the files that *options* ask for."""
    from vmtool.report.replay_table import compare_csv, compare_document, compare_text

    output.emit(
        lambda: compare_document(rows, command_line(), complete=complete),
        lambda console: compare_text(rows, console),
    )

    def page() -> str:
        from vmtool.report.replay_page import compare_page

        return compare_page(rows, command=command_line(), complete=complete)

    output.save(options["html"], page)
    output.save(options["csv"], lambda: compare_csv(rows))
    if complete:
        return ExitCode.DONE
    output.notice(f"interrupted after {len(rows)} rows; everything is released")
    return ExitCode.INTERRUPTED


def _combinations(
    options: Mapping[str, Any], axes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield the labels and the options of each row; every value is read before the first."""
    read = {axis: [_read(axis, value) for value in found] for axis, found in axes.items()}
    for chosen in itertools.product(*(range(len(found)) for found in axes.values())):
        places = dict(zip(axes, chosen, strict=True))
        labels = {axis: axes[axis][at] for axis, at in places.items()}
        changed = {axis.replace("-", "_"): read[axis][at] for axis, at in places.items()}
        if "dtype" in changed:
            changed |= {"dtype_k": None, "dtype_v": None}
        yield labels, {**options, **changed}


def _read(axis: str, value: str) -> Any:
    try:
        found = _READERS[axis](value)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"--compare {axis}: {error}") from None
    if axis == "block" and not found:
        raise UsageError("--compare block: a block has at least one token")
    return found


@click.command("kv-replay", cls=Command)
@replay_options
@output_options
def command(*, as_json: bool, path: str, quiet: bool, **options: Any) -> int:
    """Replay a trace of requests as sequences that grow token by token, and account every byte.

    \b
    vmtool kv-replay synthetic:requests=500 --model llama-3.1-8b --budget 8GiB
    vmtool kv-replay synthetic:requests=9 --model qwen3-0.6b --backing host

    TRACE is a file: Azure LLM inference CSV, Mooncake JSON lines, BurstGPT CSV, or JSON lines with
    prompt_len and output_len; or synthetic:NAME=VALUE,... with requests, rate, prompt, output,
    spread, longest, prefixes and prefix. A prompt is committed at admission, then each decode step
    adds a token. Time is simulated; with --backing the memory is real.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.interrupt import watch_signals
    from vmtool.cli.kv_question import load_model
    from vmtool.cli.kv_replay_plan import (
        choose_budget,
        open_chosen,
        open_safely,
        read_rules,
        read_trace,
    )
    from vmtool.cli.progress import progress_line
    from vmtool.replay.run import run_replay

    output = Output(as_json, path, quiet)
    name, axes = _split(options["trace"], options["compare"])
    keep_inputs(name, options["model"])
    trace = read_trace(options, name)
    model = load_model({**options, "compare": ()})
    backing = open_chosen(options)
    budget = choose_budget(options, backing)
    granule = None if backing is None else backing.granularity
    with watch_signals() as interruption, progress_line(quiet=quiet) as show:

        def stop() -> bool:
            show(lambda: f"{trace.reading.requests:,} requests")
            return interruption.requested

        def once(changed: Mapping[str, Any]) -> ReplayResult:
            rules = read_rules(changed, model, budget, granule)
            replay = partial(
                run_replay,
                trace,
                rules.plan,
                rules.settings,
                find_budget=changed["find_budget"],
                stop=stop,
            )
            if backing is None:
                return replay()
            with open_safely(backing, rules.plan, touch=changed["touch"]) as memory:
                return replay(memory=memory)

        if not axes:
            result = once(options)
        else:
            rows, complete = replay_rows(options, replay_axes(axes), once)
    if axes:
        return answer_compare(rows, options, output, complete=complete)
    return _answer(result, options, output)


def _split(arguments: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the trace and the axes of the comparison, of which some may stand as arguments."""
    more = tuple(text for text in arguments if axes and is_axis(text))
    names = [text for text in arguments if text not in more]
    if len(names) != 1:
        raise UsageError(
            "no TRACE" if not names else f"more than one TRACE: {', '.join(names)}",
            hint="give a file, or synthetic:requests=1000,rate=5",
        )
    return names[0], axes + more


def _answer(result: ReplayResult, options: dict[str, Any], output: Output) -> int:
    from vmtool.report.replay import to_document, to_text

    output.emit(
        lambda: to_document(result, command_line()), lambda console: to_text(result, console)
    )

    def page() -> str:
        from vmtool.report.replay_page import replay_page

        return replay_page(result, command=command_line())

    def table() -> str:
        from vmtool.report.replay import timeline_csv

        return timeline_csv(result)

    output.save(options["html"], page)
    output.save(options["csv"], table)
    if result.complete:
        return ExitCode.DONE
    output.notice("interrupted; everything is released, the result is partial")
    return ExitCode.INTERRUPTED
