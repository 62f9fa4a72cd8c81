"""The answer of ``vmtool kv-estimate``: the cost of a sequence, and what granules and a budget hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isqrt, lcm
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.element_formats import choose_formats, stored_formats
from vmtool.kv.estimate_result import (
    Budget,
    EstimateResult,
    Fit,
    FormatOrigin,
    LayerBytes,
    ModelSummary,
    Need,
    PolicyResult,
    Prefill,
    SequenceBytes,
    TensorResult,
)
from vmtool.kv.geometry import LayerKind, Provenance, Source, Span
from vmtool.kv.packing.capacity import longest_sequence, most_sequences, waste_at, waste_ends
from vmtool.kv.packing.policies import POLICIES, make_policy
from vmtool.kv.sequence_cost import SequenceCost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vmtool.kv.element_formats import Formats
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.packing.capacity import Capacity
    from vmtool.kv.packing.policies import Policy
    from vmtool.kv.sequence_cost import LayerCost

_GIB: Final = 1 << 30


def fit(token_bytes: int, granule_bytes: int) -> Fit:
    """Return how tokens of *token_bytes* are laid out in granules of *granule_bytes*.

    Raises:
        UsageError: If either is not positive.
    """
    if token_bytes < 1 or granule_bytes < 1:
        raise UsageError(
            f"{token_bytes} B per token on granules of {granule_bytes} B: not positive"
        )
    tile = lcm(token_bytes, granule_bytes)
    return Fit(
        token_bytes,
        granule_bytes,
        *divmod(granule_bytes, token_bytes),
        granules_per_token=-(-token_bytes // granule_bytes),
        tile_tokens=tile // token_bytes,
        tile_granules=tile // granule_bytes,
    )


def tiles(block_tokens: int, token_bytes: int, granule_bytes: int) -> bool:
    """Return whether contiguous blocks align with every granule, or granules with every block.

    True if a block is a whole number of granules or a granule a whole number of blocks: then no
    block shares a granule's edge with another.
    """
    block_bytes = block_tokens * token_bytes
    return granule_bytes % block_bytes == 0 or block_bytes % granule_bytes == 0


def suggest_block(block_tokens: int, token_bytes: int, granule_bytes: int) -> int:
    """Return the smallest block of at least *block_tokens* that tiles the granule.

    A block of 784 tokens of 4096 bytes becomes 1024 on 2 MiB granules: 4 MiB a block.
    """
    tile = fit(token_bytes, granule_bytes).tile_tokens
    whole_granules = -(-block_tokens // tile) * tile
    if granule_bytes % token_bytes:
        return whole_granules
    # The token divides the granule, so a smaller block may: any divisor of the tokens per granule.
    divisors = (d for k in range(1, isqrt(tile) + 1) if tile % k == 0 for d in (k, tile // k))
    return min((d for d in divisors if d >= block_tokens), default=whole_granules)


#: The default length, when neither a flag nor the model says one.
DEFAULT_CONTEXT: Final = 8192
#: Tokens of a prompt that an engine may read in one step: vLLM's ``max_num_batched_tokens`` when it
#: serves on a large GPU.
PREFILL_TOKENS: Final = 8192


@dataclass(frozen=True, slots=True)
class Question:
    """The question.

    Attributes:
        geometry: The model, or what one rank holds of it.
        formats: The element formats.
        format_origin: Why these.
        budget: The memory of one rank; ``None`` to compute only the cost.
        granules: Granules for the table of tensors, ascending.
        granule: The granule that policies round to.
        policy: The name of the policy that the answer is about.
        block: Tokens in a block.
        context: The requested length of a sequence, or ``None`` for the model's.
        sequences: How many sequences share the budget, to find their longest length.
        in_flight: Tokens that one step may add before a window drops old ones.
        waste_threshold: Where waste counts as ended, as a part of what is committed.
        stride: Tokens that each head has room for where a layout has a stride, or ``None`` for
            the requested length.
        whole: The model as the ranks hold it that divide its heads, before stages divide its layers;
            ``None`` if that is *geometry*.
    """

    geometry: ModelGeometry
    formats: Formats
    format_origin: FormatOrigin
    budget: Budget | None = None
    granules: tuple[int, ...] = (2 << 20,)
    granule: int = 2 << 20
    policy: str = "per-tensor"
    block: int = 16
    context: int | None = None
    sequences: int = 1
    in_flight: int = 0
    waste_threshold: Fraction = Fraction(1, 10)
    stride: int | None = None
    whole: ModelGeometry | None = None

    @property
    def length(self) -> int:
        """The requested length of a sequence."""
        return self.context or self.geometry.context_tokens or DEFAULT_CONTEXT

    @property
    def length_is_assumed(self) -> bool:
        """Whether nothing states that length."""
        return not (self.context or self.geometry.context_tokens)

    @property
    def provenance(self) -> dict[str, Provenance]:
        """Where each value of the model came from, and the length if it is vmtool's own."""
        facts = dict(self.geometry.provenance)
        if self.length_is_assumed:
            reason = "its own choice: neither the model nor --context states one"
            facts["context"] = Provenance(self.length, Source.DEFAULT, "vmtool", reason)
        return facts

    @property
    def cost(self) -> SequenceCost:
        """The bytes of one sequence."""
        return SequenceCost.of(self.geometry, self.formats, in_flight=self.in_flight)


