"""Runs on a NUMA node and on reserved huge pages agree with the kernel's counts."""

from __future__ import annotations

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("chosen on Linux only", allow_module_level=True)

from vmtool.errors import UnavailableError
from vmtool.memory.backing_by_name import host_methods
from vmtool.memory.posix.huge_pages import read_huge_limits
from vmtool.memory.posix.numa import read_nodes
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import MIB

NODES = read_nodes()


@pytest.mark.skipif(not NODES, reason="this kernel has no NUMA")
def test_every_page_is_on_the_node_that_was_chosen(run, failed):
    report = run(methods=host_methods(), node=NODES[-1])
    if any(f.symbol == "EPERM" for f in report.failures):
        pytest.skip("a seccomp filter forbids mbind")
    assert failed(report) == {}
    assert {c.name: c.outcome for c in report.checks}["node"] is CheckOutcome.PASSED


@pytest.mark.skipif(not NODES, reason="this kernel has no NUMA")
def test_a_run_without_a_node_does_not_check_it(run):
    assert "node" not in {c.name for c in run(cycles=4).checks}


def test_reserved_huge_pages_are_counted_as_the_kernel_counts_them(run, failed):
    if (read_huge_limits(2 * MIB).free_pages or 0) < 4:
        pytest.skip("the pool of huge pages of 2 MiB has fewer than 4 free")
    options = {"granule_bytes": 2 * MIB, "capacity_bytes": 8 * MIB, "huge_page_bytes": 2 * MIB}
    for pattern in ("tail", "random"):
        report = run(pattern=pattern, cycles=30, **options)
        assert report.failures == ()
        assert failed(report) == {}


def test_a_pool_without_pages_is_an_error_before_anything_is_reserved(session):
    begun = session(huge_page_bytes=16 << 30, granule_bytes=16 << 30, capacity_bytes=16 << 30,
                    budget_bytes=16 << 30)  # fmt: skip
    with pytest.raises(UnavailableError, match="no reserved huge page of 16 GiB is available"):
        begun.prepare()
