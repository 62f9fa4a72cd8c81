"""``vmtool allocators`` as a user runs it, on the stand-in."""

from __future__ import annotations

import json

import pytest
from stored_runs import described

from vmtool.machine.device_facts import DeviceFacts
from vmtool.report.allocators import to_text
from vmtool.results.allocators import (
    AllocationTiming,
    AllocatorsResult,
    BesideWork,
    ChunkCost,
    DeviceAllocators,
    GrowthTiming,
    StepLatency,
)

MIB = 1 << 20
SMALL = ["--most", "4MiB", "--budget", "32MiB", "--rounds", "1"]


def test_the_document_is_complete_and_nothing_is_left(run_on_standin):
    arguments = ["allocators", "--backing", "cuda:all", *SMALL, "--beside-work", "--json"]
    ran = run_on_standin(arguments, devices=2)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    described(document)
    assert [each["backing"] for each in document["devices"]] == ["cuda:0", "cuda:1"]
    for device in document["devices"]:
        methods = {each["method"] for each in device["timings"]}
        assert methods == {"cold", "pooled", "malloc", "async"}
        assert device["beside"]["work_intact"]
    ran.assert_clean()


def test_a_context_lost_beside_work_is_exit_1(run_on_standin):
    arguments = ["allocators", "--most", "2MiB", "--budget", "4MiB", "--rounds", "1"]
    ran = run_on_standin([*arguments, "--beside-work"], fail="cuMemsetD32Async:5=719")
    assert ran.returncode == 1
    assert "mapping while other work ran on cuda:0 ended the context" in ran.stderr


def test_devices_that_were_measured_before_one_fails_are_in_the_result(run_on_standin):
    arguments = ["allocators", "--backing", "cuda:all", *SMALL, "--json"]
    ran = run_on_standin(arguments, devices=2, fail="cuMemCreate@1:3=214")
    assert ran.returncode == 1
    assert "vmtool: error: cuMemCreate(" in ran.stderr
    assert "note: cuda:1 failed; the result has what was measured before" in ran.stderr
    assert [each["backing"] for each in json.loads(ran.stdout)["devices"]] == ["cuda:0"]


@pytest.mark.parametrize("call", ["cuMemcpyDtoD:1", "cuMemUnmap:9", "cuStreamSynchronize:12"])
def test_what_was_measured_before_the_device_was_lost_is_reported(run_on_standin, call):
    arguments = ["allocators", "--most", "8MiB", "--budget", "32MiB", "--rounds", "2"]
    ran = run_on_standin([*arguments, "--json"], fail=f"{call}=719")
    assert ran.returncode == 1
    assert f"vmtool: error: {call.partition(':')[0]}(" in ran.stderr
    assert "note: cuda:0 failed; the result has what was measured before" in ran.stderr
    assert "while it was undone" not in ran.stderr
    (device,) = json.loads(ran.stdout)["devices"]
    assert not device["complete"]
    assert "CUDA_ERROR_LAUNCH_FAILED" in device["error"]
    assert all(each["rounds"] for each in device["timings"])
    assert run_on_standin(arguments, fail=f"{call}=719").stdout.startswith("ended early; these are")


@pytest.mark.parametrize("intact", [(False, True), (True, False)])
def test_wrong_contents_beside_work_are_exit_3(vmtool, fakecuda, monkeypatch, intact):
    work, beside = intact
    found = BesideWork(cycles=1, work_intact=work, range_intact=beside)
    monkeypatch.setattr("vmtool.probes.allocators_beside_work.run_beside_work", lambda *_: found)
    ran = vmtool(
        "allocators", "--most", "2MiB", "--budget", "4MiB", "--rounds", "1", "--beside-work"
    )
    assert ran.code == 3
    assert "did not keep what was written" in ran.stderr


def test_the_host_has_none_and_a_large_budget_is_refused(vmtool, run_on_standin):
    assert vmtool("allocators", "--backing", "host").code == 2
    ran = run_on_standin(["allocators", "--budget", "1GiB"])
    assert ran.returncode == 5
    assert "--budget" in ran.stderr


def test_the_report(golden):
    device = DeviceFacts(
        backing="cuda:0",
        name="NVIDIA Fixed Data",
        pci="0000:3b:00.0",
        driver_version=13000,
        module_version="580.65.06",
        integrated=False,
        coherent=True,
        ecc=True,
        mig=False,
        mps=False,
        compute_mode="default",
        persistence=True,
        binding_ns=310,
        fresh_zero=True,
    )
    times = {
        2 * MIB: {"cold": (21000, 9000), "pooled": (4000, 5000), "malloc": (15000, 12000)},
        8 * MIB: {"cold": (70000, 30000), "pooled": (9000, 6000), "malloc": (90000, 50000)},
    }
    timings = [
        AllocationTiming(method, size, 9, *pair)
        for size, found in times.items()
        for method, pair in found.items()
    ]
    timings += [
        AllocationTiming("async", size, error="cuDeviceGetDefaultMemPool(0) failed")
        for size in times
    ]
    calls = {
        "cuMemCreate": 19000,
        "cuMemMap": 1500,
        "cuMemSetAccess": 80000,
        "cuMemUnmap": 60000,
        "cuMemRelease": 7000,
    }
    device_result = DeviceAllocators(
        backing="cuda:0",
        device=device,
        granularity_bytes=2 * MIB,
        timings=tuple(timings),
        faster_from_bytes={
            "cold<malloc": 8 * MIB,
            "cold<async": None,
            "pooled<malloc": 2 * MIB,
            "pooled<async": None,
        },
        growth=(GrowthTiming(2 * MIB, 21000, 52000), GrowthTiming(8 * MIB, 70000, 310000)),
        chunks=(
            ChunkCost(2 * MIB, 1 << 30, calls, 15_000_000),
            ChunkCost(6 * MIB, 1 << 30, calls, 6_000_000),
        ),
        knee_bytes=6 * MIB,
        grows_faster_from_bytes=2 * MIB,
        beside=BesideWork(
            cycles=1234,
            alone=StepLatency(400, 41000, 52000, 70000),
            beside=StepLatency(400, 43000, 99000, 1_200_000),
            work_intact=True,
            range_intact=True,
        ),
    )
    result = AllocatorsResult((device_result,))
    golden("allocators", lambda console: to_text(result, console))