def estimate(
    model: str,
    budget: int | None = None,
    *,
    weights: int = 0,
    context: int | None = None,
    sequences: int = 1,
    dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    granule: int = 2 << 20,
    policy: str = "per-tensor",
    block: int = 16,
    in_flight: int = 0,
) -> EstimateResult:
    """Return what the KV cache of *model* costs, and what *budget* holds.

    Args:
        model: A built-in name, a file, or a folder with one.
        budget: Bytes of one rank, or ``None`` to compute only the cost.
        weights: Bytes of one rank's weights, which are subtracted.
        context: Tokens of a sequence; ``None`` is the model's own longest.
        sequences: How many sequences share the budget.
        dtype: The element format of K and V, such as ``fp8``; ``None`` is the model's own.
        tp: Ranks among which the heads are divided.
        pp: Stages into which the layers are divided.
        dcp: Ranks among which the tokens are divided.
        granule: The granule in bytes that packing rounds to.
        policy: The packing policy, one of ``vmtool.kv.packing.policies.POLICIES``.
        block: Tokens in a block.
        in_flight: Tokens that one step may add before a window drops old ones.

    Raises:
        UsageError: If a value is out of range, or the model cannot be divided or stored so.
        InputError: If the model's file is not understood.
    """
    from vmtool.kv.sources.model_lookup import load  # noqa: PLC0415 - rarely needed

    sizes = {"budget": budget, "context": context, "sequences": sequences, "tp": tp, "pp": pp}
    sizes |= {"dcp": dcp, "granule": granule, "block": block}
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise UsageError(f"{name} is {size}; it must be at least 1")
    if weights < 0 or in_flight < 0:
        raise UsageError("weights and in_flight cannot be negative")
    geometry = load(model)
    formats = choose_formats(
        geometry.dtype, key=dtype, value=dtype, cache_dtype=geometry.cache_dtype
    )
    question = Question(
        geometry=fullest_rank(
            geometry,
            formats,
            context or geometry.context_tokens or DEFAULT_CONTEXT,
            tp=tp,
            pp=pp,
            dcp=dcp,
            in_flight=in_flight,
        ),
        formats=formats,
        format_origin=why_format(geometry, dtype, geometry.cache_dtype),
        budget=None if budget is None else Budget(budget, "given", weights),
        granules=(granule,),
        granule=granule,
        policy=policy,
        block=block,
        context=context,
        sequences=sequences,
        in_flight=in_flight,
        whole=geometry.shard(tp=tp, dcp=dcp),
    )
    return answer_question(question)


def fullest_rank(
    model: ModelGeometry,
    formats: Formats,
    length: int,
    *,
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    stages: tuple[int, ...] | None = None,
    in_flight: int = 0,
) -> ModelGeometry:
    """Return what the rank of *model* holds that has most bytes of a sequence of *length* tokens.

    Which stage that is depends on the length: layers with a window or states hold most of a short
    sequence, those that keep every token most of a long one.

    Raises:
        UsageError: If the model cannot be divided so, or a format cannot store its rows.
    """

    def weigh(stage: ModelGeometry) -> int:
        return SequenceCost.of(stage, formats, in_flight=in_flight).bytes_for(length)

    return model.shard(tp=tp, pp=pp, dcp=dcp, stages=stages, weigh=weigh)


