"""When and where a result was measured: what the kernel's files say of it."""

import sys
from typing import NamedTuple

import pytest

from vmtool.machine.run_conditions import RunConditionsWatch


@pytest.mark.skipif(sys.platform != "linux", reason="these files are Linux's")
def test_what_may_explain_a_difference_between_machines_is_recorded(recorded):
    files = recorded(
        {
            "/proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0xa101148\n\nmicrocode\t: 0xb\n",
            "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
            "/sys/module/nvidia/version": "580.65.06\n",
            "/proc/sys/vm/swappiness": "60\n",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "/sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected\n",
            "/sys/devices/system/cpu/vulnerabilities/retbleed": "Vulnerable\n",
        }
    )
    found = RunConditionsWatch(files=files).finish()
    assert found.microcode == "0xa101148"
    assert found.distribution == "Debian GNU/Linux 13 (trixie)"
    assert found.nvidia_driver == "580.65.06"
    assert found.sysctls == {"vm.swappiness": "60"}
    assert found.cpu_governor == "performance"
    assert found.mitigations == {"retbleed": "Vulnerable"}
    nothing = RunConditionsWatch(files=recorded({})).finish()
    assert (nothing.microcode, nothing.distribution, nothing.sysctls) == (None, None, {})


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_without_proc_the_conditions_are_unknown(recorded, monkeypatch, tmp_path):
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    found = RunConditionsWatch(files=recorded({})).finish()
    assert found.started
    assert found.idle_share is None


class CpuTimes(NamedTuple):
    """What ``psutil.cpu_times`` returns where it knows no more."""

    user: float
    idle: float


@pytest.mark.parametrize(("total", "share"), [(0.99, None), (1.0, 0.25)])
def test_a_share_of_too_few_clock_ticks_is_not_given(monkeypatch, total, share):
    found = iter([CpuTimes(5.0, 5.0), CpuTimes(5.0 + total - 0.25, 5.25)])
    monkeypatch.setattr("psutil.cpu_times", lambda: next(found))
    assert RunConditionsWatch().finish().idle_share == share
