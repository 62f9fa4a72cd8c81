"""What writing and checking contents has in common on every kind of memory: its calls, its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.errors import CheckFailedError
from vmtool.units import MIB

if TYPE_CHECKING:
    from vmtool.results.check_outcomes import Value

#: The smallest page of any platform: every stretch of this size carries its own stamp.
STRIDE: Final = 4096
#: A granule is written piece by piece: on the host from one that stays in the cache, on a device in
#: pieces of this size at most, as the host holds one of them.
PIECE: Final = 2 * MIB
SPREAD: Final = 2654435761  # Knuth's multiplicative hash: consecutive cycles check far apart


class Contents(Protocol):
    """Writes what belongs in each granule of one buffer, and checks that it is there."""

    def write_and_time(self, first: int, count: int, generation: int) -> int:
        """Touch *count* freshly committed granules; return the nanoseconds that took.

        Raises:
            CorruptionError: If fresh memory is not as promised.
        """

    def check(self, first: int, count: int) -> int:
        """Check granules about to be released; return the nanoseconds that took.

        Raises:
            CorruptionError: If one does not hold what was written.
        """


@dataclass(frozen=True, slots=True)
class Corruption:
    """Where contents were not what they had to be.

    Attributes:
        check: ``zero`` (fresh memory), ``survival`` (what was written) or ``isolation`` (another
            granule's bytes).
        generation: The cycle that wrote it.
        offset: Of the first wrong byte, in the buffer.
        owner: Buffer, granule and cycle whose bytes are there instead, if they are some granule's.
    """

    check: str
    granule: int
    generation: int
    offset: int
    owner: tuple[int, int, int] | None = None

    def values(self) -> dict[str, Value]:
        """Return it as the values of a check."""
        found: dict[str, Value] = {
            "found": self.check,
            "granule": self.granule,
            "cycle": self.generation,
            "offset": self.offset,
        }
        if self.owner is not None:
            names = ("owner_buffer", "owner_granule", "owner_cycle")
            found.update(zip(names, self.owner, strict=True))
        return found

    def __str__(self) -> str:
        what = (
            "fresh memory is not zero" if self.check == "zero" else "what was written is not there"
        )
        text = f"granule {self.granule} (offset {self.offset}): {what}"
        if self.owner is not None:
            text += "; it contains the bytes of buffer {}, granule {}, cycle {}".format(*self.owner)
        return text


class CorruptionError(CheckFailedError):
    """Memory did not hold what was written to it, or was not zero when fresh.

    Attributes:
        corruption: Where and what.
    """

    def __init__(self, corruption: Corruption) -> None:
        super().__init__(
            str(corruption),
            hint="run again with --verify full and another --method; test the RAM if both fail",
        )
        self.corruption = corruption
