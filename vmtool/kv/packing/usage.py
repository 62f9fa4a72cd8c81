"""The bytes of a sequence's tokens at a length, and their sum over many lengths, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.kv.packing.growth import Held

if TYPE_CHECKING:
    from vmtool.kv.cost import SequenceCost


class LiveBytes:
    """The bytes that *cost* has for a length, fast, and exact as :meth:`SequenceCost.bytes_for`.

    Args:
        cost: What a sequence costs.
    """

    __slots__ = ("_fixed", "_slope", "_steps")

    def __init__(self, cost: SequenceCost) -> None:
        self._fixed = sum(layer.count * layer.state_bytes for layer in cost.layers)
        self._slope = 0  # of what holds every token
        steps: dict[Held, int] = {}
        for count, tensor in cost.tensors():
            held = Held.of(tensor.extent, cost.in_flight)
            nbytes = count * tensor.bytes_per_token
            if held.fixed is not None:
                self._fixed += nbytes * held.fixed
            elif held == Held():
                self._slope += nbytes
            else:
                steps[held] = steps.get(held, 0) + nbytes
        self._steps = tuple(steps.items())

    def at(self, tokens: int) -> int:
        """Return the bytes of a sequence of *tokens*."""
        found = self._fixed + self._slope * tokens
        for held, nbytes in self._steps:
            found += nbytes * held.at(tokens)
        return found

    def over(self, tokens: int, more: int) -> int:
        """Return the sum of the bytes at the *more* lengths after *tokens*."""
        end = tokens + more
        found = self._fixed * more + self._slope * (more * (tokens + end + 1) // 2)
        for held, nbytes in self._steps:
            found += nbytes * (_sum(held, end) - _sum(held, tokens))
        return found


def _sum(held: Held, tokens: int) -> int:
    """Return the entries held at every length from 1 to *tokens* together."""
    beyond = 0
    if held.cap is not None and tokens > held.cap:
        beyond = (tokens - held.cap) * -(-held.cap // held.every)
        tokens = held.cap
    whole, rest = divmod(tokens, held.every)
    return held.every * whole * (whole + 1) // 2 + rest * (whole + 1) + beyond