def why_format(model: ModelGeometry, named: str | None, cache_dtype: str | None) -> FormatOrigin:
    """Return why the cache has its format; `choose_formats` has the sources."""
    if named is not None:
        return FormatOrigin.GIVEN
    if cache_dtype is not None:
        return FormatOrigin.CHECKPOINT
    if model.dtype in ("bf16", "fp16"):
        return FormatOrigin.MODEL
    return FormatOrigin.SERVED if model.dtype is not None else FormatOrigin.ASSUMED


def answer_question(
    question: Question, *, policies: Iterable[str] = (), explain: bool = False
) -> EstimateResult:
    """Return the answer to *question*.

    Args:
        question: The question.
        policies: The policies that are shown beside that of the question.
        explain: Whether to say where each value came from.

    Raises:
        UsageError: If a format cannot store the model's rows, or the question's policy cannot lay
            them out.
    """
    cost = question.cost
    chosen = answer_of(question, cost, question.policy)
    found = {name: _try_answer(question, cost, name) for name in POLICIES if name in set(policies)}
    found[question.policy] = chosen
    in_flight_counts = _in_flight_counts(cost, question.length)
    return EstimateResult(
        model=_summary(question.geometry),
        format_k=question.formats.key.name,
        format_v=question.formats.value.name,
        format_summary=_format_summary(question.formats),
        format_origin=question.format_origin,
        packed_format=_packed_format(question),
        budget=question.budget,
        context_tokens=question.length,
        context_assumed=question.length_is_assumed,
        sequences=question.sequences,
        granule_bytes=question.granule,
        block_tokens=question.block,
        in_flight_tokens=question.in_flight,
        in_flight_counts=in_flight_counts,
        waste_threshold=int(question.waste_threshold * 1000),
        sequence=_sequence(cost, question.length),
        layers=tuple(_layer(layer) for layer in cost.layers),
        tensors=_tensors(question, cost),
        policy=question.policy,
        policies={name: found[name] for name in POLICIES if name in found},
        need=need_of(question, cost),
        prefill=_prefill(question) if in_flight_counts else None,
        provenance=question.provenance if explain else None,
    )


def answer_of(question: Question, cost: SequenceCost, name: str) -> PolicyResult:
    """Return what the policy *name* makes of *question*.

    Raises:
        UsageError: If there is none, or it cannot lay this model out.
    """
    policy = _policy(question, cost, name)
    waste = waste_at(policy, question.length)
    result = PolicyResult(
        floor_bytes=policy.committed_bytes(1),
        reserved_bytes=policy.reserved_bytes(question.length),
        used_bytes=waste.used_bytes,
        committed_bytes=waste.committed_bytes,
        wasted_bytes=waste.wasted_bytes,
        waste_ends_tokens=waste_ends(policy, question.waste_threshold),
    )
    if question.budget is None:
        return result
    available = question.budget.kv_bytes
    policies = [policy, *_policies_of_stages(question, name)]
    return replace(
        result,
        max_tokens=_least(longest_sequence(each, available) for each in policies),
        max_sequences=_least(most_sequences(each, available, question.length) for each in policies),
        max_tokens_each=_least(
            longest_sequence(
                each,
                available,
                sequences=question.sequences,
                context=question.geometry.context_tokens,
            )
            for each in policies
        ),
    )


def _policies_of_stages(question: Question, name: str) -> list[Policy]:
    """Return the packing of each stage: that which is fullest at one length is not so at another."""
    stages = [replace(question, geometry=stage) for stage in question.geometry.stages]
    return [_policy(stage, stage.cost, name) for stage in stages]


def _least(capacities: Iterable[Capacity]) -> Capacity:
    return min(capacities, key=lambda one: inf if one.fits is None else one.fits)


