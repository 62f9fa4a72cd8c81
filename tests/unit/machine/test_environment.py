"""Containers, hypervisors, WSL and gVisor are told by hints."""

import pytest

from vmtool.machine.environment import parse_wsl, read_environment
from vmtool.machine.facts import EnvironmentFacts

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
