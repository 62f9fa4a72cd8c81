"""The calls that the Windows backing makes, method by method."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import Counter

import pytest

if sys.platform != "win32":
    pytest.skip("the Windows backing needs Windows, or Wine", allow_module_level=True)

from vmtool.errors import UnavailableError, UsageError
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.memory.windows.backing import METHODS, WindowsBacking
from vmtool.memory.windows.calls import CALLS, call_error
from vmtool.probes.granule_checks.prove import prove_granularity


@pytest.fixture
def subject(method, new_recorder):
    """A recorder, its backing, and a reservation of 16 granules."""
    recorder = new_recorder()
    backing = WindowsBacking(method, calls=recorder.wrap(CALLS))
    reservation = backing.reserve(16 * backing.granularity)
    recorder.made.clear()
    yield recorder, backing, reservation
    backing.unreserve(reservation)


def test_units_match_the_systems(method):
    backing = open_backing("host", method=method)
    assert backing.units.page_bytes == mmap.PAGESIZE
    assert backing.units.reserve_bytes == mmap.ALLOCATIONGRANULARITY
    granule = mmap.PAGESIZE if method == "decommit" else mmap.ALLOCATIONGRANULARITY
    assert backing.granularity == granule


def test_the_default_method_is_the_first():
    assert host_methods() == METHODS
    assert open_backing().method == METHODS[0] == "view"


def test_what_windows_does_not_have_is_refused():
    with pytest.raises(UsageError, match="unknown method 'fixed'"):
        open_backing("host", method="fixed")
    for option in ({"prefault": True}, {"huge": True}):
        with pytest.raises(UnavailableError):
            open_backing("host", **option)


def test_no_address_space_is_that_large(method):
    backing = WindowsBacking(method)
    with pytest.raises(UsageError, match="any address space"):
        backing.reserve(1 << 63)


def test_the_memory_is_of_the_kind_that_the_method_promises(method, subject, kernel):
    _recorder, backing, reservation = subject
    backing.commit(reservation, 0, backing.granularity)
    expected = kernel.mapped if method == "view" else kernel.private
    assert kernel.region(reservation.base).type == expected


def test_every_free_gap_is_one_placeholder_after_any_release(subject, kernel):
    _recorder, backing, reservation = subject
    granule = backing.granularity
    backing.commit(reservation, 0, 16 * granule)
    for first in (3, 1, 2, 0, 14, 15, 8):
        backing.release(reservation, first * granule, granule)
    gaps = list(reservation.blocks.gaps(0, reservation.capacity))
    assert gaps == [(0, 4 * granule), (8 * granule, 9 * granule), (14 * granule, 16 * granule)]
    regions = [
        (region.base - reservation.base, region.base - reservation.base + region.nbytes)
        for region in kernel.regions(reservation)
        if region.state == kernel.reserved
    ]
    assert regions == gaps


def test_calls_for_a_span_of_eight_granules(method, subject):
    """The price of releasing any granule alone is a call per granule; one call for decommit."""
    recorder, backing, reservation = subject
    granule = backing.granularity
    backing.commit(reservation, 4 * granule, 8 * granule)
    commit = Counter(recorder.made)
    recorder.made.clear()
    backing.release(reservation, 4 * granule, 8 * granule)
    release = Counter(recorder.made)
    assert (commit, release) == {
        "view": (
            Counter(VirtualFree=8, CreateFileMappingW=8, MapViewOfFile3=8, CloseHandle=8),
            Counter(UnmapViewOfFile2=8, VirtualFree=1),
        ),
        "private": (Counter(VirtualFree=8, VirtualAlloc2=8), Counter(VirtualFree=9)),
        "decommit": (Counter(VirtualAlloc=1), Counter(VirtualFree=1)),
    }[method]


@pytest.mark.parametrize("method", ["view", "private"])
def test_a_granule_that_fills_its_gap_is_not_split(subject):
    """Windows refuses to split a placeholder off that is the whole already."""
    recorder, backing, reservation = subject
    granule = backing.granularity
    backing.commit(reservation, 0, 4 * granule)
    backing.commit(reservation, 5 * granule, 11 * granule)
    recorder.made.clear()
    backing.commit(reservation, 4 * granule, granule)
    backing.release(reservation, 4 * granule, granule)
    assert recorder.made.count("VirtualFree") == (
        0 if backing.method == "view" else 1  # the release itself
    )


def test_pages_are_released_alone_by_decommit():
    backing = WindowsBacking("decommit")
    page = mmap.PAGESIZE
    reservation = backing.reserve(16 * page)
    backing.commit(reservation, 0, 16 * page)
    ctypes.memset(reservation.base, 7, 16 * page)
    backing.release(reservation, 3 * page, page)
    assert ctypes.string_at(reservation.base + 2 * page, page) == b"\7" * page
    assert ctypes.string_at(reservation.base + 4 * page, page) == b"\7" * page
    backing.commit(reservation, 3 * page, page)
    assert ctypes.string_at(reservation.base + 3 * page, page) == bytes(page)
    backing.unreserve(reservation)


def test_the_granule_is_queried_from_the_system_directly(method):
    backing = open_backing("host", method=method)
    tried = [c for c in prove_granularity(backing) if c.values["who"] != "vmtool"]
    assert {check.values["who"] for check in tried} == {"Windows"}
    assert not any(check.failed for check in tried)
    answers = [check.values["answer"] for check in tried]
    if method == "decommit":
        assert answers[0] == "done"
        assert all("silently extended" in answer for answer in answers[1:])
    else:
        assert answers[0] == "done"
        assert all("ERROR_MAPPED_ALIGNMENT (1132)" in answer for answer in answers[1:])


@pytest.mark.parametrize(
    ("call", "arguments", "text"),
    [
        (
            "VirtualAlloc2",
            (0, 1 << 37, 0x42000),
            "VirtualAlloc2(NULL, 137438953472, MEM_RESERVE|MEM_RESERVE_PLACEHOLDER)",
        ),
        ("VirtualAlloc", (65536, 4096, 0x1000), "VirtualAlloc(0x10000, 4096, MEM_COMMIT)"),
        (
            "VirtualFree",
            (65536, 65536, 0x8002),
            "VirtualFree(0x10000, 65536, MEM_RELEASE|MEM_PRESERVE_PLACEHOLDER)",
        ),
        (
            "MapViewOfFile3",
            (65536, 65536, 0x4000),
            "MapViewOfFile3(0x10000, 65536, MEM_REPLACE_PLACEHOLDER)",
        ),
        (
            "UnmapViewOfFile2",
            (65536, 2),
            "UnmapViewOfFile2(0x10000, MEM_PRESERVE_PLACEHOLDER)",
        ),
        (
            "CreateFileMappingW",
            (65536, 0x8000004),
            "CreateFileMappingW(INVALID_HANDLE_VALUE, 65536, PAGE_READWRITE|SEC_COMMIT)",
        ),
        ("CloseHandle", (0x44,), "CloseHandle(0x44)"),
    ],
)
def test_a_failed_call_is_reported_with_its_arguments(call, arguments, text):
    ctypes.set_last_error(487)
    error = call_error(call, *arguments)
    assert str(error).startswith(f"{text} failed: ERROR_INVALID_ADDRESS (487)")
    assert error.cause
    assert error.hint
