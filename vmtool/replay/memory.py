"""What a replay asks of memory: reserve, commit, release, unreserve, by arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Bytes of a reservation: where they begin, and how many.
Piece: TypeAlias = tuple[int, int]


class Memory(Protocol):
    """Carries out what the simulation decides. An arena is one reservation, known by its number."""

    def reserve(self, arena: int, nbytes: int) -> None:
        """Reserve *nbytes* of addresses."""

    def commit(self, arena: int, spans: Sequence[Piece], slack_ns: int | None) -> None:
        """Commit *spans*, each a pair of offset and length.

        Args:
            arena: Where.
            spans: What.
            slack_ns: How long the decode step can go on without them; ``None`` at an admission.
        """

    def release(self, arena: int, spans: Sequence[Piece]) -> None:
        """Release *spans*."""

    def unreserve(self, arena: int) -> None:
        """Give the addresses back; nothing is committed there any more."""

    def trim(self) -> None:
        """Give back what is kept of released memory."""

    def check(self, committed: int, pooled: int) -> None:
        """Compare what is really charged with what the simulation has.

        Raises:
            CheckFailedError: If they differ.
        """
