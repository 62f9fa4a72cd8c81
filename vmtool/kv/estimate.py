"""How the tokens of one tensor fall onto granules: how many fit, what is left, what tiles exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import isqrt, lcm
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.cost import SequenceCost
from vmtool.kv.geometry import (
    LayerKind,
    Provenance,
    Source,
    Span,
)
from vmtool.kv.packing import POLICIES, make_policy
from vmtool.kv.packing.capacity import (
    longest_sequence,
    most_sequences,
    waste_at,
    waste_ends,
)

if TYPE_CHECKING:
    from vmtool.kv.cost import TensorCost
    from vmtool.kv.formats import Formats
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.packing.capacity import Capacity, Waste
    from vmtool.kv.packing.ranges import Policy


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

    @property
    def tail(self) -> Fraction:
        """The tail as a part of the granule."""
        return Fraction(self.tail_bytes, self.granule_bytes)


def fit(token_bytes: int, granule_bytes: int) -> Fit:
    """Return how tokens of *token_bytes* fall onto granules of *granule_bytes*.

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
    """Return whether blocks laid end to end meet every granule's edge, or the reverse.

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
class Budget:
    """The memory that there is, and what is not for the KV cache.

    Attributes:
        total_bytes: All of it.
        origin: Where that number came from.
        weights_bytes: For the weights.
        reserve_bytes: For everything else.
    """

    total_bytes: int
    origin: str
    weights_bytes: int = 0
    reserve_bytes: int = 0

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; 0 if there is not enough for the rest."""
        return max(self.total_bytes - self.weights_bytes - self.reserve_bytes, 0)


@dataclass(frozen=True, slots=True)
class Question:
    """The question.

    Attributes:
        geometry: The model, or what one rank holds of it.
        formats: The element formats.
        format_origin: Why these.
        budget: The memory.
        granules: Granules for the table of tensors, ascending.
        granule: The granule that policies round to.
        policy: The name of the policy that the headline is about.
        block: Tokens in a block.
        context: The length of a sequence, or ``None`` for the model's.
        sequences: How many sequences share the budget, to find their longest length.
        in_flight: Tokens that one step may add before a window drops old ones.
        waste_threshold: Where waste counts as ended, as a part of what is committed.
        stride: Tokens that each head has room for where a layout has a stride, or ``None`` for
            that length.
    """

    geometry: ModelGeometry
    formats: Formats
    format_origin: str
    budget: Budget
    granules: tuple[int, ...]
    granule: int
    policy: str
    block: int
    context: int | None
    sequences: int
    in_flight: int
    waste_threshold: Fraction
    stride: int | None = None

    @property
    def length(self) -> int:
        """The length of a sequence."""
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
            reason = "its own choice: neither the model nor --context says one"
            facts["context"] = Provenance(self.length, Source.DEFAULT, "vmtool", reason)
        return facts


