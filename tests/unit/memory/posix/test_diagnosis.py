"""Every lack of memory and every other refusal is given a cause."""

import errno
import mmap
import subprocess
import sys
from dataclasses import replace

import pytest

from vmtool.memory.counters import MemoryLimits
from vmtool.units import GIB, MIB, TIB

if sys.platform == "win32":
    pytest.skip("asks about POSIX", allow_module_level=True)

from vmtool.memory.posix.diagnosis import diagnose_host, diagnose_refusal, has_huge_pages

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(
    ("call", "code", "address", "advice", "kind"),
    [
        ("mmap", errno.EINVAL, PAGE + 1, "", "page-size"),
        ("mprotect", errno.EINVAL, PAGE // 2, "", "page-size"),
        ("madvise", errno.EINVAL, PAGE, "MADV_HUGEPAGE", "no-huge-pages"),
        ("madvise", errno.EINVAL, PAGE, "MADV_POPULATE_WRITE", "old-kernel"),
        ("mmap", errno.EAGAIN, 0, "", "locked-limit"),
        ("mprotect", errno.EACCES, PAGE, "", "forbidden"),
        ("mmap", errno.EPERM, 0, "", "forbidden"),
        ("madvise", 133, PAGE, "MADV_POPULATE_WRITE", "bad-memory"),
    ],
)
def test_each_refusal_has_one_cause_and_one_remedy(call, code, address, advice, kind):
    diagnosis = diagnose_refusal(call, code, address, advice=advice)
    assert diagnosis.kind == kind
    assert diagnosis.cause
    assert diagnosis.remedy


@pytest.mark.parametrize(
    ("huge_pages", "kind", "words"),
    [
        (True, "forbidden", "this kernel has transparent huge pages, so "),
        (False, "no-huge-pages", "CONFIG_TRANSPARENT_HUGEPAGE"),
        (None, "no-huge-pages", "or a sandbox refuses the call; /sys"),
    ],
)
def test_refused_huge_pages_are_missing_only_where_sys_says_so(huge_pages, kind, words):
    found = diagnose_refusal(
        "madvise", errno.EINVAL, PAGE, advice="MADV_HUGEPAGE", huge_pages=huge_pages
    )
    assert found.kind == kind
    assert words in found.cause


def test_transparent_huge_pages_are_looked_for_in_sys(tmp_path):
    assert has_huge_pages(str(tmp_path / "absent")) is None
    assert has_huge_pages(str(tmp_path)) is False
    (tmp_path / "transparent_hugepage").mkdir()
    assert has_huge_pages(str(tmp_path)) is True


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOMEM, errno.EBADF])
def test_an_unknown_failure_is_not_explained(code):
    assert diagnose_refusal("munmap", code, PAGE) is None


@pytest.mark.skipif(sys.platform == "win32", reason="asks a POSIX kernel")
def test_a_call_that_the_kernel_refuses_carries_the_cause():
    from vmtool.memory.posix.calls import CALLS, call_error

    assert CALLS.mprotect(PAGE // 2, PAGE, 0) == -1
    error = call_error("mprotect", PAGE // 2, PAGE, 0)
    assert "EINVAL" in str(error)
    assert f"{PAGE} bytes" in error.cause
    assert "granularity" in error.hint


@pytest.mark.skipif(sys.platform != "linux", reason="MCL_FUTURE and its limit are Linux's")
def test_a_process_that_locks_its_memory_gets_that_cause():
    """mlockall(MCL_FUTURE) makes a mapping beyond RLIMIT_MEMLOCK fail with EAGAIN, not ENOMEM."""
    program = """
import ctypes, os, resource, sys
from vmtool.errors import CallError
from vmtool.memory.posix.backing import PosixBacking
limit = min(8 << 20, *(n for n in resource.getrlimit(resource.RLIMIT_MEMLOCK) if n >= 0))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
if os.geteuid() == 0:
    os.setuid(65534)  # without CAP_IPC_LOCK, which exempts from the limit
if ctypes.CDLL(None).mlockall(2):  # MCL_FUTURE
    sys.exit(77)
try:
    PosixBacking("fixed").reserve(1 << 30)
except CallError as error:
    print(error.symbol, error.cause, error.hint, sep="|")
"""
    child = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    if child.returncode == 77:
        pytest.skip("this process may not lock memory")
    symbol, cause, hint = child.stdout.strip().split("|")
    assert symbol == "EAGAIN", child.stderr
    assert "RLIMIT_MEMLOCK of " in cause
    assert "ulimit -l" in hint or "LimitMEMLOCK=" in hint


CALM = MemoryLimits(
    mappings=100,
    max_mappings=65530,
    address_space_bytes=GIB,
    data_bytes=100 * MIB,
    overcommit_mode=0,
    charge_bytes=2 * GIB,
    charge_limit_bytes=12 * GIB,
    available_bytes=8 * GIB,
    total_bytes=24 * GIB,
)


@pytest.mark.parametrize(
    ("kind", "call", "nbytes", "changes"),
    [
        ("mapping-limit", "mprotect", 4096, {"mappings": 65529}),
        ("mapping-limit", "munmap", 4096, {"mappings": 65530}),
        ("address-space-limit", "reserve", GIB, {"address_space_limit_bytes": GIB + 1}),
        ("data-limit", "mprotect", GIB, {"data_limit_bytes": GIB}),
        ("commit-limit", "mmap", GIB, {"overcommit_mode": 2, "charge_bytes": 12 * GIB}),
        ("commit-limit", "mmap", 10 * GIB, {"overcommit_mode": 2}),
        ("heuristic-overcommit", "mprotect", 25 * GIB, {}),
        ("no-address-range", "reserve", 200 * TIB, {}),
        ("unknown", "mmap", 4096, {}),
        # Limits that exist but do not bind must not be blamed.
        ("unknown", "mmap", 4096, {"address_space_limit_bytes": 10 * GIB}),
        ("unknown", "mprotect", 4096, {"data_limit_bytes": GIB}),
        ("no-address-range", "reserve", 200 * TIB, {"overcommit_mode": 2}),
        ("unknown", "mmap", GIB, {"overcommit_mode": 2}),
        ("unknown", "mprotect", 25 * GIB, {"overcommit_mode": 1}),
        # A writable reservation is more than addresses, but escapes the heuristic.
        ("data-limit", "reserve writable", GIB, {"data_limit_bytes": GIB}),
        ("commit-limit", "reserve writable", 12 * GIB, {"overcommit_mode": 2}),
        ("address-space-limit", "reserve writable", GIB, {"address_space_limit_bytes": GIB}),
        ("no-address-range", "reserve writable", 200 * TIB, {}),
        # A reservation takes addresses only: RLIMIT_DATA is not what stops it.
        ("no-address-range", "reserve", 200 * TIB, {"data_limit_bytes": GIB}),
    ],
)
def test_the_counters_name_the_cause(kind, call, nbytes, changes):
    diagnosis = diagnose_host(call, nbytes, replace(CALM, **changes))
    assert diagnosis.kind == kind
    assert diagnosis.cause
    assert diagnosis.remedy


def test_what_a_counter_proves_comes_before_guesses():
    both = replace(CALM, mappings=65530, data_limit_bytes=1)
    assert diagnose_host("mprotect", 4096, both).kind == "mapping-limit"


def test_without_counters_the_doctor_is_recommended():
    diagnosis = diagnose_host("mmap", 4096, MemoryLimits())
    assert diagnosis.kind == "unknown"
    assert "vmtool doctor" in diagnosis.remedy
