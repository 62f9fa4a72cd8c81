"""``vmtool kv-estimate --as ENGINE``: what an engine would log for the same memory."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from vmtool.cli.output import Output, command_line
from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.cli.kv_question import Asked

_VLLM_IN_FLIGHT: Final = 8192
_LLAMACPP_IN_FLIGHT: Final = 512


def answer_as(asked: Asked, engine: str, output: Output) -> None:
    """Print what *engine* would log.

    Raises:
        UsageError: If the engine is unknown, or could not serve the model so.
    """
    engines: dict[str, Callable[[Asked], tuple[dict[str, Any], list[str]]]] = {
        "vllm": _vllm,
        "llama.cpp": _llamacpp,
    }
    if engine.lower() not in engines:
        close = get_close_matches(engine.lower(), engines, n=1)
        raise UsageError(
            f"unknown engine {engine[:40]!r}",
            hint=f"did you mean {close[0]}?" if close else f"use {' or '.join(engines)}",
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
    from vmtool.kv.vllm import Settings, log_lines, vllm_pool
    from vmtool.report.kv import both, formats_text

    question = asked.question()
    settings = Settings(
        max_model_len=question.length,
        block=question.block,
        in_flight=question.in_flight or _VLLM_IN_FLIGHT,
        state_mode=asked.options["state_blocks"],
    )
    pool = vllm_pool(
        SequenceCost.of(question.geometry, question.formats), question.budget.kv_bytes, settings
    )
    setting = (
        f"{question.geometry.name} in vLLM, {formats_text(question)}, with"
        f" {both(question.budget.kv_bytes)} of KV memory on each rank,"
        f" max_model_len {settings.max_model_len:,},"
        f" {settings.in_flight:,} tokens in flight:"
    )
    blocks = (
        f"{pool.num_blocks:,} blocks of {pool.block_tokens:,} tokens in {pool.groups} group(s) of"
        f" {pool.group_layers} layers; {pool.blocks_per_request:,} blocks a request"
    )
    text = [setting, blocks]
    if pool.aligned_block_tokens is not None:
        text.append(
            f"blocks have {pool.aligned_block_tokens:,} tokens so that one is as large as a state;"
            f" each state page is padded by {pool.state_padding_bytes:,} B"
        )
    if pool.padding_layers:
        text.append(f"{pool.padding_layers} padding layers fill up the groups")
    logged = log_lines(pool, settings)
    for versions, lines in logged.items():
        text += [f"vLLM {versions}:", *(f"  {line}" for line in lines)]
    if pool.concurrency < 1:
        text.append("vLLM refuses to start: the memory does not hold one request of that length.")
    body = {
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
