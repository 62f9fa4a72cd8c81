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


REPLAY = [
    *["kv-replay", "synthetic:requests=40,rate=50,prompt=300,output=100", "--model", "gpt2"],
    *["--backing", "cuda", "--budget", "128MiB", "--json"],
]


@pytest.mark.parametrize("method", ["cold", "pooled"])
@pytest.mark.parametrize("call", ["cuMemMap:9", "cuMemSetAccess:12", "cuMemUnmap:2"])
def test_a_replay_keeps_what_was_done_before_the_device_was_lost(run_on_standin, method, call):
    ran = run_on_standin([*REPLAY, "--method", method], fail=f"{call}=719")
    assert ran.returncode == 1
    name = call.partition(":")[0]
    assert f"vmtool: error: {name}(" in ran.stderr
    assert "Xid" in ran.stderr
    document = json.loads(ran.stdout)
    assert not document["complete"]
    assert document["accident"]["error"].startswith(f"{name}(")
    assert document["real"]["timings"]
    ran.assert_clean()


def test_a_comparison_keeps_the_replays_before_the_device_was_lost(run_on_standin):
    arguments = [*REPLAY, "--compare", "granule=2MiB,4MiB"]
    calls = run_on_standin(arguments).reports[0]["calls"]["cuMemMap"]["calls"]
    ran = run_on_standin(arguments, fail=f"cuMemMap:{calls - 3}=719")
    assert ran.returncode == 1
    document = json.loads(ran.stdout)
    assert len(document["rows"]) == 1
    assert document["problem"].startswith("cuMemMap(")
    assert "vmtool: error: cuMemMap(" in ran.stderr


@pytest.mark.parametrize("call", ["cuMemAlloc:2", "cuMemcpyDtoD:1", "cuMemcpyDtoH:last"])
def test_growth_that_was_measured_is_reported_though_the_device_is_lost_later(run_on_standin, call):
    arguments = ["grow", "--to", "8MiB", "--backing", "cuda", "--json"]
    name, at = call.split(":")
    if at == "last":
        at = run_on_standin(arguments).reports[0]["calls"][name]["calls"]
    ran = run_on_standin(arguments, fail=f"{name}:{at}=719")
    assert ran.returncode == 1
    assert f"vmtool: error: {name}(" in ran.stderr
    document = json.loads(ran.stdout)
    assert document["complete"]
    assert document["machine"]["device"]["fresh_zero"] is None


@pytest.mark.parametrize("call", ["cuMemExportToShareableHandle:1", "cuMemCreate:last"])
def test_granularity_keeps_what_was_found_before_the_device_was_lost(run_on_standin, call):
    arguments = ["granularity", "--backing", "cuda", "--prove", "--json"]
    name, at = call.split(":")
    if at == "last":
        at = run_on_standin(arguments).reports[0]["calls"][name]["calls"]
    ran = run_on_standin(arguments, fail=f"{name}:{at}=719")
    assert ran.returncode == 1
    assert f"vmtool: error: {name}(" in ran.stderr
    (device,) = json.loads(ran.stdout)["backings"]
    assert device["granularity"]["commit_bytes"] == 2 << 20
    assert device["largest_reservation"] is not None
    assert len(device["checks"]) > 2
    assert device["error"].startswith(f"{name}(")
    ran = run_on_standin(arguments[:-1], fail=f"{name}:{at}=719")
    assert f"cuda:0: ended early: {name}(" in " ".join(ran.stdout.split())


def test_a_driver_without_peers_is_used_without_them(run_on_standin):
    arguments = ["stress", "--backing", "cuda:all", "--cycles", "9", "--runs", "1", "--json"]
    ran = run_on_standin(arguments, devices=2, missing="cuDeviceCanAccessPeer")
    assert ran.returncode == 0, ran.stderr
    assert [each["peers"] for each in json.loads(ran.stdout)["devices"]] == [[], []]
    assert "cuDeviceCanAccessPeer is not offered by this driver" in ran.stderr
    prove = ["granularity", "--backing", "cuda:all", "--prove", "--json"]
    ran = run_on_standin(prove, devices=2, missing="cuDeviceCanAccessPeer")
    assert ran.returncode == 0
    peers = json.loads(ran.stdout)["peers"]
    assert [(each["offered"], each["granted"]) for each in peers] == [(None, True)] * 2


def test_growing_goes_on_without_the_calls_of_its_comparison(run_on_standin):
    for missing in ("cuMemAlloc", "cuMemFree", "cuMemcpyDtoD"):
        ran = run_on_standin(["grow", "--to", "8MiB", "--backing", "cuda"], missing=missing)
        assert ran.returncode == 0, ran.stderr
        assert f"{missing} is not offered" in " ".join(ran.stdout.split())
        ran.assert_clean()


@pytest.mark.parametrize("missing", ["cuMemHostRegister", "cuMemHostUnregister"])
def test_pinning_that_a_driver_lacks_is_not_available(run_on_standin, missing):
    ran = run_on_standin(["limits", "lock", "--backing", "cuda"], missing=missing)
    assert ran.returncode == 4
    assert f"vmtool: error: {missing} is not offered" in ran.stderr
    assert "Xid" not in ran.stderr


def test_a_driver_without_its_version_does_not_say_that_it_is_zero(run_with_fakecuda):
    ran = run_with_fakecuda(["reserve", "1GiB", "--backing", "cuda"], missing="cuDriverGetVersion")
    assert ran.returncode == 4
    assert "cuDriverGetVersion is not offered by this driver with cuda-bindings" in ran.stderr


def test_a_matrix_keeps_the_cells_before_the_device_was_lost(run_on_standin):
    arguments = ["matrix", "--backing", "cuda", "--duration", "100ms", "--granule", "2MiB"]
    arguments += ["--method", "cold", "--json"]
    ran = run_on_standin(arguments, fail="cuDeviceGetCount:12=719")  # this process opens the fifth
    assert ran.returncode == 1
    outcomes = [cell["outcome"] for cell in json.loads(ran.stdout)["cells"]]
    assert outcomes[0] == "complete"
    assert outcomes[-1] == "call-failed"
    assert "a cell of the matrix ended early" in ran.stderr
    assert "cuDeviceGetCount() failed" in ran.stderr
