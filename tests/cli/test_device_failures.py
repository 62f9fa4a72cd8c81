"""Every driver call of every command fails in turn: the exit code is right, and nothing is left."""

from __future__ import annotations

import json

import pytest

COMMANDS = {
    "granularity": ["granularity", "--backing", "cuda:0"],
    "reserve": ["reserve", "1GiB", "--backing", "cuda:0"],
    "grow-cold": [
        *["grow", "--to", "8MiB", "--step", "4MiB", "--backing", "cuda:0"],
        *["--against", "nothing"],
    ],
    "grow-pooled": [
        *["grow", "--to", "8MiB", "--step", "4MiB", "--backing", "cuda:0"],
        *["--method", "pooled", "--against", "nothing"],
    ],
    "kv-estimate": ["kv-estimate", "gpt2", "--budget", "cuda:0"],
    "doctor": ["doctor", "--backing", "cuda:0"],
}
#: Without these there is no device to use: not available here.
ABSENT = ("cuInit",)
#: What can be done without: an attribute or a UUID that is not known, giving back at the end.
TOLERATED = (
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRelease",
    "cuMemGetAccess",
)

#: The largest reservation is found by refusals, and what a refusal cannot explain is left unexplained.
UNNOTICED = {
    ("granularity", f"cu{call}") for call in ("CtxPopCurrent", "CtxPushCurrent", "MemGetInfo")
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_call_fails_in_turn(run_on_standin, command):
    ran = run_on_standin(COMMANDS[command])
    assert ran.returncode == 0
    ran.assert_clean()
    calls = sorted(ran.reports[0]["calls"])
    assert "cuDeviceGetCount" in calls
    for call in calls:
        if call.startswith("cuGet"):
            continue  # the bindings' own look-up, and the words for an error
        ran = run_on_standin(COMMANDS[command], fail=f"{call}:1=999")
        if call in ABSENT:
            assert ran.returncode == 4, (call, ran.stderr)
        elif call in TOLERATED or (command, call) in UNNOTICED:
            assert ran.returncode in {0, 1}, (call, ran.stderr)
        else:
            assert ran.returncode in {1, 3}, (call, ran.returncode, ran.stderr)
        if ran.returncode == 1:
            assert f"{call}(" in ran.stderr
            assert "CUDA_ERROR_UNKNOWN" in ran.stderr
        if call not in {"cuMemRelease", "cuDevicePrimaryCtxRelease"}:  # these lose something
            ran.assert_clean()


def test_a_device_out_of_memory_says_what_is_free(run_on_standin):
    arguments = ["grow", "--to", "8MiB", "--backing", "cuda:0"]
    ran = run_on_standin(arguments, fail="cuMemCreate:2=2")
    assert ran.returncode == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in ran.stderr
    assert "is free on the device" in ran.stderr
    ran.assert_clean()


def test_a_lost_device_is_reported_once_and_not_called_again(run_on_standin):
    ran = run_on_standin(["grow", "--to", "8MiB", "--backing", "cuda"], fail="cuMemMap:2=719")
    assert ran.returncode == 1
    assert "CUDA_ERROR_LAUNCH_FAILED" in ran.stderr
    assert ran.reports[0]["calls"]["cuMemMap"]["calls"] == 2
    ran.assert_clean()


@pytest.mark.parametrize("call", ["cuMemGetInfo:1", "cuMemRelease:3", "cuMemAddressFree:1"])
def test_a_device_lost_in_a_probe_is_no_limit(run_on_standin, call):
    """The probe has its refusal by then, but what a lost device answered is no answer."""
    arguments = ["limits", "commit", "--backing", "cuda", "--method", "cold", "--force"]
    ran = run_on_standin(arguments, memory="64MiB", fail=f"{call}=719")
    assert ran.returncode == 1
    assert f"cold: no limit was found: {call.partition(':')[0]}(" in ran.stderr
    assert "Xid" in ran.stderr
    assert "cold: not found" in ran.stdout


def test_limits_keep_what_was_found_before_the_device_was_lost(run_on_standin):
    arguments = ["limits", "reserve", "--backing", "cuda", "--json"]
    calls = run_on_standin(arguments, va_limit="64MiB").reports[0]["calls"]
    at = calls["cuMemGetAllocationGranularity"]["calls"]  # to open the second method's backing
    lost = f"cuMemGetAllocationGranularity:{at}=719"
    ran = run_on_standin(arguments, va_limit="64MiB", fail=lost)
    assert ran.returncode == 1
    assert "vmtool: error: cuMemGetAllocationGranularity(" in ran.stderr
    (kind,) = json.loads(ran.stdout)["kinds"]
    cold, pooled = kind["methods"]
    assert (cold["outcome"], cold["reached"]) == ("found", 64 << 20)
    assert (pooled["outcome"], pooled["tries"]) == ("not found", 0)
    assert "CUDA_ERROR_LAUNCH_FAILED" in pooled["error"]