def need_of(question: Question, cost: SequenceCost) -> Need:
    """Return what the requested sequences need of each rank, and of all."""
    geometry = question.geometry
    policy = _policy(question, cost, question.policy)
    rank = policy.committed_bytes(question.length, question.sequences)
    total = rank
    if question.whole is not None:
        whole = replace(question, geometry=question.whole).cost
        policy = _policy(question, whole, question.policy)
        total = geometry.tp * policy.committed_bytes(question.length, question.sequences)
    budget = question.budget
    fits = None if budget is None else rank <= budget.kv_bytes
    return Need(question.sequences, question.length, rank, total, fits)


def _try_answer(question: Question, cost: SequenceCost, name: str) -> PolicyResult:
    try:
        return answer_of(question, cost, name)
    except UsageError as error:
        return PolicyResult(impossible=str(error))


def _policy(question: Question, cost: SequenceCost, name: str) -> Policy:
    return make_policy(
        name,
        cost,
        question.granule,
        block=question.block,
        stride_tokens=question.stride or question.length,
    )


def _summary(geometry: ModelGeometry) -> ModelSummary:
    return ModelSummary(
        geometry.name,
        geometry.architecture,
        len(geometry.layers),
        geometry.context_tokens,
        geometry.tp,
        geometry.pp,
        geometry.dcp,
        geometry.assumed,
        geometry.draft,
    )


def _format_summary(formats: Formats) -> str:
    if formats.key == formats.value:
        return formats.key.summary
    return f"{formats.key.summary}; {formats.value.summary}"


def _packed_format(question: Question) -> str:
    packed = stored_formats(question.geometry, question.formats).key.name
    return packed if packed != question.formats.key.name else ""


def _sequence(cost: SequenceCost, length: int) -> SequenceBytes:
    slope = cost.slope
    return SequenceBytes(
        fixed_bytes=cost.fixed_bytes,
        slope_bytes=slope.numerator,
        slope_tokens=slope.denominator,
        saturation_tokens=cost.saturation_tokens,
        at_context_bytes=cost.bytes_for(length),
        next_token_bytes=cost.marginal_bytes(length),
        tokens_per_gib=int(_GIB / slope) if slope else None,
    )


def _layer(layer: LayerCost) -> LayerBytes:
    positions = {t.extent.size for t in layer.tensors if t.extent.span is Span.FIXED}
    return LayerBytes(
        layer.kind,
        layer.indices,
        layer.bytes_per_token,
        layer.cross_bytes,
        max(positions, default=0),
        layer.state_bytes,
        layer.draft,
    )


def _tensors(question: Question, cost: SequenceCost) -> tuple[TensorResult, ...]:
    block, granule = question.block, question.granule
    return tuple(
        TensorResult(
            name=tensor.name,
            kind=LayerKind.CROSS if tensor.extent.span is Span.FIXED else layer.kind,
            layers=layer.count,
            format=tensor.format_name,
            heads=tensor.heads,
            row_bytes=tensor.row_bytes,
            bytes_per_token=tensor.bytes_per_token,
            extent=tensor.extent,
            granules=tuple(fit(tensor.bytes_per_token, size) for size in question.granules),
            block_tiles=tiles(block, tensor.bytes_per_token, granule),
            suggested_block_tokens=suggest_block(block, tensor.bytes_per_token, granule),
        )
        for layer in cost.layers
        for tensor in layer.tensors
    )


def _in_flight_counts(cost: SequenceCost, length: int) -> bool:
    """Return whether a sequence takes more with tokens in flight, as a window or chunk does."""
    least, most = (replace(cost, in_flight=n).bytes_for(length) for n in (0, PREFILL_TOKENS))
    return least < most


def _prefill(question: Question) -> Prefill | None:
    """Return what fits while each sequence reads ``PREFILL_TOKENS`` of its prompt at once.

    ``None`` where the question itself says how many are in flight, or has no budget.
    """
    if question.in_flight or question.budget is None:
        return None
    prefill = replace(question, in_flight=PREFILL_TOKENS)
    policies = [
        _policy(prefill, prefill.cost, prefill.policy),
        *_policies_of_stages(prefill, prefill.policy),
    ]
    available = question.budget.kv_bytes
    return Prefill(
        PREFILL_TOKENS,
        _least(longest_sequence(each, available) for each in policies),
        _least(most_sequences(each, available, prefill.length) for each in policies),
    )
