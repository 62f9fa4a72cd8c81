"""The facts of a machine that is neither Linux nor Windows; nothing here was run on macOS."""

from __future__ import annotations

import sys

import pytest

from vmtool.machine import other


@pytest.mark.skipif(sys.platform == "win32", reason="macOS's facts are read as on POSIX")
def test_what_is_not_known_is_not_told():
    facts = other.read_other_facts()
    assert facts.memory.total_bytes > 0
    assert facts.commit.mode is None
    assert facts.cgroup.levels == ()
