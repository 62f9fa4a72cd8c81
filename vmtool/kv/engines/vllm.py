"""What vLLM would log for the same pool: blocks, "GPU KV cache size", "Maximum concurrency".

Source: ``kv_cache_interface.py``, ``kv_cache_planning.py`` and ``kv_cache_utils.py`` of 0.33, and of
commit 001cabc1 (early 2026) for what versions before about 0.21 log as the size of the cache. A
*page* is one block of one layer on one rank.

fp8 becomes another format where a latent has index keys: in every such model by ``models/config.py``
at commit 0144dd5b (class ``DeepseekV32ForCausalLM``, late 2025), and later by
``attention/mla_attention.py`` at commit 0014ca6b where the backend is ``FLASHMLA_SPARSE``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.element_formats import stored_formats
from vmtool.kv.engines.known_engines import (
    EngineRank,
    kv_bytes,
    refuse_compressed,
    refuse_pooled_indexes,
    version_numbers,
)
from vmtool.kv.geometry import Span, TensorRole
from vmtool.kv.sequence_cost import SequenceCost

if TYPE_CHECKING:
    from vmtool.kv.estimate import Question
    from vmtool.kv.geometry import Extent, ModelGeometry
    from vmtool.kv.sequence_cost import LayerCost

#: vLLM's ``mamba_cache_mode``: one state for each sequence, two, or one for each block of tokens.
#: 0.33 has no ``all`` any more.
STATE_MODES: Final = ("none", "align", "all")
#: Attention kernels take blocks in multiples of this many tokens, those of latents of more: 64 with
#: Triton, 128 with CUTLASS_MLA (``get_supported_kernel_block_sizes`` of the backends).
_KERNEL_BLOCK: Final = 16
_LATENT_KERNEL_BLOCK: Final = 64
#: Blocks that kernels of index keys take and no other: beside latents (``mla/indexer.py``), and beside K
#: and V (``minimax_m3/common/indexer.py``).
_INDEX_BLOCK: Final = 64
_UNPACKED_INDEX_BLOCK: Final = 128
#: The formats that its cache has here; fp32 is ``auto`` of a model in fp32.
_FORMATS: Final = (
    "fp32",
    "fp16",
    "bf16",
    "fp8",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
    "fp8_ds_mla",
)
#: The first version that logs what the pool holds at ``max_model_len``.
_NEWER_SINCE: Final = (0, 21)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What the engine is started with.

    Attributes:
        max_model_len: Tokens of the longest request.
        block: Tokens in a block, ``--block-size``.
        in_flight: Tokens that a step may add before a window drops old ones:
            ``--max-num-batched-tokens``, and twice that where scheduling is asynchronous.
        state_mode: One of :data:`STATE_MODES`; prefix caching means ``align`` or ``all``.
        encoder_tokens: Tokens for which cross attention has room, ``--max-num-batched-tokens``;
            ``None`` is as many as are in flight.
        draft_tokens: Tokens of a draft, ``num_speculative_tokens``.
        kernel_block: Tokens in whose multiples the attention kernel takes blocks; ``None`` is 16, and
            64 for latents.
        num_blocks: Blocks of the pool, ``--num-gpu-blocks-override``; ``None`` is what the memory has.
    """

    max_model_len: int
    block: int = 16
    in_flight: int = 8192
    state_mode: str = "none"
    encoder_tokens: int | None = None
    draft_tokens: int = 0
    kernel_block: int | None = None
    num_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class VllmPool:
    """What vLLM makes of the memory.

    Attributes:
        num_blocks: Blocks in the pool.
        block_tokens: Tokens of the smallest block of any group, after alignment.
        page_bytes: Bytes of one block of one layer; 0 where layers differ.
        pool_bytes: Bytes of all blocks.
        groups: Groups of layers with block tables of their own.
        group_layers: Layers in each group.
        padding_layers: Layers that exist only to fill up groups.
        blocks_per_request: Blocks of a request of ``max_model_len``, over all groups.
        tokens_older: "GPU KV cache size" before about 0.21.
        tokens_newer: "GPU KV cache size" since about 0.21.
        concurrency: "Maximum concurrency".
        aligned_block_tokens: The block size that hybrid alignment chose, or ``None``.
        state_padding_bytes: What a state page was padded by to match.
        padded_page_bytes: The most that a page of attention was padded by to match; 0 if none was.
        starts: Whether vLLM starts: it keeps one block of the pool back, and the others must hold a
            request of ``max_model_len``.
    """

    num_blocks: int
    block_tokens: int
    page_bytes: int
    pool_bytes: int
    groups: int
    group_layers: int
    padding_layers: int
    blocks_per_request: int
    tokens_older: int
    tokens_newer: int
    concurrency: Fraction
    aligned_block_tokens: int | None
    state_padding_bytes: int
    padded_page_bytes: int
    starts: bool


