"""A worker that the kernel kills becomes a result with a cause: the limit that was reached."""

import sys

import pytest


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
