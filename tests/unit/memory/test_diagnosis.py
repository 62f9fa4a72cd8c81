"""Out of memory is never the last word: each condition has one cause and one remedy."""

import sys
from dataclasses import replace

import pytest

from vmtool.memory.counters import MemoryLimits
from vmtool.units import GIB, MIB, TIB

if sys.platform == "win32":
    pytest.skip("asks about POSIX", allow_module_level=True)

from vmtool.memory.posix.diagnosis import diagnose_host

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
