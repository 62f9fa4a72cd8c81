"""How much fits (the exact inverse of a policy's cost), and from which length on waste is small."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from vmtool.kv.packing.policies import Policy

#: Beyond every budget of 64 bits: what still fits here does not grow.
_UNBOUNDED: Final = 1 << 64


class Limit(enum.Enum):
    """What keeps an answer from being larger."""

    BUDGET = "budget"
    CONTEXT = "model context"
    STRIDE = "stride"
    FLOOR = "floor"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many fit.

    Attributes:
        fits: Tokens or sequences; ``None`` if any number fits, because the cost does not grow.
        limit: What keeps it from being larger.
        committed_bytes: What they commit; where none fits, what the first would commit.
    """

    fits: int | None
    limit: Limit
    committed_bytes: int


def largest(cost: Callable[[int], int], budget: int, *, most: int | None = None) -> int | None:
    """Return the largest *n* from 1 with ``cost(n) <= budget``, or 0 if there is none.

    Args:
        cost: Bytes for *n*; must not fall as *n* rises.
        budget: Bytes that there are.
        most: The largest *n* that is allowed, or ``None``.

    Returns:
        *n*; or ``None`` if *most* is ``None`` and everything fits.
    """
    if most is not None and cost(most) <= budget:
        return most
    low, low_cost, high = 0, 0, 1
    while (high_cost := cost(high)) <= budget:
        if high >= _UNBOUNDED:
            return None
        # Costs are nearly straight lines, so one step comes close; twice that passes it.
        ahead = high * budget // high_cost if high_cost else _UNBOUNDED
        low, low_cost, high = high, high_cost, min(2 * max(high, ahead), _UNBOUNDED)
        if most is not None:
            high = min(high, most)  # which is known to be too much
    straight = True
    while high - low > 1:
        middle = (low + high) // 2
        if straight and high_cost > low_cost:
            # Where the line between the two meets the budget; a halving after each such step
            # bounds their number where the cost is anything but a line.
            middle = low + (high - low) * (budget - low_cost) // (high_cost - low_cost)
            middle = min(max(middle, low + 1), high - 1)
        straight = not straight
        middle_cost = cost(middle)
        if middle_cost <= budget:
            low, low_cost = middle, middle_cost
        else:
            high, high_cost = middle, middle_cost
    return low


def longest_sequence(
    policy: Policy, budget: int, *, sequences: int = 1, context: int | None = None
) -> Capacity:
    """Return the longest length that *sequences* can have at once within *budget*.

    Args:
        policy: How they are laid out.
        budget: Bytes for all of them.
        sequences: How many there are.
        context: The longest sequence of the model, or ``None``.

    Raises:
        UsageError: If a count is not positive.
    """
    _positive(sequences=sequences, context=context)
    bounds = [bound for bound in (context, policy.max_tokens) if bound is not None]
    most = min(bounds, default=None)
    count = largest(lambda n: policy.committed_bytes(n, sequences), budget, most=most)
    if count == 0:
        return Capacity(0, Limit.FLOOR, policy.committed_bytes(1, sequences))
    if count is None:
        return Capacity(None, Limit.NONE, policy.committed_bytes(_UNBOUNDED, sequences))
    limit = Limit.BUDGET
    if count == most:
        limit = Limit.CONTEXT if count == context else Limit.STRIDE
    return Capacity(count, limit, policy.committed_bytes(count, sequences))


def most_sequences(policy: Policy, budget: int, tokens: int) -> Capacity:
    """Return how many sequences of *tokens* each fit into *budget* at once.

    Raises:
        UsageError: If *tokens* is not positive or more than the layout can hold.
    """
    _positive(tokens=tokens)
    count = largest(lambda n: policy.committed_bytes(tokens, n), budget)
    if count is None:
        return Capacity(None, Limit.NONE, 0)
    limit = Limit.BUDGET if count else Limit.FLOOR
    return Capacity(count, limit, policy.committed_bytes(tokens, max(count, 1)))


def _positive(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} = {value}: it must be 1 or more")


# ---- waste ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waste:
    """What one sequence commits beyond its bytes.

    Attributes:
        tokens: The length of the sequence.
        used_bytes: The bytes of its tokens and states.
        committed_bytes: What is committed for it.
    """

    tokens: int
    used_bytes: int
    committed_bytes: int

    @property
    def wasted_bytes(self) -> int:
        """Bytes that are committed and not used."""
        return self.committed_bytes - self.used_bytes


def waste_at(policy: Policy, tokens: int) -> Waste:
    """Return the waste of one sequence of *tokens*."""
    return Waste(tokens, policy.cost.bytes_for(tokens), policy.committed_bytes(tokens))


def waste_ends(policy: Policy, threshold: Fraction) -> int | None:
    """Return the length from which waste stays below *threshold* of what is committed.

    Waste rises and falls with each granule, so this is not the first length at which it is low: it
    is the smallest from which no longer sequence wastes *threshold* or more, up to the longest that
    the layout can hold.

    Returns:
        The length, or ``None`` if there is none.

    Raises:
        UsageError: If *threshold* is not between 0 and 1.
    """
    if not 0 < threshold < 1:
        raise UsageError("a waste threshold must be above 0 % and below 100 %")

    part, whole = threshold.as_integer_ratio()

    def low(tokens: int) -> bool:
        waste = waste_at(policy, tokens)
        return waste.wasted_bytes * whole < part * waste.committed_bytes

    end = _always_low_from(policy, threshold)
    if end is None or not low(end):
        return None
    while True:
        # No length from *n* to *end* commits more than *end* or uses less than *n*: where even
        # that difference is low for *n*, all of them are. Such spans are left out whole.
        start = _first(_low_up_to(policy, end, part, whole), 0, end)
        if start == 1 or not low(start - 1):
            return start
        end = start - 1


def _low_up_to(policy: Policy, end: int, part: int, whole: int) -> Callable[[int], bool]:
    """Return whether all lengths from *n* to *end* are sure to waste less than *part* / *whole*."""
    most = policy.committed_bytes(end)

    def sure(n: int) -> bool:
        return (most - policy.cost.bytes_for(n)) * whole < part * policy.committed_bytes(n)

    return sure


def _first(holds: Callable[[int], bool], below: int, end: int) -> int:
    """Return the first length above *below* for which *holds*, as it does for all after it."""
    while end - below > 1:
        middle = (below + end) // 2
        if holds(middle):
            end = middle
        else:
            below = middle
    return end


def _always_low_from(policy: Policy, threshold: Fraction) -> int | None:
    """Return a length from which every one is low, as the policy's bound on waste has it."""
    most = policy.max_tokens
    if not policy.cost.slope:
        full = policy.cost.saturation_tokens
        return max(1, full if most is None else min(full, most))
    loss = policy.loss()
    if threshold <= loss.part:
        return None
    enough = loss.slack_bytes / (threshold - loss.part)
    below = largest(policy.committed_bytes, int(enough), most=most) or 0
    return below + 1 if most is None else min(below + 1, most)
