"""What the kernel really does at its limits; measured facts that the POSIX backing relies on.

Each limit is met in a child process, because a process at its limits cannot run a test either.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

if sys.platform != "linux":
    pytest.skip("these limits are Linux's", allow_module_level=True)

from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.counters import read_limits
from vmtool.memory.errors import OutOfMemoryError

PRELUDE = """
import ctypes, gc, json, resource
from vmtool.memory.errors import OutOfMemoryError
from vmtool.memory.posix.backing import PosixBacking
from vmtool.memory.counters import count_mappings, read_limits

# At its limit a process gets no new arena for its objects: keep some that are nearly empty.
spare = [bytes(400) for _ in range(40_000)]
spare = spare[::1000]

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()

def faults(address):
    import os
    reader, writer = os.pipe()
    libc = ctypes.CDLL(None)
    libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    return libc.write(writer, address, 1) == -1
"""


def in_child(body: str) -> dict:
    """Run *body* in a fresh interpreter and return the dictionary that it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_committing_more_than_the_machine_has_fails_at_commit(method):
    """With MAP_NORESERVE on the reservation mprotect would succeed, and the OOM killer come later."""
    pressure = read_limits()
    if pressure.overcommit_mode == 1 or pressure.total_bytes is None:
        pytest.skip("vm.overcommit_memory=1 refuses nothing")
    backing = open_backing(method=method)
    nbytes = pressure.total_bytes + (64 << 30)
    nbytes -= nbytes % backing.granularity
    reservation = backing.reserve(nbytes)
    try:
        with pytest.raises(OutOfMemoryError) as caught:
            backing.commit(reservation, 0, nbytes)
        assert reservation.blocks.total == 0
        assert "overcommit" in caught.value.cause
        backing.commit(reservation, 64 << 30, backing.granularity)
    finally:
        backing.unreserve(reservation)


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_release_at_the_mapping_limit_is_degraded_and_heals(method):
    found = in_child(f"""
        backing = PosixBacking("{method}")
        page = backing.granularity
        block = backing.reserve(64 << 20)
        backing.commit(block, 0, 64 << 20)
        ctypes.memset(block.base, 1, 64 << 20)
        before = resident()
        limit = read_limits().max_mappings
        crowd = backing.reserve(4 * limit * page)
        error = None
        for index in range(limit):
            try:
                backing.commit(crowd, 2 * index * page, page)
            except OutOfMemoryError as caught:
                error = caught
                break
        middle = 32 << 20
        backing.release(block, 16 << 20, middle)
        degraded = block.degraded.total
        backing.unreserve(crowd)
        after = resident()
        found = dict(
            cause=error.cause, hint=error.hint, degraded=degraded, middle=middle,
            dropped=before - after, committed=block.blocks.total,
            zero=not any(ctypes.string_at(block.base + (20 << 20), 4096)),
            kept=ctypes.string_at(block.base, 1) == bytes([1]),
        )
        ctypes.memset(block.base + (20 << 20), 7, 4096)  # a stray write: nothing faults here now
        backing.commit(block, 16 << 20, middle)
        found["zero_again"] = not any(ctypes.string_at(block.base + (16 << 20), middle))
        found["degraded_again"] = block.degraded.total
        backing.release(block, 16 << 20, middle)
        found["guarded"] = faults(block.base + (20 << 20))
        print(json.dumps(found))
    """)
    assert "vm.max_map_count" in found["cause"]
    assert "vm.max_map_count" in found["hint"]
    assert found["degraded"] == found["middle"]
    assert found["dropped"] >= found["middle"] * 0.9
    assert found["committed"] == 32 << 20
    assert found["zero"]
    assert found["kept"]
    assert found["zero_again"]
    assert found["degraded_again"] == 0
    assert found["guarded"]


