"""What a growing buffer must hold: its own number at the start of every 4 KiB, zero where new."""

from __future__ import annotations

from array import array
from typing import Final

from vmtool.units import KIB, MIB

#: A stamp stands at each multiple of this: the smallest page of any platform.
STRIDE: Final = 4 * KIB
_WORD: Final = 8
_STRIDE_WORDS: Final = STRIDE // _WORD
#: Checked in each step; the whole is checked at every turn from growing to shrinking and back.
_SAMPLE: Final = 1024
_CHUNK: Final = MIB
# Stamps must not be small numbers, which other data often is.
_SALT: Final = 0x5EED_0000_0000_0001


class Stamps:
    """Writes and checks the stamps of one buffer through a view of its length.

    Attributes:
        checked: How many stamps were compared so far.
    """

    def __init__(self, capacity: int) -> None:
        self._expected = memoryview(array("Q", range(_SALT, _SALT + _count(capacity))))
        self._zeros = bytes(_CHUNK)
        self._turn = 0
        self.checked = 0

    def write(self, view: memoryview, length_before: int) -> None:
        """Stamp what lies between *length_before* and the length of *view*."""
        first, last = _count(length_before), _count(len(view))
        if first < last:
            words = _words(view)
            words[first * _STRIDE_WORDS :: _STRIDE_WORDS][: last - first] = self._expected[
                first:last
            ]

    def wrong(self, view: memoryview, *, everything: bool) -> int | None:
        """Return the offset of a stamp that is not as it was written, or ``None``.

        Args:
            view: The length of the buffer.
            everything: Compare all stamps, and not 1,024 that differ from call to call.
        """
        count = _count(len(view))
        if not count:
            return None
        stride = 1 if everything else max(count // _SAMPLE, 1)
        first = 0 if everything else self._turn % stride
        self._turn += 1
        found = _words(view)[first * _STRIDE_WORDS :: _STRIDE_WORDS * stride]
        expected = self._expected[first:count:stride]
        found = found[: len(expected)]
        self.checked += len(expected)
        if found == expected:
            return None
        at = next(
            i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]
        )
        return (first + at * stride) * STRIDE

    def not_zero(self, view: memoryview, start: int) -> int | None:
        """Return the offset of a byte that is not zero from *start* on, or ``None``."""
        for at in range(start, len(view), _CHUNK):
            piece = view[at : at + _CHUNK].tobytes()
            if piece != self._zeros[: len(piece)]:
                return at + next(i for i, byte in enumerate(piece) if byte)
        return None


def _count(length: int) -> int:
    """Return how many stamps fit whole into *length* bytes."""
    return max((length - _WORD) // STRIDE + 1, 0)


def _words(view: memoryview) -> memoryview:
    return view[: len(view) // _WORD * _WORD].cast("Q")
