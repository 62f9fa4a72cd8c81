"""The commands for the host on a CUDA device: here the stand-in driver, which is no hardware."""

import json

import pytest

from vmtool.memory.cuda.devices import DeviceInfo
from vmtool.trials.devices import check_device
from vmtool.units import GIB, MIB


def test_granularity_has_a_column_for_each_device(run_with_fakecuda):
    ran = run_with_fakecuda(["granularity", "--json"], devices=2)
    assert ran.returncode == 0, ran.stderr
    _, *devices = json.loads(ran.stdout)["backings"]
    assert [device["name"] for device in devices] == ["cuda:0", "cuda:1"]
    for device in devices:
        assert device["granularity"]["commit_bytes"] == 2 * MIB
        assert device["granularity"]["page_bytes"] is None
        assert device["ceiling"]["works_bytes"] > 1 << 40
        assert device["ceiling"]["tries"] <= 24  # a device may take long to give a range back
    ran.assert_clean()


def test_a_device_proves_its_granule(run_with_fakecuda):
    ran = run_with_fakecuda(["granularity", "--backing", "cuda:0", "--prove", "--json"])
    assert ran.returncode == 0, ran.stderr
    (device,) = json.loads(ran.stdout)["backings"]
    assert [proof["accepted"] for proof in device["proofs"]][:2] == [True, True]
    assert all(proof["expected"] for proof in device["proofs"])
    driver = [proof for proof in device["proofs"] if proof["who"] == "driver"]
    assert [proof["accepted"] for proof in driver] == [True, False, False]
    assert driver[1]["answer"] == "CUDA_ERROR_INVALID_VALUE (1)"
    # The two refused sizes are what the stand-in objects to, and nothing else.
    assert [v["rule"] for v in ran.reports[0]["violations"]] == ["C1", "C1"]
    assert not any(ran.reports[0]["live"].values())


def test_the_text_names_the_device(run_with_fakecuda):
    ran = run_with_fakecuda(["granularity"])
    assert "cuda:0: " in ran.stdout
    assert "1 GiB, compute capability" in ran.stdout
    assert "driver for CUDA 13.0" in ran.stdout


def test_without_devices_the_column_says_why(run_with_fakecuda):
    ran = run_with_fakecuda(["granularity"], devices=0)
    assert ran.returncode == 0
    assert "cuda: not available: CUDA is not usable here" in ran.stdout


def test_reserving_on_a_device_takes_none_of_its_memory(run_with_fakecuda):
    ran = run_with_fakecuda(["reserve", "64GiB", "--backing", "cuda", "--json"])
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["ledgers"]["device_memory"]["change_bytes"] == 0
    assert document["passed"]
    ran.assert_clean()


def test_growing_on_a_device_checks_what_the_cpu_can_see(run_with_fakecuda):
    ran = run_with_fakecuda(["grow", "--to", "64MiB", "--backing", "cuda:0", "--json"])
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    looked = {check["check"]: check["looked_at"] for check in document["checks"]}
    assert looked["base stays"] == len(document["steps"]["length_bytes"])
    assert looked["contents survive"] == 0
    assert document["copying"] is None
    ran.assert_clean()


def test_more_than_the_device_has_free_is_refused(run_with_fakecuda):
    ran = run_with_fakecuda(["grow", "--to", "1GiB", "--backing", "cuda:0"], memory="1GiB")
    assert ran.returncode == 5
    assert "on the device" in ran.stderr
    assert "or less" in ran.stderr
    ran.assert_clean()


def test_doctor_lists_devices(run_with_fakecuda):
    ran = run_with_fakecuda(["doctor", "--json"], devices=2)
    assert ran.returncode == 0, ran.stderr
    found = [
        each["check"] for each in json.loads(ran.stdout)["checks"] if each["section"] == "CUDA"
    ]
    assert [check["kind"] for check in found] == ["device", "device"]
    assert {check["rating"] for check in found} == {"ok"}


def test_a_device_without_virtual_memory_management_is_a_problem(run_with_fakecuda):
    ran = run_with_fakecuda(["doctor", "--strict"], vmm=0)
    assert ran.returncode == 3
    assert "no virtual memory management" in ran.stdout


INFO = DeviceInfo(
    ordinal=0,
    name="GPU",
    uuid="0",
    total_bytes=8 * GIB,
    compute_capability="9.0",
    integrated=False,
    driver_version=13000,
    driver_model=None,
    attributes={"vmm": 1},
)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"driver_model": "wddm"}, "wddm"),
        ({"driver_model": "wsl"}, "wsl-device"),
        ({"integrated": True}, "integrated"),
    ],
)
def test_what_a_device_does_unlike_others_is_one_note(changes, kind):
    from dataclasses import replace

    checks = check_device(replace(INFO, **changes), 7 * GIB)
    assert [check.kind for check in checks] == ["device", kind]
    assert checks[1].remedy


def test_a_full_device_is_a_problem():
    (check,) = check_device(INFO, 100 * MIB)
    assert (check.kind, check.rating.value) == ("device-memory", "problem")
    assert "100 MiB of 8 GiB free" in check.finding
