"""The order of the methods: rounds that alternate between them, for a number of cycles or a time."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.stress.plan import live_limit

if TYPE_CHECKING:
    from vmtool.results.stress import StressSettings

_WARM_UP_CYCLES: Final = 64
_WARM_UP_NS: Final = 100 * 10**6
#: A run by time has about this many rounds per method, of at most a second each.
_ROUNDS: Final = 12
_LONGEST_ROUND_NS: Final = 10**9
_SHORTEST_ROUND_NS: Final = 20 * 10**6
_ENDLESS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Round:
    """One method's turn.

    Attributes:
        method_index: Whose.
        commits: How many each thread makes at most.
        length_ns: How long it takes at most, the release of what is committed not counted.
        warm_up: Whether its samples are dropped.
    """

    method_index: int
    commits: int
    length_ns: int
    warm_up: bool = False


class Schedule:
    """Hands out rounds until the cycles or the time are used up.

    The order of the methods turns with each lap, so that none always follows the same other.
    """

    def __init__(self, settings: StressSettings) -> None:
        self._methods = len(settings.methods)
        self._cycles = settings.cycles
        self._duration = settings.duration_ns
        live = live_limit(settings)
        self._warm_up = min(_WARM_UP_CYCLES, live)
        # A round by cycles grows to the limit twice, but a short run still alternates.
        cycles = settings.cycles or 1
        self._per_round = max(min(2 * live, cycles // 4), 1)
        share = (settings.duration_ns or 0) // (self._methods * _ROUNDS)
        self._round_ns = min(max(share, _SHORTEST_ROUND_NS), _LONGEST_ROUND_NS)
        self._lap = -1  # the warm-up
        self._turn = 0
        self._deadline = 0

    def next(self) -> Round | None:
        """Return the next round, or ``None`` after the last."""
        if self._turn == self._methods:
            self._turn = 0
            self._lap += 1
            if self._lap == 0:
                self._deadline = perf_counter_ns() + (self._duration or 0)
        index = (self._turn + max(self._lap, 0)) % self._methods
        self._turn += 1
        if self._lap < 0:
            return Round(index, self._warm_up, _WARM_UP_NS, warm_up=True)
        # Only between laps: every method has had as many rounds.
        late = self._duration is not None and perf_counter_ns() >= self._deadline
        if self._turn == 1 and late:
            return None
        if self._cycles is None:
            return Round(index, _ENDLESS, self._round_ns)
        left = self._cycles - self._lap * self._per_round
        # With both, whichever comes first.
        length_ns = _ENDLESS
        if self._duration is not None:
            length_ns = max(self._deadline - perf_counter_ns(), 1)
        return Round(index, min(left, self._per_round), length_ns) if left > 0 else None
