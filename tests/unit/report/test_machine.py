"""The rows about a machine: what only macOS lacks is shown as not available."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from vmtool.machine.facts import EnvironmentFacts, MachineFacts, MemoryFacts, SystemFacts
from vmtool.memory.counters import ProcessLimits
from vmtool.report.machine import machine_rows
from vmtool.report.table import pairs
from vmtool.units import GIB, KIB

MAC = MachineFacts(
    system=SystemFacts("Darwin", "25.1.0", "arm64", "Apple M1", 8, None, "3.13.1", "0.1.0"),
    page_bytes=16 * KIB,
    memory=MemoryFacts(16 * GIB, 8 * GIB, 0, 0),
    process=ProcessLimits(address_space_bytes=400 * GIB),
    environment=EnvironmentFacts(hypervisor="unknown"),
)


def rows(facts):
    console = Console(file=io.StringIO(), width=200)
    console.print(pairs(machine_rows(facts)))
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    return dict(line.split("   ", 1) for line in lines if "   " in line)


@pytest.mark.parametrize(
    "label", ["control group", "transparent huge pages", "commit charge", "memory areas"]
)
def test_facts_that_macos_lacks_are_not_available(label):
    assert rows(MAC)[label].strip() == "not available"
    assert label not in rows(replace(MAC, system=replace(MAC.system, os="Windows")))


def test_facts_of_macos_are_shown():
    shown = rows(MAC)
    assert shown["system"].strip() == "Darwin 25.1.0, arm64, in virtual machine"
    assert shown["processor"].strip() == "Apple M1, 8 logical"
    assert shown["swap"].strip() == "none so far; macOS adds more as needed"
