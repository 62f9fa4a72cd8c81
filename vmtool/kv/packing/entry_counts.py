"""How many entries a tensor holds for a length, in closed form, and the lengths for a given number.

A packing policy says how many bytes a length commits. A replay also needs how far a sequence can grow
before the next granule, so that it can go from one to the next and not from token to token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.kv.geometry import Span

if TYPE_CHECKING:
    from vmtool.kv.geometry import Extent


@dataclass(frozen=True, slots=True)
class EntryCount:
    """How many entries a tensor holds for a length: ``ceil(min(tokens, cap) / every)``.

    Attributes:
        cap: Tokens beyond which nothing is added; ``None`` where each token counts.
        every: Tokens for each entry.
        fixed: Entries whatever the length; the other two do not matter then.
    """

    cap: int | None = None
    every: int = 1
    fixed: int | None = None

    @classmethod
    def of(cls, extent: Extent, in_flight: int) -> EntryCount:
        """Return the closed form of ``extent.tokens_held(n, in_flight)``."""
        if extent.span is Span.FIXED:
            return cls(fixed=extent.size)
        every = extent.ratio * extent.ranks
        if extent.span is Span.WINDOW:
            return cls(extent.size - 1 + max(in_flight, 1), every)
        if extent.span is Span.CHUNK:
            return cls(extent.size + in_flight, every)
        return cls(None, every)

    def at(self, tokens: int) -> int:
        """Return the entries for *tokens*."""
        if self.fixed is not None:
            return self.fixed
        if self.cap is not None and tokens > self.cap:
            tokens = self.cap
        return -(-tokens // self.every)

    def over(self, tokens: int, more: int) -> int:
        """Return the sum of the entries for the *more* lengths after *tokens*."""
        return self._until(tokens + more) - self._until(tokens)

    def _until(self, tokens: int) -> int:
        """Return the sum of the entries for every length from 1 to *tokens*."""
        if self.fixed is not None:
            return self.fixed * tokens
        beyond = 0
        if self.cap is not None and tokens > self.cap:
            beyond = (tokens - self.cap) * -(-self.cap // self.every)
            tokens = self.cap
        whole, rest = divmod(tokens, self.every)
        return self.every * whole * (whole + 1) // 2 + rest * (whole + 1) + beyond

    def longest(self, entries: int) -> int | None:
        """Return the largest length that needs no more than *entries*; ``None`` for any length."""
        if self.fixed is not None or (
            self.cap is not None and entries >= -(-self.cap // self.every)
        ):
            return None
        return entries * self.every

    def period(self, entries: int) -> int | None:
        """Return the tokens after which there are always *entries* more; ``None`` if that varies."""
        return entries * self.every if self.shared else None

    @property
    def shared(self) -> bool:
        """Whether what early tokens filled stays as it is, so that others can read it too."""
        return self.fixed is None and self.cap is None


#: The entries of a range that has none.
NO_ENTRIES: Final = EntryCount(fixed=0)
