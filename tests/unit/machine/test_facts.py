"""Facts of the machine, and what is safe to use of its memory."""

import sys

import pytest

from vmtool.machine import read_facts
from vmtool.machine.facts import safe_part
from vmtool.units import GIB, MIB


@pytest.mark.parametrize(
    ("available", "safe"),
    [
        (None, GIB),
        (0, 0),
        (MIB, 0),
        (50 * MIB, 30 * MIB),
        (200 * MIB, 120 * MIB),
        (700 * MIB, 444 * MIB),
        (GIB, GIB - 256 * MIB),
        (10 * GIB, 8 * GIB),
        (10 * GIB + 1, 8 * GIB),
    ],
)
def test_the_safe_part_keeps_a_reserve_that_scales(available, safe):
    assert safe_part(available) == safe


def test_the_facts_of_this_machine_are_read():
    facts = read_facts()
    assert facts.page_bytes > 0
    assert facts.memory.total_bytes > 0
    assert 0 <= facts.safe_bytes <= facts.memory.total_bytes
    if sys.platform == "linux":
        assert facts.process.mappings > 0
        assert facts.system.cpus_usable >= 1
