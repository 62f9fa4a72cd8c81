"""The contents of granules in host memory: written at touch and checked at release.

What a device has in common with that, its calls and its error, is here too.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from random import Random
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.errors import CheckFailedError
from vmtool.memory.addresses import Block, copy, differs, window
from vmtool.units import MIB

if TYPE_CHECKING:
    from vmtool.results.check_outcomes import Value

#: The smallest page of any platform: every stretch of this size carries its own stamp.
STRIDE: Final = 4096
#: A granule is written piece by piece: on the host from one that stays in the cache, on a device in
#: pieces of this size at most, as the host holds one of them.
PIECE: Final = 2 * MIB
SPREAD: Final = 2654435761  # Knuth's multiplicative hash: consecutive cycles check far apart
_STRIDE_WORDS: Final = STRIDE // 8
# The prepared piece is used from one of this many strides on, so that stamps are not the only
# difference between two granules. A prime: stamps that differ in one bit never share a place.
_ROTATIONS: Final = 61
_IDENTITY_BITS: Final = 48  # of the granule; the buffer is above


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


class FillData:
    """What one thread writes from and compares with; its buffers share it.

    Attributes:
        piece_bytes: A granule is written in pieces of this size.
        pattern: A piece of pseudo-random bytes, and more to begin at another place in it.
        zeros: A piece of zeros.
    """

    def __init__(self, granule_bytes: int, seed: int) -> None:
        self.piece_bytes = math.gcd(granule_bytes, PIECE)
        self.pattern = Block(self.piece_bytes + _ROTATIONS * STRIDE)
        self.pattern.view[:] = Random(seed).randbytes(len(self.pattern.view))
        self.zeros = Block(self.piece_bytes)


class HostContents:
    """Writes and checks one buffer's granules.

    Each stretch of 4 KiB begins with two words: buffer and granule, then the generation (the
    cycle that committed it). The rest is pseudo-random from the seed, and differs from stretch to
    stretch and, through a rotation, between granules and generations.

    Args:
        base: The buffer's first address.
        capacity: Its size in bytes.
        granule_bytes: The unit of operations.
        fill: What to write from.
        buffer_id: Identifies the buffer (16 bits).
        touch: ``none``, ``first`` or ``full``.
        verify: ``off``, ``sample`` or ``full``.
        zeroes: Whether the platform promises that fresh memory is zero.
    """

    def __init__(
        self,
        base: int,
        capacity: int,
        granule_bytes: int,
        fill: FillData,
        *,
        buffer_id: int,
        touch: str,
        verify: str,
        zeroes: bool,
    ) -> None:
        self._base = base
        self._granule = granule_bytes
        self._buffer_id = buffer_id
        self._first_only = touch == "first"
        self._verify = verify
        self._zero_check = zeroes and verify != "off"
        self._bytes = window(base, capacity)
        self._words = self._bytes.cast("Q")
        self._piece = fill.piece_bytes
        self._strides = self._piece // STRIDE
        self._block = fill.pattern
        self._block_words = self._block.view.cast("Q")
        self._zeros = fill.zeros
        # By granule: the cycle that filled it, and what checking it for zero took.
        self._live: dict[int, tuple[int, int]] = {}

    def write_and_time(self, first: int, count: int, generation: int) -> int:
        """Touch *count* freshly committed granules; return the nanoseconds that took.

        Raises:
            CorruptionError: If one of them was not zero.
        """
        touch_ns = 0
        for granule in range(first, first + count):
            verify_ns = 0
            start = granule * self._granule
            for at in range(start, start + self._granule, self._piece):
                touched, checked = self._fill_piece(at, granule, generation)
                touch_ns += touched
                verify_ns += checked
            if self._verify != "off":
                self._live[granule] = generation, verify_ns
        return touch_ns

    def check(self, first: int, count: int) -> int:
        """Check that granules about to be released hold what was written.

        Returns:
            The nanoseconds of this check and of the check for zero when they were fresh.

        Raises:
            CorruptionError: If one of them does not.
        """
        earlier_ns = 0
        began = perf_counter_ns()
        for granule in range(first, first + count):
            generation, zero_ns = self._live.pop(granule)
            earlier_ns += zero_ns
            start = granule * self._granule
            if self._verify == "full":
                for at in range(start, start + self._granule, self._piece):
                    self._check_piece(at, granule, generation)
            else:
                for at in self._sampled(granule, generation):
                    self._check_stride(at, granule, generation)
        return perf_counter_ns() - began + earlier_ns

    def _fill_piece(self, at: int, granule: int, generation: int) -> tuple[int, int]:
        address = self._base + at
        source = self._expect(at, granule, generation)
        checked = 0
        touched = 0
        if self._zero_check:
            before = perf_counter_ns()
            if self._verify == "full":
                # Reading fresh memory would map the zero page first and make the touch a copy.
                # So the touch faults each page in by writing one zero, at another place each
                # time, and the rest of the page is checked before it is filled.
                place = (generation * SPREAD) % STRIDE
                self._bytes[at + place : at + self._piece : STRIDE] = bytes(self._strides)
                touched = perf_counter_ns() - before
                self._check_zero(at, self._piece, granule, generation)
            else:
                for sample in self._sampled(granule, generation):
                    if at <= sample < at + self._piece:
                        self._check_zero(sample, STRIDE, granule, generation)
            checked = perf_counter_ns() - before - touched
        before = perf_counter_ns()
        if self._first_only:
            self._write_heads(at, source)
        else:
            copy(address, self._block.address + source, self._piece)
        return touched + perf_counter_ns() - before, checked

    def _expect(self, at: int, granule: int, generation: int) -> int:
        """Stamp the prepared piece; return where in it the piece at offset *at* begins."""
        if self._verify == "off":
            return 0
        rotation = self._rotation(granule, generation, at)
        word = rotation * _STRIDE_WORDS
        end = word + self._strides * _STRIDE_WORDS
        identity = array("Q", (self._buffer_id << _IDENTITY_BITS | granule,)) * self._strides
        self._block_words[word:end:_STRIDE_WORDS] = memoryview(identity)
        stamp = array("Q", (generation,)) * self._strides
        self._block_words[word + 1 : end : _STRIDE_WORDS] = memoryview(stamp)
        return rotation * STRIDE

    def _write_heads(self, at: int, source: int) -> None:
        """Write the first three words of each stretch; the third differs between stretches."""
        to, end = at // 8, (at + self._piece) // 8
        word, last = source // 8, (source + self._piece) // 8
        for i in range(3):
            self._words[to + i : end : _STRIDE_WORDS] = self._block_words[
                word + i : last : _STRIDE_WORDS
            ]

    def _sampled(self, granule: int, generation: int) -> tuple[int, int]:
        """Return the offsets of the stretches that ``sample`` looks at: the first and another."""
        start = granule * self._granule
        strides = self._granule // STRIDE
        return start, start + (generation * SPREAD + granule) % strides * STRIDE

    def _check_zero(self, at: int, nbytes: int, granule: int, generation: int) -> None:
        if differs(self._base + at, self._zeros.address, nbytes):
            wrong = self._first_difference(at, nbytes, 0, zero=True)
            self._fail("zero", wrong, granule, generation)

    def _check_piece(self, at: int, granule: int, generation: int) -> None:
        source = self._expect(at, granule, generation)
        if self._first_only:
            self._check_heads(at, source, granule, generation)
        elif differs(self._base + at, self._block.address + source, self._piece):
            wrong = self._first_difference(at, self._piece, source)
            self._fail("survival", wrong, granule, generation)

    def _check_stride(self, at: int, granule: int, generation: int) -> None:
        piece = at - (at - granule * self._granule) % self._piece
        source = self._expect(piece, granule, generation) + at - piece
        length = 24 if self._first_only else STRIDE
        if differs(self._base + at, self._block.address + source, length):
            wrong = self._first_difference(at, length, source)
            self._fail("survival", wrong, granule, generation)

    def _check_heads(self, at: int, source: int, granule: int, generation: int) -> None:
        to, end = at // 8, (at + self._piece) // 8
        word, last = source // 8, (source + self._piece) // 8
        for i in range(3):
            found = self._words[to + i : end : _STRIDE_WORDS].tolist()
            wanted = self._block_words[word + i : last : _STRIDE_WORDS].tolist()
            if found != wanted:
                index = next(
                    n
                    for n, pair in enumerate(zip(found, wanted, strict=True))
                    if pair[0] != pair[1]
                )
                self._fail(
                    "survival",
                    at + index * STRIDE,
                    granule,
                    generation,
                )

    def _first_difference(self, at: int, nbytes: int, source: int, *, zero: bool = False) -> int:
        found = bytes(self._bytes[at : at + nbytes])
        wanted = bytes(nbytes) if zero else bytes(self._block.view[source : source + nbytes])
        return at + next(i for i in range(nbytes) if found[i] != wanted[i])

    def _fail(self, check: str, at: int, granule: int, generation: int) -> None:
        """Raise, naming whose bytes are found there, if they are those of some granule."""
        owner = self._owner(at)
        mine = (self._buffer_id, granule, generation)
        if owner == mine:
            owner = None
        if owner is not None and owner[:2] != mine[:2]:
            check = "isolation"
        raise CorruptionError(Corruption(check, granule, generation, at, owner))

    def _owner(self, at: int) -> tuple[int, int, int] | None:
        """Return buffer, granule and cycle of the stretch around *at*, if all of it is theirs."""
        stretch = at // STRIDE * STRIDE
        identity, generation = self._words[stretch // 8], self._words[stretch // 8 + 1]
        buffer_id, granule = identity >> _IDENTITY_BITS, identity & ((1 << _IDENTITY_BITS) - 1)
        piece = stretch - stretch % self._granule % self._piece
        source = self._rotation(granule, generation, piece) * STRIDE + stretch - piece
        end = 24 if self._first_only else STRIDE
        found = self._bytes[stretch + 16 : stretch + end]
        wanted = self._block.view[source + 16 : source + end]
        # The check for zero has written one byte of each stretch before it looks.
        wrong = sum(a != b for a, b in zip(found, wanted, strict=True))
        return (buffer_id, granule, generation) if wrong <= 1 else None

    def _rotation(self, granule: int, generation: int, at: int) -> int:
        piece = at % self._granule // self._piece
        return (granule * 7 + generation + piece) % _ROTATIONS
