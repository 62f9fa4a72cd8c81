"""The document of ``vmtool kv-estimate``: what a model's KV cache costs, and what fits."""

from __future__ import annotations

import enum
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass, field

from vmtool.kv.geometry import Extent, LayerKind, Provenance  # noqa: TC001
from vmtool.kv.packing.capacity import Capacity  # noqa: TC001


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of one rank, and what is not for the KV cache.

    Attributes:
        total_bytes: All of it.
        origin: Where that number came from.
        weights_bytes: For the weights.
        reserve_bytes: For everything else.
        weights_origin: Where the size of the weights came from; empty if none are subtracted.
        kv_bytes: What is left for the KV cache; 0 if there is not enough for the rest.
    """

    total_bytes: int
    origin: str
    weights_bytes: int = 0
    reserve_bytes: int = 0
    weights_origin: str = ""
    kv_bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        left = self.total_bytes - self.weights_bytes - self.reserve_bytes
        object.__setattr__(self, "kv_bytes", max(left, 0))


class FormatOrigin(enum.Enum):
    """Why the cache has its element format."""

    GIVEN = "given"
    CHECKPOINT = "checkpoint"
    MODEL = "model"
    SERVED = "served"
    ASSUMED = "assumed"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Which model it is, and how ranks divide it.

    Attributes:
        name: What the user called it.
        architecture: The ``model_type`` or architecture it was resolved as.
        layers: Layers of the fullest rank.
        context_tokens: The longest sequence that the model was made for, if it is stated.
        tp: Ranks among which the heads are divided.
        pp: Stages into which the layers are divided.
        dcp: Ranks among which the tokens are divided.
        assumed: Whether the architecture is unknown, and taken for standard attention because all of
            its fields are standard.
        draft: The model that predicts draft tokens, ``MTP`` for layers of its own, or empty.
    """

    name: str
    architecture: str
    layers: int
    context_tokens: int | None
    tp: int
    pp: int
    dcp: int
    assumed: bool
    draft: str = ""


@dataclass(frozen=True, slots=True)
class SequenceBytes:
    """What one sequence costs on a rank, before any rounding to granules.

    Attributes:
        fixed_bytes: The part that does not depend on its length, from *saturation_tokens* on.
        slope_bytes: Bytes for every *slope_tokens* further tokens.
        slope_tokens: The number of tokens that makes them whole.
        saturation_tokens: The length from which every window is full.
        at_context_bytes: Bytes at the requested length.
        next_token_bytes: What one more token adds there.
        tokens_per_gib: Tokens of a long sequence in 1 GiB; ``None`` if it does not grow.
    """

    fixed_bytes: int
    slope_bytes: int
    slope_tokens: int
    saturation_tokens: int
    at_context_bytes: int
    next_token_bytes: int
    tokens_per_gib: int | None


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Layers that cost the same.

    Attributes:
        kind: How they remember.
        indices: Which layers of the model they are.
        bytes_per_token: Bytes that one keeps of each token that it holds.
        cross_attention_bytes: Bytes that one keeps of an encoder's output.
        cross_attention_tokens: Positions of that output.
        state_bytes: Bytes of the states of one.
        draft: Whether they only predict draft tokens.
    """

    kind: LayerKind
    indices: tuple[int, ...]
    bytes_per_token: int
    cross_attention_bytes: int
    cross_attention_tokens: int
    state_bytes: int
    draft: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """One tensor's tokens against one granule.

    Attributes:
        token_bytes: Bytes of one token in the tensor.
        granule_bytes: The granule.
        tokens: Whole tokens in a granule; 0 if a token is larger.
        tail_bytes: What is left of a granule behind them.
        granules_per_token: Granules that one token spans at least; 1 if it fits in one.
        tile_tokens: The fewest tokens whose bytes are a whole number of granules.
        tile_granules: That number.
    """

    token_bytes: int
    granule_bytes: int
    tokens: int
    tail_bytes: int
    granules_per_token: int
    tile_tokens: int
    tile_granules: int


@dataclass(frozen=True, slots=True)
class TensorResult:
    """One tensor of some layers against every granule.

    Attributes:
        name: ``k``, ``v``, ``latent``, ``index`` and so on.
        kind: How those layers remember what it holds.
        layers: How many layers have such a tensor.
        format: Its element format.
        heads: Rows for each token.
        row_bytes: Bytes of one row, scales included.
        bytes_per_token: Bytes for each token held.
        extent: Which tokens are held.
        granules: One for each granule.
        block_tiles: Whether blocks of the requested size tile the policies' granule.
        suggested_block_tokens: The smallest block that does.
    """

    name: str
    kind: LayerKind
    layers: int
    format: str
    heads: int
    row_bytes: int
    bytes_per_token: int
    extent: Extent
    granules: tuple[Fit, ...]
    block_tiles: bool
    suggested_block_tokens: int


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What one packing policy makes of the question.

    Attributes:
        impossible: Why it cannot lay this model out; if not empty, nothing else counts.
        floor_bytes: What a sequence of one token commits.
        reserved_bytes: The address space of a sequence that may grow to the requested length.
        used_bytes: The bytes of a sequence of that length.
        committed_bytes: What is committed for it.
        wasted_bytes: Bytes that are committed and not used.
        waste_ends_tokens: The length from which waste stays below the threshold; ``None`` if it never
            does.
        max_tokens: The longest single sequence that the budget holds, whatever the model's context;
            ``None`` without a budget, as the next two.
        max_sequences: How many sequences of the requested length it holds.
        max_tokens_each: The longest length of the requested number of sequences.
    """

    impossible: str = ""
    floor_bytes: int = 0
    reserved_bytes: int = 0
    used_bytes: int = 0
    committed_bytes: int = 0
    wasted_bytes: int = 0
    waste_ends_tokens: int | None = None
    max_tokens: Capacity | None = None
    max_sequences: Capacity | None = None
    max_tokens_each: Capacity | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What the requested sequences need.

    Attributes:
        sequences: How many.
        context_tokens: Tokens of each.
        rank_bytes: What the fullest rank commits for them.
        total_bytes: What all ranks together do.
        fits: Whether the budget holds them; ``None`` without one.
    """

    sequences: int
    context_tokens: int
    rank_bytes: int
    total_bytes: int
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the budget holds while each sequence reads a part of its prompt at once.

    Attributes:
        in_flight_tokens: Tokens of that part.
        max_tokens: The longest single sequence.
        max_sequences: Sequences of the requested length.
    """

    in_flight_tokens: int
    max_tokens: Capacity
    max_sequences: Capacity


