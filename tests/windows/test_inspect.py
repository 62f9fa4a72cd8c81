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
from vmtool.memory.backing_by_name import open_backing
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
    if around.resident_bytes is None:
        pytest.skip("Wine answers QueryWorkingSetEx for the calling process only")
    assert around.resident_bytes <= around.committed_bytes


def test_counters_of_another_process_of_this_user_need_no_rights(child):
    counters = open_process(child("hold()").pid).counters(0)

    assert counters.charge_bytes > 0
    assert counters.descriptors is not None  # Wine counts none


def test_the_commit_limit_is_known_and_a_job_is_named_where_its_limits_are_hidden(child):
    target = open_process(child("hold()").pid)
    limits = {limit.name: limit for limit in target.limits(target.counters(0), None)}

    assert limits["system commit limit"].soft > limits["system commit limit"].used > 0
    assert "ProcessMemoryLimit" not in limits
    assert set(target.unavailable) <= {"job limits"}


_LIMITED = """
import ctypes
from vmtool.inspect.processes import open_process
from vmtool.memory.windows.jobs import is_in_job, read_job_limits
kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
kernel32.CreateJobObjectW.restype = ctypes.c_void_p
job = kernel32.CreateJobObjectW(None, None)
limits = (ctypes.c_uint64 * 18)()
limits[2] = 0x100  # JOB_OBJECT_LIMIT_PROCESS_MEMORY
limits[14] = 1 << 30
assert kernel32.SetInformationJobObject(ctypes.c_void_p(job), 9, limits, 144), ctypes.get_last_error()
assert kernel32.AssignProcessToJobObject(ctypes.c_void_p(job), ctypes.c_void_p(-1))
found = read_job_limits()
hold(inside=is_in_job(-1), limit=found and found.process_bytes)
"""


def test_the_limit_of_the_own_job_is_read(child):
    facts = child(_LIMITED).facts

    assert facts["inside"]
    if facts["limit"] is None:
        pytest.skip("Wine keeps no memory limit of a job")
    assert facts["limit"] == 1 << 30
