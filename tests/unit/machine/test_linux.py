"""Facts come from the kernel's files; what no file has is unknown."""

import sys

import pytest

from vmtool.machine import read_facts
from vmtool.machine.facts import (
    CommitFacts,
    EnvironmentFacts,
    HugePageFacts,
    HugePool,
    HugeSize,
    MemoryFacts,
    NumaNode,
)
from vmtool.machine.facts_on_every_system import read_memory
from vmtool.machine.kernel_files import MemoryPressure, parse_pressure
from vmtool.machine.linux import (
    parse_cpu_model,
    parse_wsl,
    read_environment,
    read_huge_pages,
    read_linux_facts,
    try_huge_mapping,
)
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
    f"{POOLS}/hugepages-2048kB/resv_hugepages": "2\n",
    f"{POOLS}/hugepages-2048kB/nr_overcommit_hugepages": "5\n",
    f"{POOLS}/hugepages-2048kB/surplus_hugepages": "1\n",
    f"{POOLS}/hugepages-1048576kB/nr_hugepages": "0\n",
    f"{POOLS}/hugepages-1048576kB/free_hugepages": "0\n",
}


def test_a_recorded_machine(recorded):
    facts = read_linux_facts(recorded(X86))
    assert facts.system.cpu_model == "AMD EPYC"
    assert facts.memory == MemoryFacts(24683652 * KIB, 24012420 * KIB, 0, 0)
    assert facts.commit == CommitFacts(0, 50, 12341824 * KIB, 167784 * KIB)
    assert facts.commit.headroom_bytes == (12341824 - 167784) * KIB
    assert not facts.commit.is_enforced
    assert facts.cgroup.levels == ()


def test_huge_pages_are_listed_by_size(recorded):
    tried = {2 * MIB: True}  # an empty pool is not tried
    assert read_huge_pages(recorded(X86), tried.get) == HugePageFacts(
        thp_mode="madvise",
        thp_defrag="madvise",
        pmd_bytes=2 * MIB,
        sizes=(HugeSize(64 * KIB, "never"), HugeSize(2 * MIB, "inherit")),
        pools=(
            HugePool(2 * MIB, 8, 3, works=True, available=1 + 4),
            HugePool(GIB, 0, 0, available=0),
        ),
    )


def test_a_kernel_without_huge_pages(recorded):
    files = recorded({"/sys/kernel/mm/ksm/run": "0\n"})
    assert read_huge_pages(files, dict.get) == HugePageFacts()


def test_where_sys_is_hidden_huge_pages_are_tried(recorded):
    assert read_huge_pages(recorded({}), {0: True}.get) == HugePageFacts(
        hidden=True, advice_works=True
    )


@pytest.mark.skipif(sys.platform != "linux", reason="these pages are Linux's")
def test_a_huge_page_is_really_mapped_or_refused():
    assert try_huge_mapping(0) in {True, False}
    if read_facts().huge_pages.pools:
        assert try_huge_mapping(1 << 40) is False  # no processor has pages of 1 TiB


def test_nodes_and_pressure_and_the_cache_of_zfs_are_read(recorded):
    node = "/sys/devices/system/node"
    files = {
        f"{node}/node0/meminfo": "Node 0 MemTotal:  2048 kB\nNode 0 MemFree:  1024 kB\n",
        f"{node}/node10/meminfo": "Node 10 MemTotal:  4096 kB\nNode 10 MemFree:  0 kB\n",
        f"{node}/node2/meminfo": "Node 2 MemTotal:  0 kB\n",  # processors without memory
        f"{node}/online": "0-10\n",
        "/proc/pressure/memory": (
            "some avg10=1.50 avg60=0.00 avg300=0.00 total=5\n"
            "full avg10=0.25 avg60=0.00 avg300=0.00 total=1\n"
        ),
        "/proc/spl/kstat/zfs/arcstats": "13 1 0x01\nname type data\nc_min 4 100\nsize 4 1100\n",
    }
    memory = read_linux_facts(recorded(files)).memory
    assert memory.nodes == (NumaNode(0, 2 * MIB, MIB), NumaNode(10, 4 * MIB, 0))
    assert memory.pressure == MemoryPressure(1.5, 0.25)
    assert memory.arc_bytes == 1000
    assert parse_pressure("nonsense") is None


def test_facts_that_cannot_be_read_are_unknown(recorded):
    facts = read_linux_facts(recorded({}))
    assert facts.memory.total_bytes is None
    assert facts.commit.headroom_bytes is None
    assert facts.page_bytes > 0


def test_ram_is_unknown_where_psutil_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert read_memory() == MemoryFacts()


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


WSL2 = "Linux version 6.6.87.2-microsoft-standard-WSL2 (root@x) (gcc) #1 SMP\n"
WSL1 = "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc) #1237-Microsoft\n"


def test_bare_metal_is_none_of_these(recorded):
    files = recorded(
        {"/proc/version": "Linux version 6.1.0-18-amd64", "/proc/self/cgroup": "0::/\n"}
    )
    assert read_environment(files, {}) == EnvironmentFacts()


@pytest.mark.parametrize(("version", "expected"), [(WSL2, 2), (WSL1, 1), ("Linux 6.1", None)])
def test_wsl_1_and_2_are_distinguished(version, expected):
    assert parse_wsl(version) == expected


@pytest.mark.parametrize(
    "version",
    [
        "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n",
        "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n",
    ],
)
def test_gvisor_is_recognised_by_its_version(recorded, version):
    assert read_environment(recorded({"/proc/version": version}), {}).gvisor


@pytest.mark.parametrize(
    ("files", "variables", "name"),
    [
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/proc/self/cgroup": "4:memory:/kubepods/burstable/x\n"}, {}, "kubernetes"),
        ({"/proc/self/cgroup": "0::/system.slice/docker-8f.scope\n"}, {}, "docker"),
        ({"/proc/self/cgroup": "0::/lxc/a\n"}, {}, "lxc"),
        ({}, {"container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"/proc/self/cgroup": "0::/user.slice/my-docker-notes\n"}, {}, None),
    ],
)
def test_containers_are_named(recorded, files, variables, name):
    assert read_environment(recorded(files), variables).container == name


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"/sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
        ({"/sys/class/dmi/id/product_name": "KVM\n"}, "KVM"),
        ({"/sys/class/dmi/id/product_name": "Virtual Machine\n"}, "Hyper-V"),
        ({"/sys/hypervisor/type": "xen\n"}, "Xen"),
        ({"/proc/cpuinfo": "flags\t\t: fpu hypervisor sse2\n"}, "unknown"),
        ({"/proc/cpuinfo": "flags\t\t: fpu sse2\nmodel name : hypervisor\n"}, None),
    ],
)
def test_hypervisors_are_named_where_they_can_be(recorded, files, name):
    assert read_environment(recorded(files), {}).hypervisor == name