@dataclass(frozen=True, slots=True)
class EstimateResult:
    """What a model's KV cache costs, and what fits.

    Attributes:
        model: The model.
        format_k: The element format of K, and of latents.
        format_v: That of V.
        format_summary: What they are, in a few words.
        format_origin: Why these.
        packed_format: How vLLM's FLASHMLA_SPARSE keeps it, if in another format; empty otherwise.
        budget: The memory of one rank, or ``None`` if none was given.
        context_tokens: The requested length of a sequence.
        context_assumed: Whether neither the model nor the user states it.
        sequences: How many sequences share the budget.
        granule_bytes: The granule that policies round to.
        block_tokens: Tokens in a block.
        in_flight_tokens: Tokens that one step may add before a window drops old ones.
        in_flight_counts: Whether a sequence takes more with tokens in flight.
        waste_threshold: Where waste counts as ended, as a part of what is committed, in per mille.
        sequence: What one sequence costs.
        layers: The layers, grouped by cost.
        tensors: Every tensor against every granule.
        policy: The name of the policy that the answer is about.
        policies: What each policy makes of the question: that one, or all.
        need: What the requested sequences need.
        prefill: What is needed while prompts are read, where that is more.
        provenance: Where each value came from; ``None`` if not requested.
    """

    model: ModelSummary
    format_k: str
    format_v: str
    format_summary: str
    format_origin: FormatOrigin
    packed_format: str
    budget: Budget | None
    context_tokens: int
    context_assumed: bool
    sequences: int
    granule_bytes: int
    block_tokens: int
    in_flight_tokens: int
    in_flight_counts: bool
    waste_threshold: int
    sequence: SequenceBytes
    layers: tuple[LayerBytes, ...]
    tensors: tuple[TensorResult, ...]
    policy: str
    policies: Mapping[str, PolicyResult]
    need: Need
    prefill: Prefill | None = None
    provenance: Mapping[str, Provenance] | None = None

    @property
    def answer(self) -> PolicyResult:
        """What the policy of the question makes of it."""
        return self.policies[self.policy]
