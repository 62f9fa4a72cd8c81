"""The report of ``vmtool kv-estimate --as``: what each engine would log for the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.kv.engines.sglang import SglangResult
from vmtool.kv.engines.trtllm import TrtllmResult
from vmtool.kv.engines.vllm import VllmResult
from vmtool.report.console import paragraph, show, verbatim
from vmtool.report.kv_estimate import both, budget_text, ranks_text
from vmtool.units import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType

    from vmtool.kv.engines.known_engines import EngineRank
    from vmtool.kv.engines.llamacpp import LlamaCppResult

    EngineResult = VllmResult | SglangResult | LlamaCppResult | TrtllmResult
    _Parts = tuple[list[str], Mapping[str, Sequence[str]]]


def to_text(result: EngineResult, console: Console) -> None:
    """Print the report. Lines of a log are what the user compares, so they are never broken."""
    show(console, _parts(result))


def _parts(result: EngineResult) -> Iterator[RenderableType]:
    texts, logged = engine_paragraphs(result)
    yield from map(paragraph, texts)
    for heading, lines in logged.items():
        if heading:
            yield paragraph(f"{heading}:")
        yield from (verbatim(f"  {line}") for line in lines)


def engine_paragraphs(result: EngineResult) -> _Parts:
    """Return the sentences about *result*, and the lines that the engine logs, by heading."""
    (first, *more), logged = _paragraphs(result)
    assumed = [] if result.rank is None else [_rank_text(result.rank)]
    return [first, *assumed, *more], logged


def _rank_text(rank: EngineRank) -> str:
    """Return what each rank has, and whether the answer is about one or about all together."""
    count = rank.tp * rank.pp
    memory = budget_text(rank.budget)
    if count == 1:
        return f"1 rank has {memory}."
    return (
        f"For {count} ranks together ({ranks_text(rank.tp, rank.pp, rank.dcp)}); each has {memory}."
    )


def _paragraphs(result: EngineResult) -> _Parts:
    if isinstance(result, VllmResult):
        return _vllm(result)
    if isinstance(result, SglangResult):
        return _sglang(result)
    if isinstance(result, TrtllmResult):
        return _trtllm(result)
    return _llamacpp(result)


def _vllm(result: VllmResult) -> _Parts:
    texts = []
    room = f"{result.concurrency:.2f} requests of {count_of(result.max_model_len_tokens, 'token')}"
    texts.append(
        f"{result.model} in vLLM {result.engine_version}, {result.requested_format}, with"
        f" {both(result.budget_bytes)} of KV memory on each rank: room for {room}"
        f" ({result.in_flight_tokens:,} tokens in flight)."
    )
    if not result.starts:
        texts.append(
            "vLLM refuses to start: the memory is too small for one request of that length"
            + (" and the block that vLLM keeps in reserve." if result.concurrency >= 1 else ".")
        )
    elif result.sequences > 1:
        length = count_of(result.max_model_len_tokens, "token")
        texts.append(_verdict(result.sequences, length, fit=result.sequences_fit))
    texts.append(
        f"{count_of(result.num_blocks, 'block')} of {count_of(result.block_tokens, 'token')} in"
        f" {count_of(result.groups, 'group')} of {count_of(result.group_layers, 'layer')};"
        f" {count_of(result.blocks_per_request, 'block')} a request"
    )
    if result.plain_tokens is not None:
        requested = result.requested_format
        texts.append(
            f"{requested} is kept as {result.format_k}, as FLASHMLA_SPARSE requires; with"
            f" FLASHINFER_MLA_SPARSE, the first choice on Blackwell since pull request 37252, it"
            f" stays {requested}: {count_of(result.plain_tokens, 'token')}"
        )
    padded = []
    if result.aligned_block_tokens is not None:
        padded.append(
            f"a block is as large as a state with padding of {result.state_padding_bytes:,} B"
        )
    if result.padded_page_bytes:
        padded.append(f"smaller pages are padded by {result.padded_page_bytes:,} B")
    if result.padding_layers:
        padded.append(f"{count_of(result.padding_layers, 'padding layer')}")
    if padded:
        texts.append("; ".join(padded))
    return texts, {f"vLLM {name}": lines for name, lines in result.log_lines.items()}


def _verdict(sequences: int, length: str, *, fit: bool) -> str:
    return f"{sequences:,} requests of {length} {'fit' if fit else 'do not fit'} at once."


def _sglang(result: SglangResult) -> _Parts:
    texts = []
    pool = result.pool
    texts.append(
        f"{result.model} in SGLang, {result.format_k}, with {both(result.budget_bytes)} of KV memory"
        f" on each rank: {count_of(pool.max_total_num_tokens, 'token')}, pages of"
        f" {count_of(pool.page_tokens, 'token')} (--block), {both(pool.token_bytes)} a token."
    )
    if result.sequences > 1 and result.sequences_fit is not None:
        length = count_of(result.max_tokens, "token")
        texts.append(_verdict(result.sequences, length, fit=result.sequences_fit))
    if not pool.max_total_num_tokens:
        texts.append("SGLang refuses to start: the memory is too small for one page.")
    return texts, {f"SGLang, {name} versions": lines for name, lines in result.log_lines.items()}


def _trtllm(result: TrtllmResult) -> _Parts:
    texts = []
    length = count_of(result.max_seq_len_tokens, "token")
    texts.append(
        f"{result.model} in TensorRT-LLM {result.engine_version}, {result.format_k}, with"
        f" {both(result.budget_bytes)} of KV memory on each rank: {count_of(result.tokens, 'token')} in"
        f" blocks of {result.block_tokens}; room for {count_of(result.sequences, 'request')} of {length}"
    )
    if len(result.pools) > 1:
        texts[0] += f" ({count_of(result.in_flight_tokens, 'token')} in flight)"
    texts[0] += "."
    if result.sequences == 0:
        texts.append("TensorRT-LLM shortens the longest request to what the blocks hold.")
    return texts, {"": result.log_lines}


def _llamacpp(result: LlamaCppResult) -> _Parts:
    texts = []
    flags = " --kv-unified" if result.unified else ""
    flags += " --swa-full" if result.swa_full else ""
    texts.append(
        f"{result.model} in llama.cpp: {both(result.total_bytes)} with"
        f" -c {result.total_context_tokens} -np {result.sequences} -ub {result.ubatch_tokens}{flags}."
    )
    if result.budget_bytes is not None:
        spare = result.budget_bytes - result.total_bytes
        rest = "of the budget are left" if spare >= 0 else "more than the budget"
        texts.append(f"{both(abs(spare))} {rest}")
    return texts, {"": result.log_lines}
