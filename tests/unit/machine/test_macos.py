"""The facts of a machine that is neither Linux nor Windows; nothing here was run on macOS."""

from __future__ import annotations

import sys

import pytest

from vmtool.machine import macos


@pytest.mark.skipif(sys.platform == "win32", reason="macOS's facts are read as on POSIX")
def test_what_is_not_known_is_not_told():
    facts = macos.read_other_facts()
    assert facts.memory.total_bytes > 0
    assert facts.commit.mode is None
    assert facts.cgroup.levels == ()


@pytest.mark.skipif(sys.platform == "win32", reason="macOS's facts are read as on POSIX")
@pytest.mark.parametrize(("present", "hypervisor"), [(1, "unknown"), (0, None), (None, None)])
def test_a_hypervisor_shows_in_sysctl(monkeypatch, present, hypervisor):
    numbers = {"kern.hv_vmm_present": present}
    monkeypatch.setattr(macos, "read_integer", numbers.__getitem__)
    assert macos.read_other_facts().environment.hypervisor == hypervisor
