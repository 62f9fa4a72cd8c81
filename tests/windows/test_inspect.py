"""Another Windows process: its counters by psutil, its reservations by VirtualQueryEx."""

from __future__ import annotations

import sys

import pytest

if sys.platform != "win32":
    pytest.skip("VirtualQueryEx needs Windows, or Wine", allow_module_level=True)

from vmtool.inspect.processes import open_process
from vmtool.inspect.watch import InspectOptions, look
from vmtool.machine import read_facts

_CODE = """
from vmtool.memory import open_backing
from vmtool.memory.buffer import VirtualBuffer
buffer = VirtualBuffer(open_backing("host"), 64 << 20)
for i in range(8):
    buffer.commit(i * 2 * (64 << 10), 64 << 10)
hold(base=buffer.base, committed=buffer.committed)
"""


def test_a_buffer_of_another_process_is_found_with_its_committed_bytes(child):
    made = child(_CODE)
    facts = made.facts
    target = open_process(made.pid)
    result = look(target, InspectOptions(top=10_000), read_facts())
    target.close()

    around = next(
        item
        for item in result.reservations
        if item.base <= facts["base"] < item.base + item.capacity_bytes
    )
    assert around.capacity_bytes >= 64 << 20
    assert around.committed_bytes >= facts["committed"]
    assert result.last.resident_bytes > 0
    assert result.last.threads >= 1


def test_counters_of_another_process_of_this_user_need_no_rights(child):
    counters = open_process(child("hold()").pid).counters(0)

    assert counters.charge_bytes > 0
    assert counters.descriptors is not None  # Wine counts none
