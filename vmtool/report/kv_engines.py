"""The report of ``vmtool kv-estimate --as``: what each engine would log for the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.kv.engines.sglang import SglangResult
from vmtool.kv.engines.trtllm import TrtllmResult
from vmtool.kv.engines.vllm import VllmResult
from vmtool.report.kv_estimate import both, count_of
from vmtool.report.table import paragraph, show, verbatim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from vmtool.kv.engines.llamacpp import LlamaCppResult


def to_text(
    result: VllmResult | SglangResult | LlamaCppResult | TrtllmResult, console: Console
) -> None:
    """Print the report. Lines of a log are what the user compares, so they are never broken."""
    if isinstance(result, VllmResult):
        parts = _vllm(result)
    elif isinstance(result, SglangResult):
        parts = _sglang(result)
    elif isinstance(result, TrtllmResult):
        parts = _trtllm(result)
    else:
        parts = _llamacpp(result)
    show(console, parts)


def _vllm(result: VllmResult) -> Iterator[RenderableType]:
    room = f"{result.concurrency:.2f} requests of {count_of(result.max_model_len_tokens, 'token')}"
    yield paragraph(
        f"{result.model} in vLLM {result.engine_version}, {result.requested_format}, with"
        f" {both(result.budget_bytes)} of KV memory on each rank: room for {room}"
        f" ({result.in_flight_tokens:,} tokens in flight)."
    )
    if not result.starts:
        yield paragraph(
            "vLLM refuses to start: the memory does not hold one request of that length"
            + (" and the block that it keeps back." if result.concurrency >= 1 else ".")
        )
    yield paragraph(
        f"{count_of(result.num_blocks, 'block')} of {count_of(result.block_tokens, 'token')} in"
        f" {count_of(result.groups, 'group')} of {count_of(result.group_layers, 'layer')};"
        f" {count_of(result.blocks_per_request, 'block')} a request"
    )
    if result.plain_tokens is not None:
        requested = result.requested_format
        yield paragraph(
            f"{requested} is kept as {result.format_k}, as FLASHMLA_SPARSE wants it; with"
            f" FLASHINFER_MLA_SPARSE, the first choice on Blackwell since pull request 37252, it"
            f" stays {requested}: {count_of(result.plain_tokens, 'token')}"
        )
    if result.aligned_block_tokens is not None:
        yield paragraph(
            f"blocks have {result.aligned_block_tokens:,} tokens so that one is as large as a state;"
            f" each state page is padded by {result.state_padding_bytes:,} B"
        )
    if result.padded_page_bytes:
        yield paragraph(f"smaller pages are padded by {result.padded_page_bytes:,} B")
    if result.padding_layers:
        yield paragraph(
            f"groups are filled up with {count_of(result.padding_layers, 'padding layer')}"
        )
    for versions, lines in result.log_lines.items():
        yield paragraph(f"vLLM {versions}:")
        for line in lines:
            yield verbatim(f"  {line}")


def _sglang(result: SglangResult) -> Iterator[RenderableType]:
    pool = result.pool
    yield paragraph(
        f"{result.model} in SGLang, {result.format_k}, with {both(result.budget_bytes)} of KV memory"
        f" on each rank: {count_of(pool.max_total_num_tokens, 'token')}, pages of"
        f" {count_of(pool.page_tokens, 'token')} (--block), {both(pool.token_bytes)} a token."
    )
    if not pool.max_total_num_tokens:
        yield paragraph("SGLang refuses to start: the memory does not hold one page.")
    for versions, lines in result.log_lines.items():
        yield paragraph(f"SGLang, {versions} versions:")
        for line in lines:
            yield verbatim(f"  {line}")


def _trtllm(result: TrtllmResult) -> Iterator[RenderableType]:
    length = count_of(result.max_seq_len_tokens, "token")
    yield paragraph(
        f"{result.model} in TensorRT-LLM {result.engine_version}, {result.format_k}, with"
        f" {both(result.budget_bytes)} of KV memory on each rank: {count_of(result.tokens, 'token')} in"
        f" blocks of {result.block_tokens}; room for {count_of(result.sequences, 'request')} of"
        f" {length}."
    )
    if not result.sequences:
        yield paragraph("TensorRT-LLM shortens the longest request to what the blocks hold.")
    for line in result.log_lines:
        yield verbatim(f"  {line}")


def _llamacpp(result: LlamaCppResult) -> Iterator[RenderableType]:
    flags = " --kv-unified" if result.unified else ""
    flags += " --swa-full" if result.swa_full else ""
    yield paragraph(
        f"{result.model} in llama.cpp: {both(result.total_bytes)} with"
        f" -c {result.total_context_tokens} -np {result.sequences} -ub {result.ubatch_tokens}{flags}."
    )
    if result.budget_bytes is not None:
        spare = result.budget_bytes - result.total_bytes
        rest = "of the budget are left" if spare >= 0 else "more than the budget"
        yield paragraph(f"{both(abs(spare))} {rest}")
    for line in result.log_lines:
        yield verbatim(f"  {line}")
