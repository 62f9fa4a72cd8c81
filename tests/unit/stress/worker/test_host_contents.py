"""Verification finds a lost byte, another granule's bytes, and memory that is not fresh."""

import mmap

import pytest

from vmtool.memory.addresses import window
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.stress.worker.host_contents import STRIDE, CorruptionError, FillData, HostContents
from vmtool.units import KIB, MIB

GRANULE = max(64 * KIB, mmap.PAGESIZE)


@pytest.fixture
def buffer():
    with VirtualBuffer(open_backing(), 8 * GRANULE) as made:
        yield made


def _contents(buffer, *, granule=GRANULE, touch="full", verify="full", buffer_id=0):
    return HostContents(
        buffer.base,
        buffer.capacity,
        granule,
        FillData(granule, 11),
        buffer_id=buffer_id,
        touch=touch,
        verify=verify,
        zeroes=True,
    )


def _cycle(buffer, contents, granule, generation):
    buffer.commit(granule * GRANULE, GRANULE)
    contents.write_and_time(granule, 1, generation)


@pytest.mark.parametrize("touch", ["first", "full"])
@pytest.mark.parametrize("verify", ["sample", "full"])
def test_what_was_written_passes(buffer, touch, verify):
    contents = _contents(buffer, touch=touch, verify=verify)
    for generation in range(1, 6):
        for granule in (0, 3, 4):
            _cycle(buffer, contents, granule, generation)
        for granule in (4, 0, 3):
            contents.check(granule, 1)
            buffer.release(granule * GRANULE, GRANULE)


@pytest.mark.parametrize("offset", [0, 8, 4095, 4096, GRANULE // 2 + 1, GRANULE - 1])
def test_full_finds_any_changed_byte(buffer, offset):
    contents = _contents(buffer)
    _cycle(buffer, contents, 2, 1)
    memory = window(buffer.base, buffer.capacity)
    memory[2 * GRANULE + offset] ^= 1
    with pytest.raises(CorruptionError) as caught:
        contents.check(2, 1)
    assert caught.value.corruption.check == "survival"
    assert caught.value.corruption.offset == 2 * GRANULE + offset
    assert caught.value.corruption.granule == 2


def test_the_bytes_of_another_granule_are_named(buffer):
    contents = _contents(buffer)
    _cycle(buffer, contents, 1, 1)
    _cycle(buffer, contents, 5, 2)
    memory = window(buffer.base, buffer.capacity)
    memory[5 * GRANULE + STRIDE : 5 * GRANULE + 2 * STRIDE] = memory[
        GRANULE + STRIDE : GRANULE + 2 * STRIDE
    ]
    with pytest.raises(CorruptionError, match="buffer 0, granule 1, cycle 1") as caught:
        contents.check(5, 1)
    assert caught.value.corruption.check == "isolation"


def test_the_bytes_of_another_buffer_are_named(buffer):
    with VirtualBuffer(open_backing(), 8 * GRANULE) as second:
        mine, theirs = _contents(buffer), _contents(second, buffer_id=9)
        _cycle(buffer, mine, 0, 2)
        _cycle(second, theirs, 0, 1)
        memory, other = window(buffer.base, GRANULE), window(second.base, GRANULE)
        memory[:STRIDE] = other[:STRIDE]
        with pytest.raises(CorruptionError, match="buffer 9"):
            mine.check(0, 1)


@pytest.mark.parametrize("verify", ["sample", "full"])
def test_stale_bytes_in_fresh_memory_are_found(buffer, verify):
    contents = _contents(buffer, verify=verify)
    buffer.commit(0, GRANULE)
    contents.write_and_time(0, 1, 1)
    with pytest.raises(CorruptionError, match="granule 0, cycle 1") as caught:
        contents.write_and_time(0, 1, 2)  # as if it had been released and committed again
    assert caught.value.corruption.check == "zero"


def test_first_finds_a_lost_stretch(buffer):
    contents = _contents(buffer, touch="first")
    _cycle(buffer, contents, 0, 1)
    memory = window(buffer.base, GRANULE)
    memory[3 * STRIDE : 4 * STRIDE] = bytes(STRIDE)
    with pytest.raises(CorruptionError) as caught:
        contents.check(0, 1)
    assert caught.value.corruption.offset == 3 * STRIDE


def test_two_stretches_that_changed_places_are_found(buffer):
    contents = _contents(buffer)
    _cycle(buffer, contents, 0, 1)
    memory = window(buffer.base, GRANULE)
    first, second = bytes(memory[:STRIDE]), bytes(memory[STRIDE : 2 * STRIDE])
    memory[:STRIDE], memory[STRIDE : 2 * STRIDE] = second, first
    with pytest.raises(CorruptionError):
        contents.check(0, 1)


def test_a_granule_of_several_pieces_is_written_to_its_end():
    granule = 6 * MIB
    with VirtualBuffer(open_backing(), granule) as buffer:
        contents = _contents(buffer, granule=granule)
        buffer.commit(0, granule)
        contents.write_and_time(0, 1, 1)
        contents.check(0, 1)
        memory = window(buffer.base, granule)
        assert any(memory[granule - 64 :])


def test_unverified_memory_is_touched_too(buffer):
    contents = _contents(buffer, verify="off")
    _cycle(buffer, contents, 0, 1)
    memory = window(buffer.base, GRANULE)
    assert all(any(memory[at : at + STRIDE]) for at in range(0, GRANULE, STRIDE))
