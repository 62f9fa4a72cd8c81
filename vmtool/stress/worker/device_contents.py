"""The contents of granules on a CUDA device: written by copies and checked by reading them back."""

from __future__ import annotations

import struct
from math import gcd
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.memory.addresses import Block, differs
from vmtool.stress.worker.host_contents import PIECE, SPREAD, STRIDE, Corruption, CorruptionError

if TYPE_CHECKING:
    from vmtool.memory.cuda.copies import DeviceCopies
    from vmtool.memory.reservation import Reservation

#: The first bytes of a piece: a mark, then buffer, granule and generation.
_STAMP: Final = struct.Struct("<8sQQQ")
_MARK: Final = b"vmtool\xa5\x5a"
_WORD: Final = 0xFFFFFFFF
_WORD_BYTES: Final = 4


class DeviceContents:
    """Fills and checks one buffer's granules on a device.

    Each piece begins with a stamp and is filled with one word of 32 bits, which differs between
    buffers, granules, generations and pieces.

    Args:
        copies: The way to the device's memory.
        reservation: Where the buffer is.
        granule_bytes: The unit of operations.
        buffer_id: Identifies the buffer.
        touch: ``first`` (the first 4 KiB of each piece) or ``full``.
        verify: ``off``, ``sample`` (two stretches of 4 KiB) or ``full``.
        zeroes: Whether fresh memory is promised to be zero.
    """

    def __init__(
        self,
        copies: DeviceCopies,
        reservation: Reservation,
        granule_bytes: int,
        *,
        buffer_id: int,
        touch: str,
        verify: str,
        zeroes: bool,
    ) -> None:
        self._copies = copies
        self._reservation = reservation
        self._granule = granule_bytes
        self._buffer_id = buffer_id
        self._verify = verify
        self._zero_check = zeroes and verify != "off"
        # No larger than a handle, so that handles mapped in the wrong order are found out.
        self._piece = gcd(granule_bytes, reservation.granularity, PIECE)
        self._filled = STRIDE if touch == "first" else self._piece
        self._back = Block(self._filled)
        # By granule: the cycle that filled it, and what checking it for zero took.
        self._live: dict[int, tuple[int, int]] = {}

    def write_and_time(self, first: int, count: int, generation: int) -> int:
        touch_ns = 0
        for granule in range(first, first + count):
            began = perf_counter_ns()
            if self._zero_check:
                self._check_zero(granule, generation)
            # Only the launches are the touch: an engine does not wait for its writes either. The
            # stamps are the harness's own, behind the fills in the order of the stream.
            filling = perf_counter_ns()
            for at in self._pieces(granule):
                word = self._word(at, generation)
                self._copies.fill(self._reservation, at, self._filled, word, wait=False)
            touch_ns += perf_counter_ns() - filling
            if self._verify != "off":
                stamp = self._stamp(granule, generation)
                for at in self._pieces(granule):
                    self._copies.write(self._reservation, at, stamp, wait=False)
                self._live[granule] = generation, filling - began
        self._copies.wait()
        return touch_ns

    def check(self, first: int, count: int) -> int:
        earlier_ns = 0
        began = perf_counter_ns()
        for granule in range(first, first + count):
            generation, zero_ns = self._live.pop(granule)
            earlier_ns += zero_ns
            for at, start, nbytes in self._looked_at(granule, generation):
                self._check(at, start, nbytes, granule, generation)
        return perf_counter_ns() - began + earlier_ns

    def _pieces(self, granule: int) -> range:
        return range(granule * self._granule, (granule + 1) * self._granule, self._piece)

    def _looked_at(self, granule: int, generation: int) -> list[tuple[int, int, int]]:
        """Return piece, offset in it and length of every stretch that is checked."""
        pieces = self._pieces(granule)
        if self._verify == "full":
            return [(at, 0, self._filled) for at in pieces]
        other = pieces[(generation * SPREAD + granule) % len(pieces)]
        place = (generation * SPREAD + granule) % (self._filled // STRIDE) * STRIDE
        return [(pieces[0], 0, STRIDE), (other, place, STRIDE)]

    def _check_zero(self, granule: int, generation: int) -> None:
        for at, start, nbytes in self._looked_at(granule, generation):
            back = self._read(at + start, nbytes)
            if not self._repeats(bytes(_WORD_BYTES), 0, nbytes):
                wrong = next(i for i, byte in enumerate(back) if byte)
                self._fail("zero", at + start + wrong, granule, generation, back)

    def _check(self, at: int, start: int, nbytes: int, granule: int, generation: int) -> None:
        back = self._read(at + start, nbytes)
        word = self._word(at, generation).to_bytes(_WORD_BYTES, "little")
        stamp = self._stamp(granule, generation) if start == 0 else b""
        if back[: len(stamp)] == stamp and self._repeats(word, len(stamp), nbytes):
            return
        wanted = stamp + word * ((nbytes - len(stamp)) // _WORD_BYTES)
        wrong = next(i for i in range(nbytes) if back[i] != wanted[i])
        self._fail("survival", at + start + wrong, granule, generation, back)

    def _repeats(self, word: bytes, start: int, end: int) -> bool:
        """Return whether what was read is *word* repeated from *start* to *end*.

        It is if it begins with it and is equal to itself one word further on: one comparison in C.
        """
        address = self._back.address + start
        return self._back.view[start : start + _WORD_BYTES] == word and not differs(
            address, address + _WORD_BYTES, end - start - _WORD_BYTES
        )

    def _read(self, offset: int, nbytes: int) -> memoryview:
        back = self._back.view[:nbytes]
        self._copies.read(self._reservation, offset, back)
        return back

    def _word(self, at: int, generation: int) -> int:
        """Return the word of the piece at offset *at*; never zero."""
        number = (self._buffer_id << 40) ^ (generation << 20) ^ (at // self._piece)
        return (number * SPREAD >> 7) & _WORD | 1

    def _stamp(self, granule: int, generation: int) -> bytes:
        return _STAMP.pack(_MARK, self._buffer_id, granule, generation)

    def _fail(
        self, check: str, wrong: int, granule: int, generation: int, back: memoryview
    ) -> None:
        """Raise, naming whose bytes are there, if they begin with a stamp."""
        mark, *stamp = _STAMP.unpack_from(back)
        owner = None
        if mark == _MARK and stamp != [self._buffer_id, granule, generation]:
            check = check if stamp[:2] == [self._buffer_id, granule] else "isolation"
            owner = (stamp[0], stamp[1], stamp[2])
        raise CorruptionError(Corruption(check, granule, generation, wrong, owner))
