"""Stamps find a lost byte wherever it is, and a new byte that is not zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.probes.grow_stamps import STRIDE, Stamps

CAPACITY = 5000 * STRIDE


@given(st.integers(0, 40 * STRIDE), st.integers(0, 40 * STRIDE))
def test_what_was_written_in_two_parts_is_found_again(first, second):
    low, high = sorted((first, second))
    memory = memoryview(bytearray(40 * STRIDE))
    stamps = Stamps(len(memory))
    stamps.write(memory[:low], 0)
    stamps.write(memory[:high], low)
    assert stamps.find_wrong(memory[:high], everything=True) is None
    assert stamps.find_wrong(memory[:low], everything=True) is None


@pytest.mark.parametrize("lost", [0, 1, 2047, 4999])
def test_a_lost_stamp_is_named_by_its_offset(lost):
    memory = memoryview(bytearray(CAPACITY))
    stamps = Stamps(CAPACITY)
    stamps.write(memory, 0)
    memory[lost * STRIDE + 3] ^= 1
    assert stamps.find_wrong(memory, everything=True) == lost * STRIDE


def test_samples_together_see_every_stamp():
    memory = memoryview(bytearray(CAPACITY))
    stamps = Stamps(CAPACITY)
    stamps.write(memory, 0)
    memory[4321 * STRIDE] ^= 1
    found = [stamps.find_wrong(memory, everything=False) for _ in range(CAPACITY // STRIDE // 1024)]
    assert found.count(4321 * STRIDE) == 1


def test_a_page_of_another_place_is_not_accepted():
    memory = memoryview(bytearray(CAPACITY))
    stamps = Stamps(CAPACITY)
    stamps.write(memory, 0)
    memory[7 * STRIDE : 8 * STRIDE] = memory[8 * STRIDE : 9 * STRIDE].tobytes()
    assert stamps.find_wrong(memory, everything=True) == 7 * STRIDE


@pytest.mark.parametrize("dirty", [STRIDE, 2 * STRIDE + 77, 600 * STRIDE, CAPACITY - 1])
def test_a_byte_that_is_not_zero_is_found(dirty):
    memory = memoryview(bytearray(CAPACITY))
    assert Stamps(CAPACITY).find_nonzero(memory, STRIDE) is None
    memory[dirty] = 1
    assert Stamps(CAPACITY).find_nonzero(memory, STRIDE) == dirty


def test_lengths_too_short_for_a_stamp_are_fine():
    memory = memoryview(bytearray(7))
    stamps = Stamps(7)
    stamps.write(memory, 0)
    assert stamps.find_wrong(memory, everything=True) is None
    assert memory.tobytes() == bytes(7)
