"""What TensorRT-LLM would log for the same pool: its blocks, and the tokens that they hold.

Source: class ``KVCacheManager`` in ``_torch/pyexecutor/resource_manager.py`` of 1.2, and the lines of
``kvCacheManager.cpp``. A block has the same number of tokens of every layer. Windows count only where
``max_attention_window`` names them; then each window has a pool of its own, and the memory is divided
evenly among the pools (``calculate_max_num_blocks_for_vswa``), and a request reserves in each the window and
what one step may read besides (``getRemainingBlocksToCompletion`` of ``kvCacheManager.cpp``,
``calculateTemporaryAttentionWindow`` of ``kvCacheManager.h``). Versions from 1.3 on have a second manager
(``KVCacheManagerV2``), which some models use by default; it is not modelled: it divides the memory by
``avg_seq_len``, ``max_batch_size`` and ``max_num_tokens``, and anew while it runs (``rebalance_*``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.engines.known_engines import (
    EngineRank,
    kv_bytes,
    refuse_compressed,
    refuse_pooled_indexes,
)
from vmtool.kv.geometry import Span
from vmtool.units import GIB

if TYPE_CHECKING:
    from vmtool.kv.estimate import Question
    from vmtool.kv.sequence_cost import SequenceCost

#: The formats that its cache has.
_FORMATS: Final = ("bf16", "fp16", "fp32", "fp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class TrtllmSettings:
    """What the engine is started with.

    Attributes:
        max_seq_len: Tokens of the longest request.
        block: Tokens of a block, ``tokens_per_block``.
        draft_tokens: Tokens of a draft, ``max_draft_len``.
        windows: Whether ``max_attention_window`` has the windows of the model's layers.
        in_flight: Tokens that one step reads at most, ``max_num_tokens``.
    """

    max_seq_len: int
    block: int = 32
    draft_tokens: int = 0
    windows: bool = False
    in_flight: int = 8192

    @property
    def longest(self) -> int:
        """Tokens of a request with one more, of the overlap scheduler, and those of a draft."""
        return self.max_seq_len + 1 + self.draft_tokens

    def blocks_for(self, window: int) -> int:
        """Return the blocks that a request reserves of the pool of *window* tokens."""
        besides = max(min(self.in_flight, self.longest - 1 - window), 0)
        return -(-min(self.longest, window + besides) // self.block)


@dataclass(frozen=True, slots=True)
class TrtllmPool:
    """The blocks of layers with one window.

    Attributes:
        window_tokens: Tokens of the window; for layers that keep all, of the longest request.
        token_bytes: Bytes of a token in all of these layers of the rank.
        blocks: Blocks, ``primary blocks``.
        draft: Whether it is that of a draft model.
    """

    window_tokens: int
    token_bytes: int
    blocks: int
    draft: bool


@dataclass(frozen=True, slots=True)
class TrtllmResult:
    """What TensorRT-LLM would make of the memory, and log.

    Attributes:
        model: The model's name.
        engine_version: The version that is modelled.
        format_k: The element format.
        budget_bytes: The memory for the KV cache on each rank.
        block_tokens: Tokens of a block.
        max_seq_len_tokens: Tokens of the longest request.
        pools: One for each window.
        tokens: Tokens of all sequences together, in the layers that keep most of them.
        in_flight_tokens: Tokens that one step reads at most.
        sequences: Requests of that length for which there are blocks in every pool.
        log_lines: The lines that it would log.
        rank: What is assumed of each rank; ``None`` without a budget.
    """

    model: str
    engine_version: str
    format_k: str
    budget_bytes: int
    block_tokens: int
    max_seq_len_tokens: int
    pools: tuple[TrtllmPool, ...]
    tokens: int
    in_flight_tokens: int
    sequences: int
    log_lines: tuple[str, ...]
    rank: EngineRank | None = None


def as_trtllm(question: Question, settings: TrtllmSettings, version: str) -> TrtllmResult:
    """Return what TensorRT-LLM makes of *question*.

    Raises:
        UsageError: If it could not serve the model so, or there is no budget.
    """
    name = question.formats.key.name
    hint = f"use one of {', '.join(_FORMATS)}"
    if question.formats.key != question.formats.value:
        raise UsageError("--as trtllm: K and V must have the same type", hint=hint)
    if name not in _FORMATS:
        raise UsageError(f"--as trtllm: it has no KV type {name}", hint=hint)
    refuse_pooled_indexes(question, "trtllm")
    budget = kv_bytes(question, "trtllm")
    pools = trtllm_pools(question.cost, budget, settings)
    own = [pool for pool in pools if not pool.draft]
    blocks = max(own, key=lambda pool: pool.window_tokens).blocks
    return TrtllmResult(
        model=question.geometry.title,
        engine_version=version,
        format_k=name,
        budget_bytes=budget,
        block_tokens=settings.block,
        max_seq_len_tokens=settings.max_seq_len,
        pools=pools,
        tokens=blocks * settings.block,
        in_flight_tokens=settings.in_flight,
        sequences=min(pool.blocks // settings.blocks_for(pool.window_tokens) for pool in own),
        log_lines=tuple(log_lines(pools, settings)),
    )


def trtllm_pools(
    cost: SequenceCost, budget: int, settings: TrtllmSettings
) -> tuple[TrtllmPool, ...]:
    """Return how TensorRT-LLM divides *budget* bytes of KV memory on one rank.

    Raises:
        UsageError: If the layers are not modelled here.
    """
    if settings.block & (settings.block - 1):
        raise UsageError(f"--as trtllm: blocks of {settings.block} tokens are not a power of two")
    refuse_compressed(cost, "trtllm")
    _refuse_indexes(cost)
    windows: dict[tuple[bool, int], int] = {}
    for layer in cost.layers:
        if layer.states or any(
            tensor.extent.span is Span.FIXED or tensor.extent.ranks > 1 for tensor in layer.tensors
        ):
            raise UsageError(f"--as trtllm: layers with {layer.kind.value} are not modelled")
        for tensor in layer.tensors:
            window = settings.longest
            if settings.windows and not tensor.extent.grows:
                window = min(tensor.extent.size, window)
            key = (layer.draft, window)
            windows[key] = windows.get(key, 0) + layer.count * tensor.bytes_per_token
    if not windows:
        raise UsageError("the model keeps nothing per token, so there are no blocks")
    # A draft model's blocks are as many as the model's: both are counted for each token.
    targets = {key: size for key, size in windows.items() if not key[0]}
    draft = sum(size for (is_draft, _), size in windows.items() if is_draft)
    blocks = {
        key: budget // len(targets) // (size + draft) // settings.block
        for key, size in targets.items()
    }
    most = min(blocks.values())
    return tuple(
        TrtllmPool(window, size, blocks.get((is_draft, window), most), is_draft)
        for (is_draft, window), size in sorted(windows.items())
    )


def _refuse_indexes(cost: SequenceCost) -> None:
    """Refuse index keys that are not in every layer beside a latent, as in ``DSACacheManager``."""
    names = [frozenset(tensor.name for tensor in layer.tensors) for layer in cost.layers]
    if any("index_k" in found for found in names):
        raise UsageError(
            "--as trtllm: only KVCacheManagerV2, which is not modelled, keeps index keys beside K and V"
        )
    if len({"index" in found for found in names if "latent" in found}) > 1:
        raise UsageError("--as trtllm: layers that share index keys are not modelled")


def log_lines(pools: tuple[TrtllmPool, ...], settings: TrtllmSettings) -> list[str]:
    """Return the lines that TensorRT-LLM would log, those of a draft model last."""
    lines = []
    per_request = -(-settings.longest // settings.block)
    for draft in dict.fromkeys(pool.draft for pool in pools):
        alike = [pool for pool in pools if pool.draft is draft]
        for pool in alike:
            held = pool.blocks * settings.block
            lines.append(
                f"Max KV cache blocks per sequence: {per_request}"
                f" [window size={min(pool.window_tokens, held)}], tokens per block={settings.block},"
                f" primary blocks={pool.blocks}, secondary blocks=0,"
                f" max sequence length={settings.longest}"
            )
        nbytes = sum(pool.blocks * settings.block * pool.token_bytes for pool in alike)
        tokens = sum(pool.blocks for pool in alike) * settings.block
        lines.append(f"Number of tokens per block: {settings.block}.")
        lines.append(
            f"[MemUsageChange] Allocated {nbytes / GIB:.2f} GiB for max tokens in paged KV cache"
            f" ({tokens})."
        )
    return lines
