"""The rules of a replay: the plan of the simulation, and the settings that its result records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.traces.request_formats import PREFIX_TOKENS
from vmtool.results.kv_replay import OnRefusal, ReplaySettings

if TYPE_CHECKING:
    from vmtool.kv.packing.policies import Policy

#: Slower than this a token takes minutes, faster is faster than a clock tick.
_RATES: Final = (0.01, 1e9)


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules of one replay.

    Attributes:
        policy: How sequences are laid out; it knows the model's cost and the granule.
        budget_bytes: What may be committed, with what the pool keeps.
        max_tokens: The longest sequence; longer requests are rejected as they arrive.
        max_sequences: How many may be admitted at once.
        prefill_ns: Nanoseconds for each token of a prompt, as a fraction: numerator, denominator.
        step_ns: Nanoseconds of one decode step of a sequence.
        on_refusal: What happens when memory is refused.
        commit_ahead: Tokens for which memory is committed before they are due.
        retain_bytes: Released memory that is kept for the next commit.
        share: Whether sequences share the whole granules or blocks of equal prefixes.
        prefix_cache: Whether these are kept, while there is room, when no sequence has them any
            more, and tokens that are there are not prefilled.
        prefix_tokens: Tokens of each block of a prompt that a trace names.
    """

    policy: Policy
    budget_bytes: int
    max_tokens: int
    max_sequences: int = 256
    prefill_ns: tuple[int, int] = (10**9, 8000)
    step_ns: int = 33_333_333
    on_refusal: OnRefusal = OnRefusal.PREEMPT
    commit_ahead: int = 0
    retain_bytes: int = 0
    share: bool = True
    prefix_cache: bool = False
    prefix_tokens: int = PREFIX_TOKENS

    def prefill(self, tokens: int) -> int:
        """Return the nanoseconds of a prompt of *tokens*, rounded up."""
        numerator, denominator = self.prefill_ns
        return -(-tokens * numerator // denominator)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one replay, for people and for the simulation.

    Attributes:
        plan: For the simulation.
        settings: For the result.
    """

    plan: Plan
    settings: ReplaySettings


def step_ns(rate: float) -> int:
    """Return the whole nanoseconds of a step at *rate* tokens a second.

    Raises:
        UsageError: If the rate is out of range.
    """
    return round(1e9 / _checked(rate))


def prefill_ns(rate: float) -> tuple[int, int]:
    """Return the nanoseconds for a prompt's token at *rate* as a fraction.

    Raises:
        UsageError: If the rate is out of range.
    """
    numerator, denominator = _checked(rate).as_integer_ratio()
    return 10**9 * denominator, numerator


def _checked(rate: float) -> float:
    low, high = _RATES
    if not low <= rate <= high:  # not true of NaN either
        raise UsageError(f"{rate} tokens a second: it must be from {low} to {high:.0f}")
    return rate
