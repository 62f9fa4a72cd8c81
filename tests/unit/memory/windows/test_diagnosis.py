"""Causes of Windows errors, from recorded counters; runs on every platform."""

from __future__ import annotations

import pytest

from vmtool.memory.counters import MemoryLimits
from vmtool.memory.windows.diagnosis import OUT_OF_MEMORY, diagnose_windows, symbol_of

GIB = 1 << 30
FULL = MemoryLimits(charge_bytes=47 * GIB, charge_limit_bytes=48 * GIB, available_bytes=20 * GIB)
ROOMY = MemoryLimits(charge_bytes=4 * GIB, charge_limit_bytes=48 * GIB, available_bytes=20 * GIB)


@pytest.mark.parametrize(
    ("code", "symbol"),
    [  # winerror.h
        (5, "ERROR_ACCESS_DENIED"),
        (6, "ERROR_INVALID_HANDLE"),
        (8, "ERROR_NOT_ENOUGH_MEMORY"),
        (87, "ERROR_INVALID_PARAMETER"),
        (487, "ERROR_INVALID_ADDRESS"),
        (1132, "ERROR_MAPPED_ALIGNMENT"),
        (1455, "ERROR_COMMITMENT_LIMIT"),
        (31337, "UNKNOWN"),
    ],
)
def test_codes_have_their_names(code, symbol):
    assert symbol_of(code) == symbol


def test_only_what_ran_out_is_out_of_memory():
    assert {8, 14, 1450, 1455, 1816} <= OUT_OF_MEMORY
    assert not {5, 6, 87, 487, 1132} & OUT_OF_MEMORY


def test_the_commit_limit_names_its_numbers_and_that_ram_may_be_free():
    diagnosis = diagnose_windows(1455, "VirtualAlloc2", 2 * GIB, FULL)
    assert diagnosis.kind == "commit-limit"
    assert "47 GiB of 48 GiB" in diagnosis.cause
    assert "RAM may still be free" in diagnosis.cause
    assert "page file" in diagnosis.remedy


def test_the_commit_limit_without_counters_names_no_numbers():
    diagnosis = diagnose_windows(1455, "VirtualAlloc2", GIB, MemoryLimits())
    assert diagnosis.kind == "commit-limit"
    assert "None" not in diagnosis.cause


def test_a_limit_that_the_machine_has_not_reached_is_the_jobs():
    diagnosis = diagnose_windows(1455, "CreateFileMappingW", GIB, ROOMY)
    assert diagnosis.kind == "job-limit"
    assert "4 GiB" in diagnosis.cause


@pytest.mark.parametrize("code", [8, 14, 87])
def test_a_reservation_runs_out_of_addresses_and_not_of_memory(code):
    diagnosis = diagnose_windows(code, "reserve", 1 << 47, ROOMY)
    assert diagnosis.kind == "no-address-range"
    assert "128 TiB" in diagnosis.cause
    assert "memory did not run out" in diagnosis.cause


def test_not_enough_memory_for_a_commit_is_not_the_commit_limit():
    diagnosis = diagnose_windows(8, "VirtualAlloc", GIB, ROOMY)
    assert diagnosis.kind == "unknown"
    assert "20 GiB of RAM available" in diagnosis.cause


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4, "too-many-sections"),
        (87, "refused-arguments"),
        (127, "old-windows"),
        (487, "not-a-placeholder"),
        (1132, "misaligned-view"),
        (1450, "kernel-resources"),
        (5, "unknown"),
    ],
)
def test_every_other_code_has_its_own_cause(code, kind):
    diagnosis = diagnose_windows(code, "MapViewOfFile3", 65536, ROOMY)
    assert diagnosis.kind == kind
    assert diagnosis.cause
    assert diagnosis.remedy
