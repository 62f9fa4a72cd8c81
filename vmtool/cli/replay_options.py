"""The options of ``vmtool kv-replay``, in the groups that its help shows them in."""

from __future__ import annotations

from typing import Final

import click

from vmtool.cli.kv_options import BLOCK, IN_FLIGHT, MODEL_OPTIONS, POLICY, RESERVE
from vmtool.cli.params import COUNT, SIZE, SIZE_OR_ZERO, csv_option, html_option, option_group

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
