"""A worker that the kernel kills becomes a result with a cause: the limit that was reached."""

import sys

import pytest

from vmtool.errors import ExitCode


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_a_worker_killed_at_a_control_group_names_the_group(vmtool_child, control_group):
    ran = vmtool_child(
        *("stress", "--capacity", "256MiB", "--budget", "256MiB", "--granule", "2MiB"),
        *("--cycles", "2000", "--touch", "full", "--verify", "off", "--force", "--json"),
        before=control_group.join,
    )
    (accident,) = ran.document["accidents"]
    if accident["signal"] is None:
        pytest.skip("the kernel let the worker swap or exceed the limit")
    assert accident["signal"] == "SIGKILL"
    assert f"the limit of 64 MiB of control group {control_group.path}" in accident["cause"]
    assert "smaller --budget" in accident["hint"]
    assert ran.code != 0


@pytest.mark.skipif(sys.platform != "linux", reason="the signals are those of Linux")
@pytest.mark.parametrize(("hard", "signal"), [("1", "SIGKILL"), ("hard", "SIGXCPU")])
def test_a_worker_killed_at_the_cpu_limit_is_attributed_to_it(vmtool_child, hard, signal):
    limit = "import resource as r\nhard = r.getrlimit(r.RLIMIT_CPU)[1]\n"
    ran = vmtool_child(
        *("stress", "--capacity", "16MiB", "--duration", "60s", "--runs", "1"),
        *("--verify", "off", "--json"),
        before=f"{limit}r.setrlimit(r.RLIMIT_CPU, (1, {hard}))",
    )
    (accident,) = ran.document["accidents"]
    assert accident["signal"] == signal
    assert "RLIMIT_CPU is 1 s" in accident["cause"]
    assert "ulimit -t" in accident["hint"] or "LimitCPU=" in accident["hint"]
    assert ran.code == ExitCode.CALL_FAILED


@pytest.mark.skipif(sys.platform != "linux", reason="the signals are those of Linux")
def test_a_replay_killed_at_the_cpu_limit_says_so_also_when_quiet(vmtool_child):
    limit = "import resource as r\nr.setrlimit(r.RLIMIT_CPU, (1, 1))"
    trace = ("kv-replay", "synthetic:requests=3000", "--model", "gemma-3-1b")
    ran = vmtool_child(*trace, "--backing", "host", "--budget", "4GiB", "--quiet", before=limit)
    assert ran.code == ExitCode.CALL_FAILED
    error, cause, hint = ran.stderr.splitlines()
    assert error == "vmtool: error: the replay process died (SIGKILL)"
    assert cause.startswith("  cause: RLIMIT_CPU is 1 s")
    assert hint.startswith("  hint: ")
