"""The options of ``vmtool kv-estimate``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.kv_question import load_model, read_granule
from vmtool.cli.options import (
    COUNT,
    FILE_OR_STDOUT,
    SIZE,
    SIZE_OR_ZERO,
    Command,
    keep_inputs,
    option_group,
    output_options,
    read_axes,
)
from vmtool.cli.output import (
    Output,
    command_line,
)
from vmtool.errors import UsageError
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.cli.kv_question import Asked
    from vmtool.kv.estimate import Question
    from vmtool.report.kv_table import Row

#: Which model, in which format, on which rank: of every command about a model's KV cache.
MODEL_OPTIONS: Final = (
    click.option(
        "--hub", metavar="OWNER/NAME", help="Fetch config.json from the Hugging Face hub."
    ),
    click.option("--layers", type=COUNT, help="Layers; overrides that of MODEL."),
    click.option("--kv-heads", type=COUNT, help="KV heads of a layer."),
    click.option("--head-dim", type=COUNT, help="Elements of a head of K (and of V)."),
    click.option("--head-dim-v", type=COUNT, help="Elements of a head of V."),
    click.option("--dtype", help="Element format of K and V: bf16, fp8, int8, q8_0, nvfp4, ..."),
    click.option("--dtype-k", help="Element format of K (and of MLA's latent)."),
    click.option("--dtype-v", help="Element format of V."),
    click.option("--tp", type=COUNT, default=1, help="Ranks that divide the heads."),
    click.option("--pp", type=COUNT, default=1, help="Stages that divide the layers."),
    click.option("--dcp", type=COUNT, default=1, help="Ranks that divide the tokens."),
)

#: How a budget becomes tokens: of every command that packs sequences.
RESERVE: Final = click.option("--reserve", type=SIZE_OR_ZERO, default=0, help="Also subtract SIZE.")
_IN_FLIGHT_HELP: Final = (
    "Tokens that one step may add before a sliding window drops old ones; by default 0, as while"
    " decoding"
)
IN_FLIGHT: Final = click.option(
    "--in-flight", type=COUNT, metavar="TOKENS", help=f"{_IN_FLIGHT_HELP}."
)
POLICY: Final = click.option(
    "--policy",
    default="per-tensor",
    show_default=True,
    metavar="NAME",
    help="Packing: per-tensor, kv-merged, token-major, head-major, paged, floor-per-page or"
    " straddle-loses.",
)
BLOCK: Final = click.option(
    "--block", type=COUNT, default=16, show_default=True, help="Tokens in a block."
)

#: Every option of the command but those that other commands share.
estimate_options: Final = option_group(
    click.argument("model", required=False),
    click.option("--list", "list_models", is_flag=True, help="List the built-in models."),
    *MODEL_OPTIONS,
    click.option(
        "--budget",
        default="auto",
        show_default=True,
        metavar="SIZE",
        help="Memory of one rank: a size, auto (what this machine has available), 75% of that, or"
        " cuda:0 (what is free there).",
    ),
    click.option(
        "--weights",
        metavar="SIZE|FILE",
        help="Subtract the weights: a size, or their file, divided evenly among the ranks.",
    ),
    RESERVE,
    click.option("--context", type=COUNT, help="Tokens of a sequence; the model's own by default."),
    click.option(
        "--sequences",
        type=COUNT,
        default=1,
        help="Find the longest length of COUNT sequences at once.",
    ),
    click.option(
        "--in-flight",
        type=COUNT,
        metavar="TOKENS",
        help=f"{_IN_FLIGHT_HELP}, but 8192 with --as vllm and 512 with --as llama.cpp.",
    ),
    click.option(
        "--granule",
        "granules",
        type=SIZE,
        multiple=True,
        help="Granule of packing, 2MiB by default; more are added to the table.",
    ),
    POLICY,
    BLOCK,
    click.option(
        "--waste",
        default="10%",
        show_default=True,
        metavar="PERCENT",
        help="Find the length from which less than this is wasted.",
    ),
    click.option("--explain", is_flag=True, help="Say where each value of the model came from."),
    click.option(
        "--compare",
        multiple=True,
        metavar="AXIS=A,B",
        help="Compare model, dtype, granule or policy in one table; may be repeated.",
    ),
    click.option(
        "--sweep",
        metavar="context=A..B",
        help="Show the cost from A to B tokens: doubling, or A..B:STEP.",
    ),
    click.option(
        "--csv",
        type=FILE_OR_STDOUT,
        metavar="FILE",
        help="Write the table of --compare or --sweep as CSV; - writes CSV to stdout instead of the table.",
    ),
    click.option(
        "--as",
        "engine",
        metavar="ENGINE",
        help="Print what vllm, llama.cpp or sglang would log for the same pool.",
    ),
    click.option(
        "--state-blocks",
        default="none",
        metavar="MODE",
        help="vLLM's mamba_cache_mode for --as vllm: none, or with prefix caching align or all.",
    ),
    click.option(
        "--unified",
        is_flag=True,
        help="For --as llama.cpp: all sequences share one buffer of --context tokens.",
    ),
)


_LLAMACPP_IN_FLIGHT: Final = 512


def answer_as(asked: Asked, engine: str, output: Output) -> None:
    """Print what *engine* would log.

    Raises:
        UsageError: If the engine is unknown, or could not serve the model so.
    """
    engines: dict[str, Callable[[Asked], tuple[dict[str, Any], list[str]]]] = {
        "vllm": _vllm,
        "llama.cpp": _llamacpp,
        "sglang": _sglang,
    }
    if engine.lower() not in engines:
        # Not so close that one engine is taken for another: trtllm is no vllm.
        close = get_close_matches(engine.lower(), engines, n=1, cutoff=0.85)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"unknown engine {engine[:40]!r}", hint=f"{meant}use one of {', '.join(engines)}"
        )
    body, lines = engines[engine.lower()](asked)
    from vmtool.report.table import paragraph, show, verbatim

    def document() -> dict[str, Any]:
        from vmtool.report.document import document

        name = "vmtool.kv-estimate.engine"
        return document(name, 1, command=command_line(), body={"engine": engine.lower(), **body})

    # Log lines are what the user compares, so they are never wrapped.
    output.emit(
        document,
        lambda console: show(
            console,
            (verbatim(line) if line.startswith("  ") else paragraph(line) for line in lines),
        ),
    )


def _vllm(asked: Asked) -> tuple[dict[str, Any], list[str]]:
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.engines.vllm import (
        VllmSettings,
        log_lines,
        stored_formats,
        vllm_pool,
    )
    from vmtool.kv.estimate import PREFILL_TOKENS
    from vmtool.report.kv import both, count_of, formats_text

    question = asked.question()
    formats = stored_formats(question.geometry, question.formats)
    settings = VllmSettings(
        max_model_len=question.length,
        block=question.block,
        in_flight=question.in_flight or PREFILL_TOKENS,
        state_mode=asked.options["state_blocks"],
    )
    cost = SequenceCost.of(question.geometry, formats)
    pool = vllm_pool(cost, question.budget.kv_bytes, settings)
    setting = (
        f"{question.geometry.name} in vLLM, {formats_text(question)}, with"
        f" {both(question.budget.kv_bytes)} of KV memory on each rank,"
        f" max_model_len {settings.max_model_len:,},"
        f" {settings.in_flight:,} tokens in flight:"
    )
    blocks = (
        f"{count_of(pool.num_blocks, 'block')} of {count_of(pool.block_tokens, 'token')} in"
        f" {count_of(pool.groups, 'group')} of {count_of(pool.group_layers, 'layer')};"
        f" {count_of(pool.blocks_per_request, 'block')} a request"
    )
    text = [setting, blocks]
    if formats != question.formats:
        plain = vllm_pool(
            SequenceCost.of(question.geometry, question.formats), question.budget.kv_bytes, settings
        )
        asked_for = question.formats.key.name
        text.append(
            f"{asked_for} is kept as {formats.key.name}, as FLASHMLA_SPARSE wants it; with"
            f" FLASHINFER_MLA_SPARSE, the first choice on Blackwell since pull request 37252, it"
            f" stays {asked_for}: {count_of(plain.tokens_newer, 'token')}"
        )
    if pool.aligned_block_tokens is not None:
        text.append(
            f"blocks have {pool.aligned_block_tokens:,} tokens so that one is as large as a state;"
            f" each state page is padded by {pool.state_padding_bytes:,} B"
        )
    if pool.padding_layers:
        text.append(f"groups are filled up with {count_of(pool.padding_layers, 'padding layer')}")
    logged = log_lines(pool, settings)
    for versions, lines in logged.items():
        text += [f"vLLM {versions}:", *(f"  {line}" for line in lines)]
    if pool.concurrency < 1:
        text.append("vLLM refuses to start: the memory does not hold one request of that length.")
    body = {
        "format_k": formats.key.name,
        "num_blocks": pool.num_blocks,
        "block_tokens": pool.block_tokens,
        "page_bytes": pool.page_bytes or None,
        "groups": pool.groups,
        "group_layers": pool.group_layers,
        "padding_layers": pool.padding_layers,
        "blocks_per_request": pool.blocks_per_request,
        "state_padding_bytes": pool.state_padding_bytes,
        "max_model_len_tokens": settings.max_model_len,
        "tokens_older": pool.tokens_older,
        "tokens_newer": pool.tokens_newer,
        "log_lines": logged,
    }
    return body, text


def _sglang(asked: Asked) -> tuple[dict[str, Any], list[str]]:
    import click
    from click.core import ParameterSource

    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.engines.sglang import log_lines, sglang_pool
    from vmtool.report.kv import both, count_of, formats_text

    question = asked.question()
    # SGLang's own page is one token, by default.
    source = click.get_current_context().get_parameter_source("block")
    page = 1 if source is ParameterSource.DEFAULT else question.block
    cost = SequenceCost.of(question.geometry, question.formats)
    pool = sglang_pool(cost, question.formats, question.budget.kv_bytes, page)
    setting = (
        f"{question.geometry.name} in SGLang, {formats_text(question)}, with"
        f" {both(question.budget.kv_bytes)} of KV memory on each rank, pages of"
        f" {count_of(page, 'token')} (--block), {both(pool.token_bytes)} a token:"
    )
    text = [setting]
    logged = log_lines(pool)
    for versions, lines in logged.items():
        text += [f"SGLang, {versions} versions:", *(f"  {line}" for line in lines)]
    if not pool.max_total_num_tokens:
        text.append("SGLang refuses to start: the memory does not hold one page.")
    body = {
        "page_tokens": pool.page_tokens,
        "token_bytes": pool.token_bytes,
        "max_total_num_tokens": pool.max_total_num_tokens,
        "key_bytes": pool.key_bytes,
        "value_bytes": pool.value_bytes,
        "log_lines": logged,
    }
    return body, text


def _llamacpp(asked: Asked) -> tuple[dict[str, Any], list[str]]:
    from vmtool.kv.engines.llamacpp import LlamaCppSettings, llamacpp_buffers, log_line
    from vmtool.report.kv import both

    question = asked.question()
    settings = LlamaCppSettings(
        context=question.length,
        sequences=question.sequences,
        ubatch=question.in_flight or _LLAMACPP_IN_FLIGHT,
        unified=asked.options["unified"],
    )
    buffers = llamacpp_buffers(question.geometry, question.formats, settings)
    total = sum(buffer.nbytes for buffer in buffers)
    logged = [log_line(buffer, settings) for buffer in buffers]
    spare = question.budget.kv_bytes - total
    setting = (
        f"{question.geometry.name} in llama.cpp (after pull requests 16812 and 19067),"
        f" -c {settings.total_context} -np {settings.sequences} -ub {settings.ubatch}"
        f"{' --kv-unified' if settings.unified else ''}:"
    )
    rest = f"{both(spare)} of the budget are left" if spare >= 0 else f"{both(-spare)} too much"
    text = [setting, *(f"  {line}" for line in logged), f"together {both(total)}; {rest}"]
    body = {
        "context_tokens": settings.context,
        "sequences": settings.sequences,
        "unified": settings.unified,
        "total_bytes": total,
        "buffers": buffers,
        "log_lines": logged,
    }
    return body, text


_AXES: Final = ("model", "dtype", "granule", "policy")
#: More rows than this are no table that anyone reads.
_MOST_ROWS: Final = 1000


def answer_compare(asked: Asked, axes: Sequence[str], csv: str | None, output: Output) -> None:
    """Print one table of every combination of the axes, such as ``dtype=bf16,q8_0``.

    Raises:
        UsageError: If an axis or a value on it is unknown.
    """
    from vmtool.kv.estimate import Estimate
    from vmtool.report.kv_table import Row, compare_body, compare_text

    named = asked.options["model"]
    values = read_axes(axes, _AXES, _MOST_ROWS, first={"model": [named] if named else []})
    rows = []
    for combination in itertools.product(*values.values()):
        labels = dict(zip(values, combination, strict=True))
        question = _question(asked, labels)
        try:
            rows.append(Row.of(labels, Estimate(question)))
        except UsageError as error:
            # What one combination cannot do is a result; a name that is unknown is not.
            rows.append(Row.impossible(labels, question, str(error)))
    if _wrote_csv_only(csv, rows, output):
        return
    output.emit(
        lambda: _document("compare", compare_body(rows)),
        lambda console: compare_text(rows, console),
    )


def answer_sweep(asked: Asked, sweep: str, csv: str | None, output: Output) -> None:
    """Print one table, and a plot, of sequences of many lengths, such as ``context=1k..128k``.

    Raises:
        UsageError: If *sweep* is not of that form.
    """
    from vmtool.kv.estimate import Estimate
    from vmtool.report.kv_table import Row, sweep_body, sweep_text

    lengths = read_sweep(sweep)
    # A layout with a stride has room for the longest sequence of the sweep.
    question = replace(asked.question(), stride=max(lengths))
    rows = [
        Row.of({"context": f"{length}"}, Estimate(replace(question, context=length)))
        for length in lengths
    ]
    if _wrote_csv_only(csv, rows, output):
        return
    output.emit(
        lambda: _document("sweep", sweep_body(rows)),
        lambda console: sweep_text(rows, console),
    )


def read_sweep(text: str) -> list[int]:
    """Return the lengths that *text* means: ``context=1k..128k`` doubles, ``...:8k`` steps.

    Raises:
        UsageError: If it is not of that form.
    """
    axis, _, span = text.partition("=")
    low_text, dots, rest = span.partition("..")
    high_text, colon, step_text = rest.partition(":")
    if axis != "context" or not dots:
        raise UsageError(f"--sweep {text!r}: write context=1k..128k or context=8k..64k:8k")
    try:
        low, high = parse_count(low_text), parse_count(high_text)
        step = parse_count(step_text) if colon else 0
    except ValueError as error:
        raise UsageError(f"--sweep {text!r}: {error}") from None
    if not 0 < low <= high < 1 << 48 or (colon and not step):
        raise UsageError(f"--sweep {text!r}: it must rise from 1 or more to fewer than 2^48 tokens")
    if not step:
        lengths = [low << i for i in range((high // low).bit_length())]
        return lengths if lengths[-1] == high else [*lengths, high]
    if (high - low) // step >= _MOST_ROWS:
        raise UsageError(f"--sweep {text!r}: more than {_MOST_ROWS} rows")
    return [*range(low, high, step), high]


def _question(asked: Asked, labels: dict[str, str]) -> Question:
    changes: dict[str, Any] = dict(labels)
    if "model" in labels:
        changes["model"] = load_model({**asked.options, "model": labels["model"], "hub": None})
    if "granule" in labels:
        changes["granule"] = read_granule(labels["granule"])
    return asked.question(**changes)


def _wrote_csv_only(path: str | None, rows: list[Row], output: Output) -> bool:
    """Write the requested CSV, and return whether it took the place of the result."""
    from io import StringIO

    from vmtool.report.kv_table import write_csv

    def table() -> str:
        file = StringIO()
        write_csv(rows, file)
        return file.getvalue()

    output.save(path, table)
    return path == "-"


def _document(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    from vmtool.report.document import document

    return document(f"vmtool.kv-estimate.{kind}", 1, command=command_line(), body=body)


@click.command("kv-estimate", cls=Command)
@estimate_options
@output_options
def command(as_json: bool, path: str, quiet: bool, **options: Any) -> None:
    """Say how many tokens of a model fit into memory, exactly, and what granules change.

    \b
    vmtool kv-estimate llama-3.1-8b --budget 16GiB
    vmtool kv-estimate qwen3-8b --budget 8GiB --compare dtype=bf16,q8_0

    MODEL is a built-in name (--list), a config.json or a folder with one, a GGUF file, a
    genai_config.json, an ONNX model, or nothing with --layers, --kv-heads and --head-dim.
    """  # noqa: D301 - click's own mark
    from vmtool.cli.kv_question import asked

    output = Output(as_json, path, quiet)
    if options["csv"] == "-" and (as_json or path != "-"):
        raise UsageError("--csv - is the whole result: it goes with neither --json nor --output")
    if options["list_models"]:
        _list(output)
        return
    keep_inputs(options["model"])
    output.announce((options["budget"] or "").strip().lower())
    question = asked(options)
    if options["engine"]:
        answer_as(question, options["engine"], output)
    elif options["compare"]:
        answer_compare(question, options["compare"], options["csv"], output)
    elif options["sweep"]:
        answer_sweep(question, options["sweep"], options["csv"], output)
    else:
        _answer(question, output, explain=options["explain"])


def _answer(question: Asked, output: Output, *, explain: bool) -> None:
    from vmtool.kv.estimate import Estimate
    from vmtool.report.kv import to_text

    estimate = Estimate(question.question())
    estimate.policy(estimate.question.policy)  # what cannot be is refused before a file is opened

    def document() -> dict[str, Any]:
        from vmtool.cli.kv_question import GIVEN
        from vmtool.machine import read_facts
        from vmtool.report.kv import to_body

        machine = None if question.budget.origin == GIVEN else read_facts()
        return _document_kv_estimate({"machine": machine, **to_body(estimate, explain=explain)})

    output.emit(
        document,
        lambda console: to_text(estimate, console, explain=explain),
    )


def _list(output: Output) -> None:
    from vmtool.kv.sources import builtin_names
    from vmtool.report.table import show

    names = builtin_names()
    output.emit(
        lambda: _document_kv_estimate({"models": names}), lambda console: show(console, names)
    )


def _document_kv_estimate(body: dict[str, Any]) -> dict[str, Any]:
    from vmtool.report.document import document

    return document("vmtool.kv-estimate", 1, command=command_line(), body=body)