@dataclass(frozen=True, slots=True)
class TensorFit:
    """One tensor of some layers against every granule.

    Attributes:
        kind: How those layers remember what it holds.
        layers: How many layers have such a tensor.
        tensor: The tensor.
        fits: One for each granule.
        block: The smallest block that tiles the policies' granule; that of the question if it does.
        tiles: Whether the block of the question does.
    """

    kind: LayerKind
    layers: int
    tensor: TensorCost
    fits: tuple[Fit, ...]
    block: int
    tiles: bool


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What one policy makes of the question.

    Attributes:
        name: The policy.
        floor_bytes: What a sequence of one token commits.
        reserved_bytes: The address space of a sequence that may grow to that length.
        waste: The waste at that length.
        one: The longest single sequence that the budget holds, whatever the model's context.
        many: How many sequences of that length fit.
        longest: The longest length for the given number of sequences.
        policy: The policy itself.
        waste_threshold: The given share of waste.
    """

    name: str
    floor_bytes: int
    reserved_bytes: int
    waste: Waste
    one: Capacity
    many: Capacity
    longest: Capacity
    policy: Policy
    waste_threshold: Fraction

    @property
    def waste_ends(self) -> int | None:
        """The length from which waste stays below the threshold, or ``None``; it can take seconds."""
        return waste_ends(self.policy, self.waste_threshold)

    @property
    def tokens_at_once(self) -> int | None:
        """Tokens that the sequences of that length have together."""
        return None if self.many.fits is None else self.many.fits * self.waste.tokens


class Estimate:
    """The answers to one `Question`, each computed on first use.

    Attributes:
        question: The question.
        cost: The bytes of one sequence.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.cost = SequenceCost.of(
            question.geometry, question.formats, in_flight=question.in_flight
        )

    def policy(self, name: str) -> Policy:
        """Return the policy *name* for this model and granule.

        Raises:
            UsageError: If there is none, or it cannot lay this model out.
        """
        asked = self.question
        return make_policy(
            name,
            self.cost,
            asked.granule,
            block=asked.block,
            stride_tokens=asked.stride or asked.length,
        )

    @cached_property
    def in_flight_counts(self) -> bool:
        """Whether a sequence takes more with tokens in flight: where a window or chunk holds them."""
        length = self.question.length
        least, most = (
            replace(self.cost, in_flight=n).bytes_for(length) for n in (0, PREFILL_TOKENS)
        )
        return least < most

    @cached_property
    def prefill(self) -> Estimate | None:
        """The same while each sequence reads ``PREFILL_TOKENS`` of its prompt at once.

        ``None`` where that takes no more, or the question itself says how many are in flight.
        """
        if self.question.in_flight or not self.in_flight_counts:
            return None
        return Estimate(replace(self.question, in_flight=PREFILL_TOKENS))

    @cached_property
    def tensors(self) -> tuple[TensorFit, ...]:
        """Every tensor against every granule."""
        asked = self.question
        return tuple(
            TensorFit(
                LayerKind.CROSS if tensor.extent.span is Span.FIXED else layer.kind,
                layer.count,
                tensor,
                tuple(fit(tensor.bytes_per_token, granule) for granule in asked.granules),
                suggest_block(asked.block, tensor.bytes_per_token, asked.granule),
                tiles(asked.block, tensor.bytes_per_token, asked.granule),
            )
            for layer in self.cost.layers
            for tensor in layer.tensors
        )

    @cached_property
    def answer(self) -> PolicyAnswer:
        """What the policy of the question makes of it."""
        return self.answer_of(self.question.policy)

    def answers(self) -> dict[str, PolicyAnswer | UsageError]:
        """Return what each policy makes of the question, or why it cannot."""
        found: dict[str, PolicyAnswer | UsageError] = {}
        for name in POLICIES:
            try:
                chosen = name == self.question.policy
                found[name] = self.answer if chosen else self.answer_of(name)
            except UsageError as error:
                found[name] = error
        return found

    def answer_of(self, name: str) -> PolicyAnswer:
        """Return what the policy *name* makes of the question.

        Raises:
            UsageError: If there is none, or it cannot lay this model out.
        """
        asked = self.question
        policy = self.policy(name)
        available = asked.budget.kv_bytes
        return PolicyAnswer(
            name,
            floor_bytes=policy.committed_bytes(1),
            reserved_bytes=policy.reserved_bytes(asked.length),
            waste=waste_at(policy, asked.length),
            one=longest_sequence(policy, available),
            many=most_sequences(policy, available, asked.length),
            longest=longest_sequence(
                policy,
                available,
                sequences=asked.sequences,
                context=asked.geometry.context_tokens,
            ),
            policy=policy,
            waste_threshold=asked.waste_threshold,
        )


def estimate(
    model: str,
    budget_bytes: int,
    *,
    dtype: str | None = None,
    granule_bytes: int = 2 << 20,
    policy: str = "per-tensor",
    block_tokens: int = 16,
    context_tokens: int | None = None,
    sequences: int = 1,
) -> Estimate:
    """Return how many tokens of *model* fit into *budget_bytes* of KV memory.

    ``estimate("llama-3.1-8b", 16 << 30).answer`` has the tokens of one sequence and the sequences
    of the model's context.

    Args:
        model: A built-in name, a file, or a folder with one, as ``vmtool kv-estimate`` takes it.
        budget_bytes: Memory for the KV cache alone: weights are not subtracted.
        dtype: The element format of K and V; ``None``: the model's own.
        granule_bytes: What commits are rounded to.
        policy: How sequences are packed, such as ``paged``.
        block_tokens: Tokens in a block of a paged policy.
        context_tokens: The length of a sequence; ``None``: the model's context.
        sequences: How many share the budget to find the longest length.

    Raises:
        UsageError: If *model* is not known or cannot be read, or a name is wrong.
    """
    from vmtool.kv.formats import choose_formats  # noqa: PLC0415 - only this function reads files
    from vmtool.kv.sources import load  # noqa: PLC0415

    geometry = load(model)
    return Estimate(
        Question(
            geometry=geometry,
            formats=choose_formats(
                geometry.dtype, key=dtype, value=dtype, cache_dtype=geometry.cache_dtype
            ),
            format_origin="the model's own" if dtype is None else "as given",
            budget=Budget(budget_bytes, "as given"),
            granules=(granule_bytes,),
            granule=granule_bytes,
            policy=policy,
            block=block_tokens,
            context=context_tokens,
            sequences=sequences,
            in_flight=0,
            waste_threshold=Fraction(1, 10),
        )
    )
