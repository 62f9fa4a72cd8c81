"""``vmtool kv-estimate --as ENGINE``: what an engine would log for the same memory."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from vmtool.cli.output import Output, command_line
from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.cli.kv_question import Asked

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
    from vmtool.report.columns import paragraph

    def document() -> dict[str, Any]:
        from vmtool.report.document import document

        name = "vmtool.kv-estimate.engine"
        return document(name, 1, command=command_line(), body={"engine": engine.lower(), **body})

    # Log lines are what the user compares, so they are never wrapped.
    output.emit_lines(
        document,
        lambda width: [
            piece
            for line in lines
            for piece in ([line] if line.startswith("  ") else paragraph(line, width))
        ],
    )


def _vllm(asked: Asked) -> tuple[dict[str, Any], list[str]]:
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.estimate import PREFILL_TOKENS
    from vmtool.kv.vllm import Settings, log_lines, stored_formats, vllm_pool
    from vmtool.report.kv import both, count_of, formats_text

    question = asked.question()
    formats = stored_formats(question.geometry, question.formats)
    settings = Settings(
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
    from vmtool.kv.sglang import log_lines, sglang_pool
    from vmtool.report.kv import both, count_of, formats_text

    question = asked.question()
    # SGLang's own page is one token, where nobody says another size.
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
    from vmtool.kv.llamacpp import Settings, llamacpp_buffers, log_line
    from vmtool.report.kv import both

    question = asked.question()
    settings = Settings(
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