@dataclass(frozen=True, slots=True)
class _Spec:
    """What vLLM keeps of one layer; layers with equal specs form groups."""

    kind: str
    block: int
    token_bytes: int = 0
    extent: Extent | None = None
    state_bytes: int = 0
    padded_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        return self.padded_bytes or self.state_bytes or self.block * self.token_bytes

    @property
    def uniform_key(self) -> tuple[object, ...]:
        """What must be equal for layers of different sizes to share one group."""
        return (self.kind, self.extent, self.block)

    def blocks_for(self, settings: VllmSettings) -> int:
        """Return the blocks of one request of ``max_model_len``."""
        if self.extent is None:
            every_block = -(-settings.max_model_len // self.block)
            alone = {"none": 1, "align": 2, "all": every_block}[settings.state_mode]
            return alone + settings.draft_tokens
        if self.extent.span is Span.FIXED:
            tokens = settings.encoder_tokens
            return -(-(settings.in_flight if tokens is None else tokens) // self.block)
        held = self.extent.tokens_held(settings.max_model_len, settings.in_flight)
        # A window need not begin at a block's edge, so it can touch one block more.
        return -(-held // self.block) + (self.extent.span is Span.WINDOW)


def default_block(geometry: ModelGeometry) -> int:
    """Return the tokens of a block that vLLM takes if none are given.

    The smallest that every kernel takes (``_preferred_block_size_for_backends`` in
    ``platforms/interface.py``), of CUDA devices.
    """
    tensors = [tensor for layer in geometry.layers for tensor in layer.tensors]
    if any(tensor.own_type for tensor in tensors):
        return _UNPACKED_INDEX_BLOCK
    if any(tensor.role is TensorRole.INDEX for tensor in tensors):
        return _INDEX_BLOCK
    return _KERNEL_BLOCK


def served_geometry(geometry: ModelGeometry) -> ModelGeometry:
    """Return *geometry* as vLLM serves it: from a GGUF file, convolutions have the model's type.

    32 bits, which such a geometry has for all states, are llama.cpp's.
    """
    if geometry.file_format != "gguf":
        return geometry
    return replace(
        geometry,
        layers=tuple(
            replace(
                layer,
                states=tuple(replace(s, dtype=None) if s.taps else s for s in layer.states),
            )
            for layer in geometry.layers
        ),
    )


def vllm_pool(cost: SequenceCost, budget: int, settings: VllmSettings) -> VllmPool:
    """Return how vLLM divides *budget* bytes of KV memory on one rank.

    Raises:
        UsageError: If vLLM could not, or a layer is of a kind that is not modelled here.
    """
    if settings.state_mode not in STATE_MODES:
        raise UsageError(f"state mode {settings.state_mode[:40]!r}: use {', '.join(STATE_MODES)}")
    refuse_compressed(cost, "vllm")
    specs = [spec for layer in cost.layers for spec in _layer_specs(layer, settings)]
    if not specs:
        raise UsageError("the model keeps nothing, so vLLM has no KV cache to size")
    if settings.num_blocks is not None and settings.num_blocks < 1:
        raise UsageError(f"--blocks {settings.num_blocks}: a pool has at least one block")
    specs, aligned, padding = _align_states(specs, settings)
    if len({spec.uniform_key for spec in specs}) == 1:
        page = sum(spec.page_bytes for spec in specs)
        sizes = {spec.page_bytes for spec in specs}
        return _pool(
            budget,
            page,
            [specs[0]],
            settings,
            page_bytes=sizes.pop() if len(sizes) == 1 else 0,
            group_layers=len(specs),
            aligned=(aligned, padding),
        )
    specs = _unify_pages(specs)
    layers = Counter(specs)
    size = _group_size(list(layers.values()))
    groups = [spec for spec, count in layers.items() for _ in range(-(-count // size))]
    page = specs[0].page_bytes
    return _pool(
        budget,
        page * size,
        groups,
        settings,
        page_bytes=page,
        group_layers=size,
        padding_layers=len(groups) * size - len(specs),
        aligned=(aligned, padding),
    )


def log_lines(pool: VllmPool, settings: VllmSettings) -> dict[str, list[str]]:
    """Return the lines that vLLM would log, by version."""
    length = f"{settings.max_model_len:,}"
    concurrency = (
        f"Maximum concurrency for {length} tokens per request: {float(pool.concurrency):.2f}x"
    )
    return {
        "before about 0.21": [f"GPU KV cache size: {pool.tokens_older:,} tokens", concurrency],
        "since about 0.21": [f"GPU KV cache size: {pool.tokens_newer:,} tokens", concurrency],
    }


def _layer_specs(layer: LayerCost, settings: VllmSettings) -> list[_Spec]:
    """Return the specs of *layer*, once for each of the layers that are counted together."""
    sizes: dict[tuple[str, bool, Extent], int] = {}
    for tensor in layer.tensors:
        # Index keys have a cache of their own, in the group of the latents or of K and V.
        latent = tensor.role in (TensorRole.LATENT, TensorRole.INDEX)
        index = tensor.name.startswith("index")
        key = ("latent" if latent else "attention", index, tensor.extent)
        sizes[key] = sizes.get(key, 0) + tensor.bytes_per_token
    found = [_Spec(kind, settings.block, size, extent) for (kind, _, extent), size in sizes.items()]
    states = layer.state_bytes
    if settings.draft_tokens:  # the convolution remembers what a draft may take back
        states += sum(
            state.nbytes // state.taps * settings.draft_tokens
            for state in layer.states
            if state.taps
        )
    if layer.states:
        # Without prefix caching, MambaModelConfig in vLLM's models/config.py makes mamba_block_size
        # the longest request: a block is a sequence.
        alone = settings.state_mode == "none"
        block = settings.max_model_len if alone else settings.block
        found.append(_Spec("state", block, state_bytes=states))
    return found * layer.count


def _align_states(
    specs: list[_Spec], settings: VllmSettings
) -> tuple[list[_Spec], int | None, int]:
    """Make attention blocks at least as large as a state, and pad states to that size."""
    states = [spec.state_bytes for spec in specs if spec.extent is None]
    tokens = [spec.token_bytes for spec in specs if spec.extent is not None]
    if not states or not tokens:
        return specs, None, 0
    latent = any(spec.kind == "latent" for spec in specs)
    kernel = settings.kernel_block or (_LATENT_KERNEL_BLOCK if latent else _KERNEL_BLOCK)
    unit = kernel * max(tokens)
    block = max(settings.block, kernel * -(-max(states) // unit))
    page = block * max(tokens)
    aligned = []
    for spec in specs:
        if spec.extent is not None:
            aligned.append(replace(spec, block=block))
        elif settings.state_mode == "none":
            aligned.append(replace(spec, state_bytes=page))
        else:
            aligned.append(replace(spec, block=block, state_bytes=page))
    return aligned, block, page - max(states)


def _unify_pages(specs: list[_Spec]) -> list[_Spec]:
    """Make all pages equal: small ones get larger blocks, or are padded where that does not do it.

    Pages of latents cannot be padded (``unify_kv_cache_spec_page_size``).
    """
    page = max(spec.page_bytes for spec in specs)
    found = []
    for spec in specs:
        if spec.page_bytes == page:
            found.append(spec)
        elif spec.extent is None:
            found.append(replace(spec, padded_bytes=page))
        elif page % spec.page_bytes == 0:
            found.append(replace(spec, block=spec.block * (page // spec.page_bytes)))
        elif spec.kind == "attention":
            found.append(replace(spec, padded_bytes=page))
        else:
            raise UsageError(
                f"--as vllm: pages of {spec.page_bytes} B and {page} B cannot be made equal, so"
                " vLLM would refuse the model at this block size and format"
            )
    return found


def _group_size(counts: list[int]) -> int:
    """Return the layers in a group: the fewest of any spec, or the most where that pads little."""
    return max(counts) if 2 * max(counts) < 3 * min(counts) else min(counts)


def _pool(
    budget: int,
    block_bytes: int,
    groups: list[_Spec],
    settings: VllmSettings,
    *,
    page_bytes: int,
    group_layers: int,
    aligned: tuple[int | None, int],
    padding_layers: int = 0,
) -> VllmPool:
    num_blocks = budget // block_bytes if settings.num_blocks is None else settings.num_blocks
    per_request = sum(spec.blocks_for(settings) for spec in groups)
    concurrency = Fraction(num_blocks, per_request)
    attending = [spec.block for spec in groups if spec.extent is not None]
    block = min(attending, default=settings.block)
    older_block = min(spec.block for spec in groups)
    # Ranks that share the tokens hold that many times as many together.
    ranks = max(spec.extent.ranks if spec.extent else 1 for spec in groups)
    return VllmPool(
        num_blocks=num_blocks,
        block_tokens=block,
        page_bytes=page_bytes,
        pool_bytes=num_blocks * block_bytes,
        groups=len(groups),
        group_layers=group_layers,
        padding_layers=padding_layers,
        blocks_per_request=per_request,
        tokens_older=num_blocks // len(groups) * older_block * ranks,
        tokens_newer=int(concurrency * settings.max_model_len),
        concurrency=concurrency,
        aligned_block_tokens=aligned[0],
        state_padding_bytes=aligned[1],
        padded_page_bytes=max(
            spec.padded_bytes - spec.block * spec.token_bytes
            if spec.padded_bytes and spec.extent is not None
            else 0
            for spec in groups
        ),
        starts=num_blocks > per_request,
    )


@dataclass(frozen=True, slots=True)
class VllmResult:
    """What vLLM would make of the memory, and log.

    Attributes:
        model: The model's name.
        engine_version: The version whose lines come first in the report.
        requested_format: The requested element format.
        format_k: The format in which K or a latent is kept.
        budget_bytes: The memory for the KV cache on each rank; with ``--blocks`` what they take.
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
        tokens_newer: "GPU KV cache size" since about 0.21.
        plain_tokens: *tokens_newer* if the format were kept as requested; ``None`` if it is.
        concurrency: "Maximum concurrency".
        starts: Whether vLLM starts.
        sequences: The requested sequences.
        sequences_fit: Whether that many requests of *max_model_len_tokens* fit at once.
        log_lines: The lines that it would log, by the versions that log so.
        rank: What is assumed of each rank; ``None`` without a budget.
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
    sequences: int
    sequences_fit: bool
    log_lines: Mapping[str, list[str]]
    rank: EngineRank | None = None


def as_vllm(question: Question, settings: VllmSettings, version: str) -> VllmResult:
    """Return what vLLM *version* makes of *question*.

    Raises:
        UsageError: If it could not serve the model so, or there is no budget.
    """
    newer = version_numbers(version) >= _NEWER_SINCE
    if settings.state_mode == "all" and newer:
        raise UsageError(
            f"vLLM {version} no longer has the state mode 'all'",
            hint="use --state-blocks align, or ask for an older version, such as --as vllm@0.20",
        )
    key, value = question.formats.key, question.formats.value
    if key != value:
        raise UsageError(
            f"--as vllm: K and V must have the same type, not {key.name} and {value.name}",
            hint="give one --dtype for both",
        )
    if key.name not in _FORMATS:
        raise UsageError(
            f"--as vllm: it has no KV type {key.name}", hint=f"use one of {', '.join(_FORMATS)}"
        )
    refuse_pooled_indexes(question, "vllm")
    budget = kv_bytes(question, "vllm", settings.num_blocks)
    geometry = served_geometry(question.geometry)
    formats = stored_formats(geometry, question.formats)
    pool = vllm_pool(SequenceCost.of(geometry, formats), budget, settings)
    plain = None
    if formats != question.formats:
        cost = SequenceCost.of(geometry, question.formats)
        plain = vllm_pool(cost, budget, settings).tokens_newer
    lines = log_lines(pool, settings)
    if newer:
        lines = dict(reversed(lines.items()))
    starts = pool.starts if newer else pool.concurrency >= 1
    return VllmResult(
        model=question.geometry.title,
        engine_version=version,
        requested_format=question.formats.key.name,
        format_k=formats.key.name,
        budget_bytes=budget if settings.num_blocks is None else pool.pool_bytes,
        max_model_len_tokens=settings.max_model_len,
        in_flight_tokens=settings.in_flight,
        num_blocks=pool.num_blocks,
        block_tokens=pool.block_tokens,
        page_bytes=pool.page_bytes or None,
        groups=pool.groups,
        group_layers=pool.group_layers,
        padding_layers=pool.padding_layers,
        blocks_per_request=pool.blocks_per_request,
        aligned_block_tokens=pool.aligned_block_tokens,
        state_padding_bytes=pool.state_padding_bytes,
        padded_page_bytes=pool.padded_page_bytes,
        tokens_older=pool.tokens_older,
        tokens_newer=pool.tokens_newer,
        plain_tokens=plain,
        concurrency=float(pool.concurrency),
        starts=starts,
        sequences=question.sequences,
        sequences_fit=starts and pool.concurrency >= question.sequences,
        log_lines=lines,
    )
