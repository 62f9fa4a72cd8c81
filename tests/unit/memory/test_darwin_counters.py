"""macOS's counters from recorded input; nothing here was run on macOS."""

from __future__ import annotations

import struct

from vmtool.memory.counters import Ledgers
from vmtool.memory.darwin_counters import parse_task_info

# struct proc_taskinfo (bsd/sys/proc_info.h): two sizes, four times, twelve integers.
RECORD = struct.pack(
    "=6Q12i",
    *(421_117_640_704, 9_535_488, 30_000_000, 12_000_000, 0, 0),
    *(1, 2_700, 12, 90, 40, 30, 3_000, 900, 120, 1, 1, 31),
)


def test_the_record_has_the_size_that_the_kernel_fills_in():
    assert len(RECORD) == 96


def test_address_space_and_residency_are_the_first_two_numbers():
    assert parse_task_info(RECORD) == Ledgers(
        address_space_bytes=421_117_640_704, resident_bytes=9_535_488
    )


def test_there_is_no_charge_and_no_count_of_areas():
    ledgers = parse_task_info(RECORD)
    assert ledgers.charge_bytes is None
    assert ledgers.mappings is None


def test_a_refused_or_short_answer_is_not_told():
    assert parse_task_info(b"") == Ledgers()
    assert parse_task_info(RECORD[:15]) == Ledgers()
