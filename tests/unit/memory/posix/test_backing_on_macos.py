"""The calls that the POSIX backing makes on macOS, recorded; nothing here was run on macOS."""

import json
import subprocess
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("loads the POSIX calls", allow_module_level=True)

# Loads the backing as macOS would, on pages of 16 KiB, over calls that only record.
PROGRAM = """
import ctypes, dataclasses, errno, json, mmap, os, resource, sys, weakref
sys.platform = "darwin"
mmap.PAGESIZE = 16384
from vmtool.errors import CallError, UnavailableError
from vmtool.memory import macos_calls
from vmtool.memory.posix.backing import PosixBacking
from vmtool.memory.posix.calls import CALLS, PosixCalls

macos_calls.read_virtual_size = lambda: 400 << 30  # as with the shared cache
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

def refuse(name, code):
    def call(*arguments):
        made.append([name, *arguments])
        ctypes.set_errno(code)
        return -1
    return call

for refused in ("mmap", "madvise"):
    code = errno.EAGAIN if refused == "mmap" else errno.EINVAL
    failing, normal, refusing = refuse(refused, code), getattr(calls, refused), []
    def switch(*arguments):
        return (failing if refusing else normal)(*arguments)
    backing = PosixBacking(calls=dataclasses.replace(calls, **{refused: switch}))
    reservation = backing.reserve(8 * backing.granularity)
    backing.commit(reservation, 0, 4 * backing.granularity)
    made.clear()
    refusing.append(True)
    backing.release(reservation, 0, backing.granularity)
    told["refused " + refused] = {
        "calls": list(made), "degraded": list(reservation.degraded),
        "committed": list(reservation.blocks),
    }
    reservation.finalizer.detach()

resource.getrlimit = lambda which: (401 << 30 if which == resource.RLIMIT_AS else -1, -1)
try:
    PosixBacking(calls=dataclasses.replace(calls, mmap=refuse("mmap", errno.ENOMEM))).reserve(2 << 30)
except CallError as error:
    told["limited"] = error.cause
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


def test_fixed_gives_pages_up_and_replaces_the_mapping_with_the_flags_of_macos(told):
    assert told["fixed"]["calls"] == [
        ["mmap", BASE, 4 * PAGE, 3, MAP_ANON_PRIVATE_FIXED, -1, 0],
        ["madvise", BASE + PAGE, PAGE, MADV_FREE_REUSABLE],
        ["mmap", BASE + PAGE, PAGE, 0, MAP_ANON_PRIVATE_FIXED, -1, 0],
    ]


def test_pages_that_were_given_up_are_released_although_the_mapping_stays(told):
    refused = told["refused mmap"]
    assert [call[0] for call in refused["calls"]] == ["madvise", "mmap", "mprotect"]
    assert refused["degraded"] == [[0, PAGE]]
    assert refused["committed"] == [[PAGE, 4 * PAGE]]


def test_advice_that_is_refused_stops_no_release(told):
    refused = told["refused madvise"]
    assert [call[0] for call in refused["calls"]] == ["madvise", "mmap"]
    assert refused["degraded"] == []
    assert refused["committed"] == [[PAGE, 4 * PAGE]]


def test_a_reservation_over_the_limit_on_addresses_is_blamed_on_it(told):
    assert told["limited"] == (
        "RLIMIT_AS is 401 GiB and the process uses 400 GiB; "
        "reservations count although they hold no memory"
    )


def test_only_new_mappings_promise_zeroes(told):
    assert [told[m]["zeroes"] for m in ("fixed", "protect", "advise")] == [True, False, False]
