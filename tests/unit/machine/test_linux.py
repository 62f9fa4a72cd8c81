"""Facts come from the kernel's files, and what a file does not tell is unknown."""

import sys

import pytest

from vmtool.machine import read_facts
from vmtool.machine.facts import (
    CommitFacts,
    HugePageFacts,
    HugePool,
    HugeSize,
    MemoryFacts,
    read_memory,
    safe_part,
)
from vmtool.machine.files import parse_choice, parse_int
from vmtool.machine.linux import parse_cpu_model, read_huge_pages, read_linux_facts
from vmtool.memory.process import parse_kib
from vmtool.units import GIB, KIB, MIB

THP = "/sys/kernel/mm/transparent_hugepage"
POOLS = "/sys/kernel/mm/hugepages"

# Recorded on Linux 6.18, x86-64.
X86 = {
    "/proc/meminfo": (
        "MemTotal:       24683652 kB\nMemFree:        22449588 kB\nMemAvailable:   24012420 kB\n"
        "SwapTotal:             0 kB\nSwapFree:              0 kB\nCommitLimit:    12341824 kB\n"
        "Committed_AS:     167784 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"
    ),
    "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n",
    "/proc/sys/vm/overcommit_memory": "0\n",
    "/proc/sys/vm/overcommit_ratio": "50\n",
    f"{THP}/enabled": "always [madvise] never\n",
    f"{THP}/defrag": "always defer defer+madvise [madvise] never\n",
    f"{THP}/hpage_pmd_size": "2097152\n",
    f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]\n",
    f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never\n",
    f"{THP}/hugepages-16kB/shmem_enabled": "always [never]\n",  # a size without a mode of its own
    f"{THP}/khugepaged/defrag": "1\n",
    f"{POOLS}/hugepages-2048kB/nr_hugepages": "8\n",
    f"{POOLS}/hugepages-2048kB/free_hugepages": "3\n",
    f"{POOLS}/hugepages-1048576kB/nr_hugepages": "0\n",
    f"{POOLS}/hugepages-1048576kB/free_hugepages": "0\n",
}


def test_a_recorded_machine(recorded):
    memory = MemoryFacts(24683652 * KIB, 24012420 * KIB, 0, 0)
    facts = read_linux_facts(recorded(X86), memory)
    assert facts.system.cpu_model == "AMD EPYC"
    assert facts.memory == memory
    assert facts.commit == CommitFacts(0, 50, 12341824 * KIB, 167784 * KIB)
    assert facts.commit.headroom_bytes == (12341824 - 167784) * KIB
    assert not facts.commit.is_enforced
    assert facts.cgroup.levels == ()


def test_huge_pages_are_listed_by_size(recorded):
    assert read_huge_pages(recorded(X86)) == HugePageFacts(
        thp_mode="madvise",
        thp_defrag="madvise",
        pmd_bytes=2 * MIB,
        sizes=(HugeSize(64 * KIB, "never"), HugeSize(2 * MIB, "inherit")),
        pools=(HugePool(2 * MIB, 8, 3), HugePool(GIB, 0, 0)),
    )


def test_a_kernel_without_huge_pages(recorded):
    assert read_huge_pages(recorded({})) == HugePageFacts()


def test_a_machine_that_tells_nothing_has_unknown_facts(recorded):
    facts = read_linux_facts(recorded({}), MemoryFacts())
    assert facts.memory.total_bytes is None
    assert facts.commit.headroom_bytes is None
    assert facts.page_bytes > 0


def test_ram_is_unknown_where_psutil_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert read_memory(3) == MemoryFacts(oom_kills=3)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("model name\t: Intel(R) Xeon(R)\n", "Intel(R) Xeon(R)"),
        ("processor\t: 0\nBogoMIPS\t: 108.00\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("processor : 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_processor_has_a_name_on_most_architectures(cpuinfo, name):
    assert parse_cpu_model(cpuinfo) == name


def test_parsers_take_nonsense_as_unknown():
    assert parse_int("12\n") == 12
    assert parse_int("max") is None
    assert parse_int(None) is None
    assert parse_choice("always never") is None
    assert parse_choice("]x[") is None
    assert parse_kib("A: 5 kB\nB: x kB\nC: 7\n\nD: 1 2 kB\n") == {"A": 5120}
    assert parse_kib(None) == {}


@pytest.mark.parametrize(
    ("available", "safe"),
    [
        (None, GIB),
        (0, 0),
        (200 * MIB, 0),
        (GIB, GIB - 256 * MIB),
        (10 * GIB, 8 * GIB),
        (10 * GIB + 1, 8 * GIB),
    ],
)
def test_the_safe_part_leaves_a_fifth_and_at_least_256_mib(available, safe):
    assert safe_part(available) == safe


def test_this_machine_tells_its_facts():
    facts = read_facts()
    assert facts.page_bytes > 0
    assert facts.memory.total_bytes > 0
    assert 0 <= facts.safe_bytes <= facts.memory.total_bytes
    if sys.platform == "linux":
        assert facts.process.mappings > 0
        assert facts.system.cpus_usable >= 1