@pytest.mark.parametrize("method", ["fixed", "protect"])
def test_a_commit_refused_at_the_mapping_limit_changes_nothing(method):
    found = in_child(f"""
        backing = PosixBacking("{method}")
        page = backing.granularity
        limit = read_limits().max_mappings
        crowd = backing.reserve(4 * limit * page)
        for index in range(limit):
            try:
                backing.commit(crowd, 2 * index * page, page)
            except OutOfMemoryError:
                break
        free = faults(crowd.base + 2 * index * page)
        spans = len(crowd.blocks)
        try:
            backing.commit(crowd, page, page)  # joins its neighbours: needs no new area
        except OutOfMemoryError:
            pass
        print(json.dumps(dict(index=index, spans=spans, free=free, joined=len(crowd.blocks))))
        backing.unreserve(crowd)  # Python 3.15 aborts when it cannot free its own memory at exit
    """)
    assert found["index"] > 1000
    assert found["spans"] == found["index"]
    assert found["free"]
    # Past the limit mmap is refused whatever it would do; mprotect only when it needs an area.
    joined = {"protect": {found["spans"] - 1}, "fixed": {found["spans"] - 1, found["spans"]}}
    assert found["joined"] in joined[method]


def test_only_the_fixed_method_returns_the_commit_charge():
    """MADV_DONTNEED and PROT_NONE leave the area accountable: "ac" in its VmFlags stays."""
    found = in_child("""
        def charged(reservation):
            total, inside = 0, False
            with open("/proc/self/smaps") as lines:
                for line in lines:
                    first = line.split()[0]
                    if "-" in first and not first.endswith(":"):
                        start, end = (int(part, 16) for part in first.split("-"))
                        start = max(start, reservation.base)
                        end = min(end, reservation.base + reservation.capacity)
                    elif first == "VmFlags:" and "ac" in line.split() and start < end:
                        total += end - start
            return total

        found = {}
        for method in ("fixed", "protect"):
            backing = PosixBacking(method)
            reservation = backing.reserve(32 << 20)
            values = [charged(reservation)]
            backing.commit(reservation, 0, 16 << 20)
            ctypes.memset(reservation.base, 1, 16 << 20)
            values.append(charged(reservation))
            backing.release(reservation, 0, 16 << 20)
            values.append(charged(reservation))
            found[method] = values
        print(json.dumps(found))
    """)
    assert found["fixed"] == [0, 16 << 20, 0]
    assert found["protect"] == [0, 16 << 20, 16 << 20]


@pytest.mark.parametrize("method", ["fixed", "protect", "advise"])
def test_release_returns_resident_memory(method):
    found = in_child(f"""
        backing = PosixBacking("{method}")
        reservation = backing.reserve(64 << 20)
        before = resident()
        backing.commit(reservation, 0, 64 << 20)
        ctypes.memset(reservation.base, 1, 64 << 20)
        full = resident()
        backing.release(reservation, 0, 64 << 20)
        print(json.dumps(dict(gained=full - before, left=resident() - before)))
    """)
    assert found["gained"] >= 64 << 20
    assert found["left"] <= 4 << 20


def test_reserving_far_more_than_ram_is_not_resident():
    found = in_child("""
        backing = PosixBacking("fixed")
        before = resident()
        reservation = backing.reserve(1 << 44)
        print(json.dumps(dict(gained=resident() - before, areas=count_mappings())))
    """)
    assert found["gained"] <= 1 << 20


def test_rlimit_as_stops_a_reservation_and_says_so():
    found = in_child("""
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))
        try:
            PosixBacking("fixed").reserve(8 << 30)
        except OutOfMemoryError as error:
            print(json.dumps(dict(text=str(error), cause=error.cause, hint=error.hint)))
    """)
    assert (
        "mmap(NULL, 8589934592, PROT_NONE, MAP_PRIVATE|MAP_ANON) failed: ENOMEM (12)"
        in found["text"]
    )
    assert "RLIMIT_AS is 4 GiB" in found["cause"]
    assert "ulimit -v" in found["hint"] or "LimitAS=" in found["hint"]


def test_rlimit_data_is_honoured_by_protect_and_exceeded_once_by_fixed():
    """The kernel looks only at the pages that a mapping adds, and VmData counts all of it after.

    A MAP_FIXED over a reservation adds none, so it may go past RLIMIT_DATA; whatever asks next then
    finds the limit exceeded (may_expand_vm in mm/vma.c; measured on Linux 6.18).
    """
    found = in_child("""
        found = {}
        resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
        for method in ("fixed", "protect"):
            backing = PosixBacking(method)
            reservation = backing.reserve(1 << 30)
            try:
                backing.commit(reservation, 0, 1 << 30)
                found[method] = None
            except OutOfMemoryError as error:
                found[method] = [error.cause, reservation.blocks.total]
            backing.unreserve(reservation)
        print(json.dumps(found))
    """)
    assert "RLIMIT_DATA is 256 MiB" in found["protect"][0]
    assert found["protect"][1] == 0
    if found["fixed"] is not None:  # a kernel that counts both is stricter, and told the same way
        assert "RLIMIT_DATA" in found["fixed"][0]


