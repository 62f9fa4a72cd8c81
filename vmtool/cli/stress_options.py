"""The options of ``vmtool stress``, and those that ``matrix``, ``limits`` and ``guards`` share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.options import (
    COUNT,
    DURATION,
    FILE,
    SIZE,
    SIZE_OR_ZERO,
    csv_option,
    host_option,
    html_option,
    huge_option,
    into_dataclass,
    node_option,
    option_group,
)

if TYPE_CHECKING:
    from vmtool.results.stress import StressSettings

PATTERNS: Final = ("tail", "random", "hole-punch", "sawtooth", "block-grow-partial-shrink")
#: Checks that ``--require`` can name.
REQUIRED: Final = ("leaks", "counters", "contents")


@dataclass(frozen=True, slots=True)
class StressControl:
    """What is asked of a run besides the work itself.

    Attributes:
        soak_ns: Run for so long, in one run; ``None``: *settings* say how long.
        assertions: Conditions that the result must meet.
        strict: Whether a condition that is not proven has failed.
        require: Checks that must have been done.
        hang_ns: A worker that does not move for this long is killed.
        force: Run although the preflight says that it is not safe.
        name_host: Whether the machine's name goes into the result.
        explain: Show distributions, each check, and the machine.
        html: A file for a page.
        csv: A file for the numbers.
        metrics: A file for OpenMetrics text.
    """

    soak_ns: int | None = None
    assertions: tuple[str, ...] = ()
    strict: bool = False
    require: tuple[str, ...] = ()
    hang_ns: int = 30 * 10**9
    force: bool = False
    name_host: bool = True
    explain: bool = False
    html: str | None = None
    csv: str | None = None
    metrics: str | None = None


def _one_name(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value == "":
        raise click.BadParameter("a method's name is empty")
    return () if value is None else (value,)


def _or_zero(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int:
    return value or 0


def _or_empty(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    return value or ""


def _draw(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int:
    return int.from_bytes(os.urandom(4), "big") if value is None else value


_CAPACITY: Final = click.option(
    "--capacity",
    "capacity_bytes",
    type=SIZE,
    default=0,
    metavar="SIZE",
    help="Reserve SIZE for each thread.  [default: 256MiB]",
)
_BUDGET: Final = click.option(
    "--budget",
    "budget_bytes",
    type=SIZE,
    default=0,
    metavar="SIZE",
    help=(
        "Commit at most SIZE in total.  [default: what is reserved, but at most half of what is "
        "safe]"
    ),
)
_GRANULE: Final = click.option(
    "--granule",
    "granule_bytes",
    type=SIZE,
    default=0,
    metavar="SIZE",
    help="The unit of commits.  [default: 2MiB]",
)
#: ``--method``: one commit method, or all of them.
method_option: Final = click.option(
    "--method",
    "methods",
    callback=_one_name,
    metavar="NAME",
    help="How to commit: fixed, protect or advise (view, private or decommit on Windows), or all, "
    "which alternates between them and recommends one; on a device cold (each handle is "
    "created and released) or pooled (handles are kept).  [default: the first, or all where "
    "methods are compared]",
)
_RETAIN: Final = click.option(
    "--retain",
    "retain_bytes",
    type=SIZE_OR_ZERO,
    metavar="SIZE",
    help="The most unmapped memory that a pool keeps.  [default: everything]",
)
_CLEAR: Final = click.option(
    "--clear/--no-clear",
    default=True,
    help="Clear pool memory when it is mapped; engines write before they read.  [default: clear]",
)
_PREFAULT: Final = click.option("--prefault", is_flag=True, help="Fault every page in at commit.")
_PATTERN: Final = click.option(
    "--pattern",
    type=click.Choice(PATTERNS),
    default="tail",
    show_default=True,
    help="The order of commits and releases.",
)
_THREADS: Final = click.option(
    "--threads",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Threads in each worker.",
)
_WORKERS: Final = click.option(
    "--workers", type=int, default=1, show_default=True, metavar="N", help="Processes."
)
_TOUCH: Final = click.option(
    "--touch",
    type=click.Choice(("none", "first", "full")),
    default="full",
    show_default=True,
    help="Write nothing, a few bytes of each 4 KiB, or everything.",
)
_HOLD: Final = click.option(
    "--hold", is_flag=True, help="Commit and touch the whole budget once, and check it."
)
_SEED: Final = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    callback=_draw,
    metavar="N",
    help="Repeat the run with this seed.  [default: random, and printed]",
)
_CYCLES: Final = click.option(
    "--cycles",
    type=COUNT,
    metavar="N",
    help="Commits per method and thread, over all runs together.",
)
_RUNS: Final = click.option(
    "--runs",
    type=click.IntRange(1, 100),
    callback=_or_zero,
    metavar="N",
    help="Repeat the plan in N fresh processes, which share the cycles and the time.  [default: 5, "
    "or 1 with --soak or --inject]",
)
_SOAK: Final = click.option(
    "--soak",
    "soak_ns",
    type=DURATION,
    metavar="TIME",
    help="Make one run of TIME, such as 1h, to find leaks; a longer run takes no more memory.",
)
_LABEL: Final = click.option(
    "--label", metavar="TEXT", help="A label for this result, such as before-upgrade."
)
_VERIFY: Final = click.option(
    "--verify",
    type=click.Choice(("off", "sample", "full")),
    callback=_or_empty,
    help="Check nothing, two pieces of 4 KiB of each granule, or every byte.  [default: sample; off "
    "with --touch none]",
)
_INJECT: Final = click.option(
    "--inject",
    multiple=True,
    metavar="CALL:N[+][=EFFECT]",
    help="Make the Nth call fail with an errno, do nothing (SKIP), never return (HANG) or send the "
    "worker a signal; N+ means the Nth and all later ones. Can be given several times.",
)
_ASSERT: Final = click.option(
    "--assert",
    "assertions",
    multiple=True,
    metavar="CONDITION",
    help="Exit 3 when the runs show that the condition, such as commit.p99<5ms, does not hold. "
    "Can be given several times; needs 4 runs.",
)
_STRICT: Final = click.option(
    "--strict", is_flag=True, help="Exit 3 also if an --assert is not proven."
)
_REQUIRE: Final = click.option(
    "--require",
    type=click.Choice(REQUIRED),
    multiple=True,
    help="Exit 3 unless these checks were done. Can be given several times.",
)
hang_option: Final = click.option(
    "--hang-timeout",
    "hang_ns",
    type=DURATION,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Kill a worker that makes no progress for TIME.",
)
_FORCE: Final = click.option(
    "--force", is_flag=True, help="Run even if the preflight finds the plan unsafe."
)
_EXPLAIN: Final = click.option(
    "--explain", is_flag=True, help="Also print distributions, each check and the warnings."
)


def duration_option(default: str) -> Any:
    """Return ``--duration`` with the command's own *default* in its help."""
    return click.option(
        "--duration",
        "duration_ns",
        type=DURATION,
        metavar="TIME",
        help=f"Run for TIME in total.  [default: {default}]",
    )


