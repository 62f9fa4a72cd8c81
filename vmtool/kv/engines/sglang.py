"""What SGLang would log for the same pool: "KV Cache is allocated", "max_total_num_tokens".

Source: ``pool_configurator.py``, ``kv_cache_configurator.py`` and ``memory_pool.py`` of 0.5.23: the
memory by the bytes of a token, down to whole pages; buffers have one page more than tokens, for
padding, and states one slot more.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.engines.known_engines import (
    EngineRank,
    kv_bytes,
    refuse_compressed,
    refuse_pooled_indexes,
)
from vmtool.kv.geometry import Span, TensorRole
from vmtool.units import GIB

if TYPE_CHECKING:
    from vmtool.kv.element_formats import Formats
    from vmtool.kv.estimate import Question
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.sequence_cost import SequenceCost, TensorCost

#: Its names of the formats that it has for K and V alike.
_TYPE_NAMES: Final = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp8": "torch.float8_e4m3fn",
    "fp8_ds_mla": "torch.float8_e4m3fn",
}
#: ``--swa-full-tokens-ratio``: tokens of layers with a window for each of the others'.
SWA_RATIO: Final = Fraction(4, 5)
#: ``--mamba-full-memory-ratio``: memory of states for each byte of the KV cache.
STATE_RATIO: Final = Fraction(9, 10)
_CONVOLUTION: Final = ("conv", "shift")
#: Index keys of layers without a latent, which have a pool of their own.
_UNPACKED_INDEX: Final = "index_k"


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """What the engine is started with.

    Attributes:
        page: Tokens of a page, ``--page-size``.
        state_slots: Sequences whose states have room, ``--max-mamba-cache-size``; ``None`` is what
            :data:`STATE_RATIO` of the memory holds.
    """

    page: int = 1
    state_slots: int | None = None


@dataclass(frozen=True, slots=True)
class SglangBuffers:
    """The buffers of layers that keep the same tokens.

    Attributes:
        tokens: Tokens in them, without the page of padding.
        key_bytes: Bytes of those of K, or of latents with their index keys.
        value_bytes: Bytes of those of V; ``None`` for latents, which are both.
    """

    tokens: int
    key_bytes: int
    value_bytes: int | None


@dataclass(frozen=True, slots=True)
class SglangPool:
    """What SGLang makes of the memory.

    Attributes:
        page_tokens: Tokens of a page, ``--page-size``.
        token_bytes: Bytes of a token in all layers of the rank that keep every token; of those with
            a window where no other are.
        max_total_num_tokens: Tokens of all sequences together.
        swa_tokens: Tokens of layers with a window; ``None`` if there are none.
        full: The buffers of layers that keep every token, or ``None``.
        window: The buffers of layers with a window, or ``None``.
        state_slots: Sequences whose states have room; ``None`` if the model has no states.
        conv_bytes: Bytes of convolution states.
        state_bytes: Bytes of other states.
        type_name: The element type as it is logged.
        draft: The buffers of layers that predict draft tokens, or ``None``.
        index: The buffers of index keys beside K and V (MiniMax-M3), or ``None``.
        index_type_name: Their element type, which is the model's.
    """

    page_tokens: int
    token_bytes: int
    max_total_num_tokens: int
    swa_tokens: int | None
    full: SglangBuffers | None
    window: SglangBuffers | None
    state_slots: int | None
    conv_bytes: int
    state_bytes: int
    type_name: str
    draft: SglangBuffers | None = None
    index: SglangBuffers | None = None
    index_type_name: str = ""


def default_page(geometry: ModelGeometry) -> int:
    """Return the tokens of a page that SGLang takes if none are given, on CUDA devices.

    64 times the tokens of an index key beside latents (``model_overrides/deepseek_v2.py``), and 128
    with index keys beside K and V (``model_overrides/minimax_m3.py``).
    """
    tensors = [tensor for layer in geometry.layers for tensor in layer.tensors]
    ratios = [tensor.extent.ratio for tensor in tensors if tensor.role is TensorRole.INDEX]
    if ratios:
        return 64 * max(ratios)
    return 128 if any(tensor.name == _UNPACKED_INDEX for tensor in tensors) else 1


def sglang_pool(
    cost: SequenceCost, formats: Formats, budget: int, settings: SglangSettings
) -> SglangPool:
    """Return how SGLang divides *budget* bytes of KV memory on one rank.

    Raises:
        UsageError: If it has no such format, or the layers are not modelled here.
    """
    if formats.key != formats.value and formats.key.name != "fp8_ds_mla":
        raise UsageError("--as sglang: K and V must have the same type")
    if formats.key.name not in _TYPE_NAMES:
        raise UsageError(
            f"--as sglang: the KV type {formats.key.name} is not modelled",
            hint=f"use one of {', '.join(_TYPE_NAMES)}",
        )
    _refuse_unmodelled(cost)
    cost = _with_all_indexes(cost)
    states = {True: 0, False: 0}
    for layer in cost.layers:
        for state in layer.states:
            states[state.name in _CONVOLUTION] += layer.count * state.nbytes
    per_sequence = states[True] + states[False]
    slots, memory = _state_slots(per_sequence, budget, settings)
    full = _sizes(cost, windowed=False)
    window = _sizes(cost, windowed=True)
    index = _index_bytes(cost)
    full_bytes, window_bytes = sum(full.values()) + index, sum(window.values())
    page = settings.page
    tokens, swa = _tokens(memory, full_bytes, window_bytes, page)
    return SglangPool(
        page,
        full_bytes or window_bytes,
        tokens,
        swa,
        _buffers(_sizes(cost, windowed=False, draft=False), tokens, page),
        _buffers(_sizes(cost, windowed=True, draft=False), swa or 0, page),
        slots if per_sequence else None,
        states[True] * (slots + 1),
        states[False] * (slots + 1),
        _TYPE_NAMES[formats.key.name],
        _buffers(_sizes(cost, windowed=False, draft=True), tokens, page),
        _index_buffers(cost, tokens, page),
        _TYPE_NAMES[formats.state.name] if _index_bytes(cost) else "",
    )


def _with_all_indexes(cost: SequenceCost) -> SequenceCost:
    """Return *cost* with index keys in every layer with a latent, if one layer has them.

    Layers that take an earlier layer's choice (GLM-5.2) have room for their own all the same: a public
    log has 464,768 tokens of 78 layers of 576 + 132 B in 23.907 GiB.
    """
    index = next((t for _, t in cost.tensors() if t.role is TensorRole.INDEX), None)
    if index is None:
        return cost
    layers = tuple(
        replace(layer, tensors=(*layer.tensors, index))
        if {t.role for t in layer.tensors} == {TensorRole.LATENT}
        else layer
        for layer in cost.layers
    )
    return replace(cost, layers=layers)


def log_lines(pool: SglangPool) -> dict[str, list[str]]:
    """Return the lines that SGLang would log, by version."""
    older, newer = [], []
    if pool.state_slots is not None:
        line = (
            f"Mamba Cache is allocated. max_mamba_cache_size: {pool.state_slots},"
            f" conv_state size: {pool.conv_bytes / GIB:.2f}GB,"
            f" ssm_state size: {pool.state_bytes / GIB:.2f}GB"
        )
        older.append(line)
        newer.append(line)
    if pool.swa_tokens is not None and pool.full is not None:
        line = (
            "Use sliding window memory pool."
            f" full_layer_tokens={pool.max_total_num_tokens}, swa_layer_tokens={pool.swa_tokens}"
        )
        older.append(line)
        newer.append(line)
    for buffers in (pool.window, pool.full, pool.index, pool.draft):
        if buffers is not None:
            count = f"#tokens: {buffers.tokens}, {_sizes_text(buffers)}"
            older.append(f"KV Cache is allocated. {count}")
            dtype = pool.index_type_name if buffers is pool.index else pool.type_name
            newer.append(f"KV Cache is allocated. dtype: {dtype}, {count}")
    total = f"max_total_num_tokens={pool.max_total_num_tokens}"
    return {"older": [*older, total], "newer": [*newer, total]}


def _sizes_text(buffers: SglangBuffers) -> str:
    if buffers.value_bytes is None:
        return f"KV size: {buffers.key_bytes / GIB:.2f} GB"
    key, value = buffers.key_bytes / GIB, buffers.value_bytes / GIB
    return f"K size: {key:.2f} GB, V size: {value:.2f} GB"


def _refuse_unmodelled(cost: SequenceCost) -> None:
    refuse_compressed(cost, "sglang")
    for layer in cost.layers:
        if any(tensor.extent.span is Span.FIXED for tensor in layer.tensors):
            raise UsageError("--as sglang: layers with cross attention are not modelled")
        if any(tensor.extent.ranks > 1 for tensor in layer.tensors):
            raise UsageError("--as sglang: tokens divided among ranks are not modelled")


def _state_slots(per_sequence: int, budget: int, settings: SglangSettings) -> tuple[int, int]:
    """Return the slots for states, and the memory that is left."""
    if not per_sequence:
        return 0, budget
    slots = settings.state_slots
    if slots is None:
        share = int(budget * STATE_RATIO / (1 + STATE_RATIO))
        slots = max((share - per_sequence) // per_sequence, 0)
    return slots, max(budget - (slots + 1) * per_sequence, 0)


def _sizes(
    cost: SequenceCost, *, windowed: bool, draft: bool | None = None
) -> dict[TensorRole, int]:
    """Return the bytes of a token in the tensors that keep all tokens, or a window, by role.

    *draft* limits that to the layers that predict draft tokens, or to the others.
    """
    sizes: dict[TensorRole, int] = {}
    for layer in cost.layers:
        if draft not in (None, layer.draft):
            continue
        for tensor in layer.tensors:
            if tensor.extent.grows is not windowed and tensor.name != _UNPACKED_INDEX:
                # What a layer keeps beside K and V lies with K.
                role = TensorRole.VALUE if tensor.role is TensorRole.VALUE else TensorRole.KEY
                sizes[role] = sizes.get(role, 0) + layer.count * _shared(tensor)
    return sizes


def _index_bytes(cost: SequenceCost) -> int:
    """Return the bytes of a token in index keys beside K and V."""
    return sum(
        count * _shared(tensor)
        for count, tensor in cost.tensors()
        if tensor.name == _UNPACKED_INDEX
    )


def _index_buffers(cost: SequenceCost, tokens: int, page: int) -> SglangBuffers | None:
    size = _index_bytes(cost)
    return SglangBuffers(tokens, (tokens + page) * size, 0) if size else None


def _shared(tensor: TensorCost) -> int:
    return -(-tensor.bytes_per_token // tensor.extent.ranks)


def _tokens(memory: int, full: int, window: int, page: int) -> tuple[int, int | None]:
    """Return the tokens of all layers, and those of layers with a window."""
    if not full and not window:
        raise UsageError("--as sglang: no layer keeps anything per token")
    if not full:
        tokens = memory // window // page * page
        return tokens, tokens
    if not window:
        return memory // full // page * page, None
    tokens = int(memory / (full + SWA_RATIO * window)) // page * page
    return tokens, int(tokens * SWA_RATIO) // page * page


def _buffers(sizes: dict[TensorRole, int], tokens: int, page: int) -> SglangBuffers | None:
    if not sizes:
        return None
    value = sizes.get(TensorRole.VALUE)
    return SglangBuffers(
        tokens,
        (tokens + page) * sizes[TensorRole.KEY],
        None if value is None else (tokens + page) * value,
    )


@dataclass(frozen=True, slots=True)
class SglangResult:
    """What SGLang would make of the memory, and log.

    Attributes:
        model: The model's name.
        format_k: The element format.
        budget_bytes: The memory for the KV cache on each rank.
        pool: The pool.
        max_tokens: Tokens of a sequence.
        sequences: The requested sequences.
        sequences_fit: Whether the pool holds that many of the requested length at once; ``None`` with
            windows, because what they take depends on the steps.
        log_lines: The lines that it would log, by the versions that log so.
        rank: What is assumed of each rank; ``None`` without a budget.
    """

    model: str
    format_k: str
    budget_bytes: int
    pool: SglangPool
    max_tokens: int
    sequences: int
    sequences_fit: bool | None
    log_lines: Mapping[str, list[str]]
    rank: EngineRank | None = None


def as_sglang(question: Question, settings: SglangSettings) -> SglangResult:
    """Return what SGLang makes of *question*.

    Raises:
        UsageError: If it could not serve the model so, or there is no budget.
    """
    refuse_pooled_indexes(question, "sglang")
    budget = kv_bytes(question, "sglang")
    pool = sglang_pool(question.cost, question.formats, budget, settings)
    fits = None
    if pool.swa_tokens is None:
        tokens = -(-question.length // pool.page_tokens) * pool.page_tokens
        fits = question.sequences * tokens <= pool.max_total_num_tokens
        fits = fits and (pool.state_slots is None or question.sequences <= pool.state_slots)
    return SglangResult(
        question.geometry.title,
        question.formats.key.name,
        budget,
        pool,
        question.length,
        question.sequences,
        fits,
        log_lines(pool),
    )
