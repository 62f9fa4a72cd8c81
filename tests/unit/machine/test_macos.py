"""The facts of a Mac, read on any POSIX system; nothing here was run on macOS."""

from __future__ import annotations

import sys

import pytest

from vmtool.machine.macos import read_macos_facts


@pytest.mark.skipif(sys.platform == "win32", reason="macOS's facts are read as on POSIX")
def test_what_macos_does_not_have_is_unknown():
    facts = read_macos_facts()
    assert facts.memory.total_bytes > 0
    assert facts.commit.mode is None
    assert facts.cgroup.levels == ()


@pytest.mark.skipif(sys.platform == "win32", reason="macOS's facts are read as on POSIX")
@pytest.mark.parametrize(("present", "hypervisor"), [(1, "unknown"), (0, None), (None, None)])
def test_a_hypervisor_shows_in_sysctl(present, hypervisor):
    facts = read_macos_facts({"kern.hv_vmm_present": present}.__getitem__)
    assert facts.environment.hypervisor == hypervisor