def _settings_type() -> type[StressSettings]:
    from vmtool.results.stress import StressSettings

    return StressSettings


_MEMORY: Final = "What to measure"
_TIME: Final = "How long"
_CHECKS: Final = "Checks"
_OUTPUT: Final = "Output"
#: Options of the memory and the work: the command gets them as ``settings``.
stress_settings: Final = option_group(
    option_group(
        *(method_option, _GRANULE, _PATTERN, _CAPACITY, _BUDGET, _TOUCH),
        *(huge_option, node_option, _PREFAULT, _THREADS, _WORKERS, _RETAIN, _CLEAR, _SEED),
        heading=_MEMORY,
    ),
    option_group(_RUNS, duration_option("3s"), _CYCLES, heading=_TIME),
    option_group(_VERIFY, _HOLD, _INJECT, heading=_CHECKS),
    option_group(_LABEL, heading=_OUTPUT),
)
#: Those that a matrix shares.
matrix_settings: Final = option_group(
    option_group(
        *(method_option, _CAPACITY, _TOUCH, huge_option, node_option, _PREFAULT),
        *(_THREADS, _WORKERS, _RETAIN, _CLEAR, _SEED),
        heading=_MEMORY,
    ),
    option_group(duration_option("15s"), heading=_TIME),
    option_group(_VERIFY, _INJECT, hang_option, heading=_CHECKS),
    option_group(_LABEL, heading=_OUTPUT),
)
#: The rest of ``stress``: the command gets it as ``control``.
stress_control: Final = option_group(
    option_group(_SOAK, heading=_TIME),
    option_group(_ASSERT, _STRICT, _REQUIRE, hang_option, _FORCE, heading=_CHECKS),
    option_group(_EXPLAIN, host_option, heading=_OUTPUT),
    html_option,
    csv_option("percentiles, histograms and the counters over time as a table"),
    option_group(
        click.option(
            "--metrics",
            type=FILE,
            metavar="FILE",
            help="Also write the medians, rates and checks as OpenMetrics text.",
        ),
        heading=_OUTPUT,
    ),
)
#: Gathers what is left of click's parameters into ``settings`` and ``control``.
into_settings: Final = into_dataclass("settings", _settings_type, chunk_bytes="chunk")
into_control: Final = into_dataclass("control", lambda: StressControl)
