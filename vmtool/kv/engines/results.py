"""What each engine makes of a model's KV cache: the documents of ``vmtool kv-estimate --as``."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass

from vmtool.kv.engines.llamacpp import LlamaCppBuffer  # noqa: TC001
from vmtool.kv.engines.sglang import SglangPool  # noqa: TC001


@dataclass(frozen=True, slots=True)
class VllmResult:
    """What vLLM would make of the memory, and log.

    Attributes:
        model: The model's name.
        engine_version: The version whose lines come first in the report.
        requested_format: The requested element format.
        format_k: The format in which K or a latent is kept.
        budget_bytes: The memory for the KV cache on each rank.
        max_model_len_tokens: Tokens of the longest request.
        in_flight_tokens: Tokens in flight.
        num_blocks: Blocks in the pool.
        block_tokens: Tokens of the smallest block of any group, after alignment.
        page_bytes: Bytes of one block of one layer; ``None`` where layers differ.
        groups: Groups of layers with block tables of their own.
        group_layers: Layers in each group.
        padding_layers: Layers that exist only to fill up groups.
        blocks_per_request: Blocks of a request of *max_model_len_tokens*, over all groups.
        aligned_block_tokens: The block size that hybrid alignment chose, or ``None``.
        state_padding_bytes: What a state page was padded by to match.
        padded_page_bytes: The most that a page of attention was padded by to match.
        tokens_older: "GPU KV cache size" before about 0.21.
        tokens_newer: The same since then.
        plain_tokens: *tokens_newer* if the format were kept as requested; ``None`` if it is.
        concurrency: "Maximum concurrency".
        starts: Whether vLLM starts.
        log_lines: The lines that it would log, by the versions that log so.
    """

    model: str
    engine_version: str
    requested_format: str
    format_k: str
    budget_bytes: int
    max_model_len_tokens: int
    in_flight_tokens: int
    num_blocks: int
    block_tokens: int
    page_bytes: int | None
    groups: int
    group_layers: int
    padding_layers: int
    blocks_per_request: int
    aligned_block_tokens: int | None
    state_padding_bytes: int
    padded_page_bytes: int
    tokens_older: int
    tokens_newer: int
    plain_tokens: int | None
    concurrency: float
    starts: bool
    log_lines: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class SglangResult:
    """What SGLang would make of the memory, and log.

    Attributes:
        model: The model's name.
        format_k: The element format.
        budget_bytes: The memory for the KV cache on each rank.
        pool: The pool.
        log_lines: The lines that it would log, by the versions that log so.
    """

    model: str
    format_k: str
    budget_bytes: int
    pool: SglangPool
    log_lines: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class LlamaCppResult:
    """The caches that llama.cpp would make, and log.

    Attributes:
        model: The model's name.
        context_tokens: Tokens that each sequence may have, or the shared buffer.
        total_context_tokens: What ``-c`` has to be.
        sequences: Sequences at once.
        ubatch_tokens: Tokens of one step.
        unified: Whether all sequences share one buffer.
        swa_full: Whether layers with a window keep all tokens.
        total_bytes: Bytes of all caches.
        budget_bytes: The memory for the KV cache; ``None`` if none was given.
        buffers: The caches.
        log_lines: The lines that it would log.
    """

    model: str
    context_tokens: int
    total_context_tokens: int
    sequences: int
    ubatch_tokens: int
    unified: bool
    swa_full: bool
    total_bytes: int
    budget_bytes: int | None
    buffers: tuple[LlamaCppBuffer, ...]
    log_lines: tuple[str, ...]