def test_past_rlimit_data_not_one_more_page_is_had():
    found = in_child("""
        read_limits()
        resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
        backing = PosixBacking("fixed")
        reservation = backing.reserve(1 << 30)
        done, step = 0, 32 << 20
        try:
            while done < 1 << 30:
                backing.commit(reservation, done, step)
                done += step
        except OutOfMemoryError as error:
            cause = error.cause
        backing.unreserve(reservation)
        print(json.dumps(dict(done=done, cause=cause)))
    """)
    assert 192 << 20 <= found["done"] <= 256 << 20
    assert "RLIMIT_DATA is 256 MiB" in found["cause"]


def test_a_writable_reservation_counts_towards_rlimit_data():
    found = in_child("""
        resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
        try:
            PosixBacking("advise").reserve(1 << 30)
        except OutOfMemoryError as error:
            print(json.dumps(dict(cause=error.cause)))
    """)
    assert "RLIMIT_DATA is 256 MiB" in found["cause"]


def test_a_lack_of_addresses_is_distinguished_from_a_lack_of_memory():
    with pytest.raises(OutOfMemoryError) as caught:
        open_backing().reserve(1 << 50)
    assert "address space" in caught.value.cause


def flags_at(address: int) -> set[str]:
    """Return the VmFlags of the area that holds *address*, as /proc/self/smaps shows them."""
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(part, 16) for part in first.split("-"))
                inside = start <= address < end
            elif inside and first == "VmFlags:":
                return set(rest)
    return set()


@pytest.mark.parametrize("method", ["fixed", "protect", "advise"])
def test_huge_reservations_are_aligned_and_every_commit_requests_huge_pages(method):
    """A new mapping by MAP_FIXED has lost the advice of the one that it replaces."""
    backing = open_backing(huge=True, method=method)
    reservation = backing.reserve(8 << 20)
    try:
        assert reservation.base % (2 << 20) == 0
        for _ in range(2):
            backing.commit(reservation, 0, 4 << 20)
            assert "hg" in flags_at(reservation.base + (2 << 20))
            backing.release(reservation, 0, 4 << 20)
    finally:
        backing.unreserve(reservation)


@pytest.mark.parametrize(("method", "escapes"), [("fixed", 0), ("protect", 0), ("advise", 1)])
def test_only_the_advise_method_escapes_the_commit_charge(method, escapes):
    """``nr`` is MAP_NORESERVE: with it, writable memory is not charged and never refused."""
    backing = open_backing(method=method)
    reservation = backing.reserve(8 << 20)
    try:
        assert ("nr" in flags_at(reservation.base)) == escapes
        backing.commit(reservation, 0, 4 << 20)
        flags = flags_at(reservation.base)
        assert ("nr" in flags, "ac" in flags) == (bool(escapes), not escapes)
    finally:
        backing.unreserve(reservation)


@pytest.mark.parametrize("method", ["fixed", "protect", "advise"])
def test_labelled_mappings_show_their_name(method):
    backing = open_backing(method=method, label="vmtool-test-label")
    reservation = backing.reserve(1 << 20)
    try:
        backing.commit(reservation, 0, 1 << 19)
        with open("/proc/self/maps") as maps:
            lines = [line for line in maps if "[anon:vmtool-test-label]" in line]
        with open("/proc/self/maps") as maps:
            if not lines and not any("[anon:" in line for line in maps):
                pytest.skip("this kernel was built without CONFIG_ANON_VMA_NAME")
        assert lines
    finally:
        backing.unreserve(reservation)


@pytest.mark.parametrize("method", ["fixed", "protect", "advise"])
def test_prefault_makes_a_commit_resident(method):
    found = in_child(f"""
        backing = PosixBacking("{method}", prefault=True)
        reservation = backing.reserve(16 << 20)
        before = resident()
        backing.commit(reservation, 0, 16 << 20)
        print(json.dumps(dict(gained=resident() - before)))
    """)
    assert found["gained"] >= 15 << 20
