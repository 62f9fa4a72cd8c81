"""What a simulation asks of the memory of sequences, however they are laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vmtool.replay.sequence import Sequence


class Store(Protocol):
    """The memory of sequences: :class:`RangeStore` or :class:`PoolStore`."""

    def admit(self, seq: Sequence, tokens: int) -> bool:
        """Give a new sequence memory for *tokens*; ``False``, and nothing done, if refused."""

    def grow(self, seq: Sequence, tokens: int, slack_ns: int) -> bool:
        """Give it memory for *tokens* in all; ``False``, and nothing done, if refused."""

    def drop(self, seq: Sequence) -> None:
        """Take all its memory."""

    def close(self) -> None:
        """Give back what was there without sequences."""

    @property
    def empty(self) -> bool:
        """Whether no sequence has anything."""
