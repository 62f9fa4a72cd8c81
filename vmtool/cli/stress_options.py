"""The options of ``vmtool stress``, in the groups that its help shows them in."""

from __future__ import annotations

from typing import Final

import click

from vmtool.cli.options import (
    COUNT,
    DURATION,
    SIZE,
    SIZE_OR_ZERO,
    csv_option,
    html_option,
    option_group,
)

PATTERNS: Final = ("tail", "random", "hole-punch", "sawtooth", "block-grow-partial-shrink")


_MEMORY: Final = (
    click.option(
        "--capacity",
        type=SIZE,
        metavar="SIZE",
        help="Reserve SIZE for each thread.  [default: 256MiB]",
    ),
    click.option(
        "--budget",
        type=SIZE,
        metavar="SIZE",
        help="Commit at most SIZE in all.  [default: what is reserved, if half of it is safe]",
    ),
    click.option(
        "--granule", type=SIZE, metavar="SIZE", help="The unit of commits.  [default: 2MiB]"
    ),
    click.option(
        "--method",
        metavar="NAME",
        help="How to commit: fixed, protect or advise (view, private or decommit on Windows), or "
        "all, which alternates between them and recommends one; on a device cold (each handle is "
        "created and released) or pooled (handles are kept).  [default: the first]",
    ),
    click.option(
        "--retain",
        type=SIZE_OR_ZERO,
        metavar="SIZE",
        help="What a pool keeps unmapped at most.  [default: everything]",
    ),
    click.option("--huge", is_flag=True, help="Ask for transparent huge pages."),
    click.option("--prefault", is_flag=True, help="Fault every page in at commit."),
)

_WORK: Final = (
    click.option(
        "--pattern",
        type=click.Choice(PATTERNS),
        default="tail",
        show_default=True,
        help="The order of commits and releases.",
    ),
    click.option("--cycles", type=COUNT, metavar="N", help="Commits per method and thread."),
    click.option("--duration", type=DURATION, metavar="TIME", help="Run for TIME.  [default: 3s]"),
    click.option(
        "--soak",
        type=DURATION,
        metavar="TIME",
        help="Run for TIME, such as 1h, to find leaks; memory use stays the same.",
    ),
    click.option(
        "--threads",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Threads in each worker.",
    ),
    click.option(
        "--workers", type=int, default=1, show_default=True, metavar="N", help="Processes."
    ),
    click.option(
        "--touch",
        type=click.Choice(("none", "first", "full")),
        default="full",
        show_default=True,
        help="Write nothing, a few bytes of each 4 KiB, or everything.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        metavar="N",
        help="Repeat the run with this seed.  [default: drawn, and printed]",
    ),
)

_CHECKS: Final = (
    click.option(
        "--verify",
        type=click.Choice(("off", "sample", "full")),
        help="Check two pieces of each granule, or every byte.  [default: sample, if touched]",
    ),
    click.option(
        "--assert",
        "assertions",
        multiple=True,
        metavar="CONDITION",
        help="Exit 3 unless it holds, such as commit.p99<5ms. Can be given several times.",
    ),
    click.option(
        "--inject",
        multiple=True,
        metavar="CALL:N[=WHAT]",
        help="Make the Nth call fail with an errno, do nothing (SKIP), get a signal or HANG; "
        "N+ means from there on. Can be given several times.",
    ),
    click.option(
        "--hang-timeout",
        type=DURATION,
        default="30s",
        show_default=True,
        metavar="TIME",
        help="Kill a worker that does not move for TIME.",
    ),
    click.option("--force", is_flag=True, help="Run although the preflight says it is not safe."),
)

_FILES: Final = (
    html_option,
    csv_option("percentiles, histograms and the ledgers over time as a table"),
)

_MODES: Final = (
    click.option(
        "--matrix", is_flag=True, help="Run every pattern with every method and granule, briefly."
    ),
    click.option(
        "--find-ceiling",
        "ceiling",
        type=click.Choice(("reserve", "commit", "mappings")),
        help="Search how far that can go, with a new process for each try.",
    ),
    click.option(
        "--prove-faults",
        is_flag=True,
        help="Show in child processes that memory which is not committed faults.",
    ),
)

#: Every option of the command but those that other commands share.
stress_options: Final = option_group(*_MEMORY, *_WORK, *_CHECKS, *_FILES, *_MODES)
