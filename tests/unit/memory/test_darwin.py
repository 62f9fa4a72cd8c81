"""What the POSIX backing asks of macOS, with the calls recorded; nothing here was run on macOS."""

import json
import subprocess
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("loads the POSIX calls", allow_module_level=True)

# Loads the backing as macOS would, on pages of 16 KiB, over calls that only record.
PROGRAM = """
import ctypes, dataclasses, json, mmap, os, sys, weakref
sys.platform = "darwin"
mmap.PAGESIZE = 16384
from vmtool.errors import UnavailableError
from vmtool.memory.posix import PosixBacking
from vmtool.memory.posix_calls import CALLS, PosixCalls

made = []
def record(name, result):
    def call(*arguments):
        made.append([name, *arguments])
        return result
    return call

calls = dataclasses.replace(
    CALLS,
    mmap=lambda address, *rest: record("mmap", address or 1 << 40)(address, *rest),
    munmap=record("munmap", 0),
    mprotect=record("mprotect", 0),
    madvise=record("madvise", 0),
)
told = {"prctl": CALLS.prctl is not None, "refused": []}
for option in ("prefault", "huge"):
    try:
        PosixBacking(**{option: True})
    except UnavailableError:
        told["refused"].append(option)
for method in ("fixed", "protect", "advise"):
    backing = PosixBacking(method, calls=calls)
    reservation = backing.reserve(8 * backing.granularity)
    made.clear()
    backing.commit(reservation, 0, 4 * backing.granularity)
    backing.release(reservation, backing.granularity, backing.granularity)
    told[method] = {
        "granule": backing.granularity, "zeroes": backing.zeroes, "calls": list(made)
    }
    reservation.finalizer.detach()
print(json.dumps(told))
"""
BASE, PAGE = 1 << 40, 16384
MADV_FREE_REUSABLE, MADV_FREE_REUSE = 7, 8  # sys/mman.h of macOS
MAP_ANON_PRIVATE_FIXED = 0x1000 | 0x2 | 0x10


@pytest.fixture(scope="module")
def told():
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    return json.loads(child.stdout)


def test_the_granule_is_the_page_that_the_system_has(told):
    assert {told[method]["granule"] for method in ("fixed", "protect", "advise")} == {PAGE}


def test_what_only_linux_has_is_refused_or_left_out(told):
    assert told["refused"] == ["prefault", "huge"]
    assert not told["prctl"]


def test_protect_takes_pages_off_the_footprint_and_puts_them_back(told):
    assert told["protect"]["calls"] == [
        ["mprotect", BASE, 4 * PAGE, 3],
        ["madvise", BASE, 4 * PAGE, MADV_FREE_REUSE],
        ["madvise", BASE + PAGE, PAGE, MADV_FREE_REUSABLE],
        ["mprotect", BASE + PAGE, PAGE, 0],
    ]


def test_advise_does_so_without_guards(told):
    assert told["advise"]["calls"] == [
        ["madvise", BASE, 4 * PAGE, MADV_FREE_REUSE],
        ["madvise", BASE + PAGE, PAGE, MADV_FREE_REUSABLE],
    ]


def test_fixed_replaces_the_mapping_with_the_flags_of_macos(told):
    assert told["fixed"]["calls"] == [
        ["mmap", BASE, 4 * PAGE, 3, MAP_ANON_PRIVATE_FIXED, -1, 0],
        ["mmap", BASE + PAGE, PAGE, 0, MAP_ANON_PRIVATE_FIXED, -1, 0],
    ]


def test_only_new_mappings_promise_zeroes(told):
    assert [told[m]["zeroes"] for m in ("fixed", "protect", "advise")] == [True, False, False]
