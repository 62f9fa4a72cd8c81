"""Devices that are lost, shared, limited or not their own: what is concluded, on the stand-in."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in needs Linux")

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def with_nvml(fakecuda_lib, tmp_path_factory):
    """``with_nvml(arguments, mode="on", **settings)``: a command beside the stand-in of NVML."""
    from fakecuda import control

    nvml = Path(control.__file__).parent / "nvml"

    def run(arguments, mode="on", **settings):
        folder = tmp_path_factory.mktemp("reports")
        path = f"{nvml}:{control.environment(folder)['PYTHONPATH']}"
        env = {"PYTHONPATH": path, "FAKENVML": mode}
        return control.run_python(["-m", "vmtool", *arguments], folder, env=env, **settings)

    return run


# -- what is free ----------------------------------------------------------------------------------


def test_a_device_without_virtual_memory_management_still_has_a_budget(run_with_fakecuda):
    ran = run_with_fakecuda(["kv-estimate", "gpt2", "--budget", "cuda:0"], attributes="102=0")
    assert ran.returncode == 0, ran.stderr
    ran.assert_clean()


def test_an_integrated_device_is_bounded_by_the_host(run_with_fakecuda):
    arguments = ["grow", "--to", "600TiB", "--step", "600TiB", "--backing", "cuda"]
    settings = {"memory": "800TiB", "va_limit": "128TiB"}
    ran = run_with_fakecuda(arguments, integrated=1, **settings)
    assert ran.returncode == 5, ran.stderr
    ran.assert_clean()


def test_a_coherent_device_is_bounded_by_the_host_too(fakecuda):
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory.cuda.devices import device

    fakecuda.reset(memory="900TiB")
    alone = read_device_memory(device(0))
    assert (alone.free_bytes, alone.shared_with_host) == (900 << 40, False)
    fakecuda.reset(memory="900TiB", attributes="100=1")
    shared = read_device_memory(device(0))
    assert shared.shared_with_host
    assert shared.free_bytes < 900 << 40


def test_the_page_cache_of_an_integrated_device_counts_as_free(fakecuda):
    """Its driver reports the cache as used (vllm issue 48140); the host's MemAvailable knows better."""
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory.cuda.devices import device

    fakecuda.reset(memory="1GiB", others="1000MiB", integrated=1)
    assert read_device_memory(device(0)).free_bytes > 24 * MIB


def test_each_worker_needs_a_context(fakecuda):
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory.cuda.devices import device

    fakecuda.reset(memory="4GiB", context_memory="300MiB")
    one, four = (read_device_memory(device(0), contexts=n) for n in (1, 4))
    assert one.free_bytes == 4 * GIB - 300 * MIB
    assert four.free_bytes == 4 * GIB - 1200 * MIB
    assert (one.context_bytes, one.context_measured) == (300 * MIB, False)
    fakecuda.reset(memory="4GiB", others="3GiB")
    assert read_device_memory(device(0)).context_bytes == 512 * MIB  # an estimate, and no more


def test_doctor_asks_nvml_and_names_who_else_is_there(with_nvml):
    ran = with_nvml(["doctor", "--backing", "cuda:0"], others="200MiB", context_memory="300MiB")
    assert ran.returncode == 0, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "624 MiB of 1 GiB free" in words  # of 824, where a context may take 200
    assert "cuda:0 is in use by /opt/other/engine (4242) with 200 MiB" in words
    assert "cuDevicePrimaryCtxRetain" not in ran.reports[0]["calls"]  # no context was made


# -- a driver that is there and broken -------------------------------------------------------------


@pytest.mark.parametrize("code", [46, 802, 803, 804, 999])
def test_doctor_calls_a_driver_that_does_not_start_a_problem(run_with_fakecuda, code):
    ran = run_with_fakecuda(["doctor", "--strict", "--json"], fail=f"cuInit:1+={code}")
    assert ran.returncode == 3, ran.stderr
    checks = json.loads(ran.stdout)["device_findings"]
    (found,) = [check for check in checks if check["kind"] == "cuda"]
    assert found["rating"] == "problem"
    assert f"({code})" in found["message"]


def test_doctor_is_content_without_a_device(run_with_fakecuda):
    ran = run_with_fakecuda(["doctor", "--json"], devices=0)
    checks = json.loads(ran.stdout)["device_findings"]
    (found,) = [check for check in checks if check["kind"] == "no-cuda"]
    assert found["rating"] == "note"


# -- causes ----------------------------------------------------------------------------------------


def test_memory_refused_below_what_is_free_names_the_limits(run_with_fakecuda, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=16M")
    ran = run_with_fakecuda(
        ["grow", "--to", "64MiB", "--backing", "cuda"], fail="cuMemCreate:10+=2", attributes="133=1"
    )
    assert ran.returncode == 1
    words = " ".join(ran.stderr.split())
    assert "something limits this process below that" in words
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is 0=16M" in words
    assert "commit less" not in words
    ran.assert_clean()


def test_mappings_are_not_blamed_where_there_are_few(run_with_fakecuda):
    arguments = ["grow", "--to", "48MiB", "--step", "48MiB", "--backing", "cuda"]
    ran = run_with_fakecuda(arguments, memory="64MiB", fail="cuMemSetAccess:1=2")
    assert "48 MiB was asked for and 16 MiB is free" in " ".join(ran.stderr.split())
    assert "mappings" not in ran.stderr
    ran.assert_clean()


def test_a_limit_of_addresses_is_named_where_a_reservation_fails(fakecuda):
    from vmtool.memory import open_device
    from vmtool.memory.cuda.driver import CudaOutOfMemoryError

    backing = open_device("cuda")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 45, before[1]))
    try:
        fakecuda.fail("cuMemAddressReserve:1=2")
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.reserve(2 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        backing.close()
    assert "RLIMIT_AS" in caught.value.cause
    assert "half" not in caught.value.hint


def test_an_exclusive_device_is_the_reason_for_a_refused_context(run_with_fakecuda):
    ran = run_with_fakecuda(
        ["reserve", "64MiB", "--backing", "cuda"],
        fail="cuDevicePrimaryCtxRetain:1+=46",
        attributes="20=3",
    )
    assert ran.returncode == 1
    assert "exclusive-process" in ran.stderr


def test_a_missing_function_is_not_available_and_not_a_wrong_count(run_with_fakecuda):
    ran = run_with_fakecuda(["grow", "--to", "8MiB", "--backing", "cuda"], missing="cuMemRelease")
    assert ran.returncode == 4
    assert "cuMemRelease is not offered" in ran.stderr


# -- facts -----------------------------------------------------------------------------------------


def test_a_device_without_the_call_that_knows_slices_has_no_uuid(run_with_fakecuda):
    arguments = ["granularity", "--backing", "cuda:0", "--json"]
    for settings, known in (({}, True), ({"missing": "cuDeviceGetUuid"}, False)):
        ran = run_with_fakecuda(arguments, **settings)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)["backings"][0]["device"]
        assert (found["uuid"] is not None) == known


def test_the_facts_of_a_device_are_in_the_result(run_with_fakecuda):
    ran = run_with_fakecuda(
        ["granularity", "--backing", "cuda:0", "--json"], attributes="20=3,32=1,133=1,100=1"
    )
    device = json.loads(ran.stdout)["backings"][0]["device"]
    assert device["pci"] == "0000:01:00.0"
    facts = {
        name: device["attributes"][name] for name in ("compute_mode", "ecc", "mps", "coherent")
    }
    assert facts == {"compute_mode": 3, "ecc": 1, "mps": 1, "coherent": 1}
