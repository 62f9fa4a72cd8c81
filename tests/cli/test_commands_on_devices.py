"""The commands for the host on a CUDA device: here the stand-in driver, which is no hardware."""

import dataclasses
import json
from pathlib import Path

import pytest
from stored_runs import described

from vmtool.machine import read_facts
from vmtool.machine.doctor.device_rules import check_device
from vmtool.memory.cuda.devices import DeviceInfo
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.units import GIB, MIB


def test_granularity_has_a_column_for_each_device(run_on_standin):
    ran = run_on_standin(["granularity", "--json"], devices=2)
    assert ran.returncode == 0, ran.stderr
    _, *devices = json.loads(ran.stdout)["backings"]
    assert [device["name"] for device in devices] == ["cuda:0", "cuda:1"]
    for device in devices:
        assert device["granularity"]["commit_bytes"] == 2 * MIB
        assert device["granularity"]["page_bytes"] is None
        assert device["largest_reservation"]["works_bytes"] > 1 << 40
        assert (
            device["largest_reservation"]["tries"] <= 24
        )  # a device may take long to give a range back
    ran.assert_clean()


def test_a_device_proves_its_granule(run_on_standin):
    ran = run_on_standin(["granularity", "--backing", "cuda:0", "--prove", "--json"])
    assert ran.returncode == 0, ran.stderr
    (device,) = json.loads(ran.stdout)["backings"]
    assert {check["outcome"] for check in device["checks"]} == {"passed"}
    proofs = [check["values"] for check in device["checks"]]
    assert [proof["accepted"] for proof in proofs][:2] == [True, True]
    driver = [proof for proof in proofs if proof["who"] == "driver"]
    assert [proof["accepted"] for proof in driver] == [True, False, False]
    assert driver[1]["answer"] == "CUDA_ERROR_INVALID_VALUE (1)"
    # The two refused sizes are what the stand-in objects to, and nothing else.
    assert [v["rule"] for v in ran.reports[0]["violations"]] == ["C1", "C1"]
    assert not any(ran.reports[0]["live"].values())


def test_the_text_names_the_device(run_on_standin):
    ran = run_on_standin(["granularity"])
    assert "cuda:0: vmtool stand-in GPU 0 (no hardware)" in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["compute", "capability", "9.0"] in rows
    assert "CUDA 13.0, PCI 0000:01:00.0, ECC off" in ran.stdout
    assert ["memory", "1", "GiB,", "1", "GiB", "free"] in rows


def test_without_devices_the_column_says_why(run_on_standin):
    ran = run_on_standin(["granularity"], devices=0)
    assert ran.returncode == 0
    assert "cuda: not available: CUDA is not usable here" in ran.stdout


def test_reserving_on_a_device_takes_none_of_its_memory(run_on_standin):
    ran = run_on_standin(["reserve", "64GiB", "--backing", "cuda", "--json"])
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    (check,) = document["checks"]
    assert check["name"] == "counters.device_memory"
    assert check["values"]["change_bytes"] == 0
    assert document["passed"]
    ran.assert_clean()


def test_growing_on_a_device_checks_what_the_cpu_can_see(run_on_standin):
    ran = run_on_standin(["grow", "--to", "64MiB", "--backing", "cuda:0", "--json"])
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    compared = {check["name"]: check["values"]["compared"] for check in document["checks"]}
    assert compared["base"] == len(document["steps"]["length_bytes"])
    assert compared["contents"] > 0
    assert compared["zero"] == 0  # nothing is promised about it
    assert compared["released"] == 1
    assert document["copying"]["steps"] > 0  # by allocating, copying and freeing on the device
    ran.assert_clean()


@pytest.mark.parametrize("method", ["cold", "pooled"])
@pytest.mark.parametrize(("size", "compared"), [("32MiB", 1), ("96MiB", 1), ("16MiB", 0)])
def test_growing_on_a_device_checks_that_all_is_released(run_on_standin, method, size, compared):
    arguments = ["--backing", "cuda:0", "--method", method, "--json"]
    ran = run_on_standin(["grow", "--to", size, *arguments])
    assert ran.returncode == 0, ran.stderr
    released = json.loads(ran.stdout)["checks"][-1]
    outcome = "passed" if compared else "not done"
    assert released == {"name": "released", "outcome": outcome, "values": {"compared": compared}}
    ran.assert_clean()


@pytest.mark.parametrize(
    ("fault", "left", "nvml"),
    [
        ("cuMemRelease:1+=SKIP", 64, False),  # all of it is nobody else's
        ("cuMemUnmap:1+=SKIP", 64, False),
        ("cuMemRelease:9+=SKIP", None, False),  # less may be others'
        ("cuMemRelease:1+=SKIP", 64, True),
        ("cuMemUnmap:1+=SKIP", 64, True),
        ("cuMemRelease:9+=SKIP", 48, True),
        ("cuMemRelease:17+=SKIP", 0, True),  # half of it is within the tolerance
    ],
)
def test_memory_that_a_device_does_not_get_back_is_found(fakecuda_lib, tmp_path, fault, left, nvml):
    from fakecuda import control

    program = (
        "from vmtool.machine import read_facts\n"
        "from vmtool.memory.backing_by_name import open_device\n"
        "from vmtool.memory.injected_faults import FaultyCalls\n"
        "from vmtool.memory.inject_option import parse_fault\n"
        "from vmtool.probes.grow import GrowPlan, run_growth\n"
        f"faults = FaultyCalls([parse_fault({fault!r})])\n"
        f"backing = open_device('cuda', faults=faults)\n"
        "plan = GrowPlan((32 << 20, 64 << 20, 0), 64 << 20, against_copying=False)\n"
        "result, _ = run_growth(backing, plan, read_facts())\n"
        "print(result.checks[-1].values.get('unreleased_bytes'))\n"
    )
    path = control.environment(tmp_path)["PYTHONPATH"]
    stand_in = str(Path(control.__file__).parent / "nvml")
    env = {"PYTHONPATH": f"{stand_in}:{path}", "FAKENVML": "on"} if nvml else {}
    settings = {"granularity": "2MiB", "context_memory": "1MiB"}
    ran = control.run_python(["-c", program], tmp_path, env=env, **settings)
    assert ran.stdout.strip() == str(left << 20 if left else None), ran.stderr


def test_a_pool_that_loses_handles_is_found(fakecuda, monkeypatch):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.cuda.handles import HandlePool
    from vmtool.memory.governor import Governor
    from vmtool.probes.grow import GrowPlan, run_growth

    fakecuda.reset()
    governor = Governor()
    backing = open_device("cuda", method="pooled", governor=governor)
    lost = []
    monkeypatch.setattr(HandlePool, "give", lambda _, handle: lost.append(handle))
    plan = GrowPlan((64 << 20, 0), 64 << 20, against_copying=False)
    result, _ = run_growth(backing, plan, read_facts(), governor=governor)
    (check,) = [check for check in result.checks if check.failed]
    assert (check.name, check.values["unreleased_bytes"]) == ("released", 64 << 20)
    monkeypatch.undo()
    for handle in lost:
        backing.source.give(handle)
    backing.close()


@pytest.mark.parametrize("driver_model", ["wddm", "wsl"])
def test_where_free_memory_is_a_budget_released_memory_is_not_reported(fakecuda, driver_model):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.probes.grow import GrowPlan, run_growth

    fakecuda.reset()
    backing = open_device("cuda")
    backing.context.info = dataclasses.replace(backing.context.info, driver_model=driver_model)
    plan = GrowPlan((64 << 20, 0), 64 << 20, against_copying=False)
    result, _ = run_growth(backing, plan, read_facts())
    assert result.checks[-1].outcome is CheckOutcome.NOT_DONE
    backing.close()


def test_where_free_memory_is_a_budget_a_reservation_is_not_judged_by_it(fakecuda):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.probes.reserve import measured_reservation

    fakecuda.reset()
    backing = open_device("cuda")
    outcomes = []
    for model in (None, "wddm"):
        backing.context.info = dataclasses.replace(backing.context.info, driver_model=model)
        with measured_reservation(backing, 64 << 20, read_facts()) as result:
            outcomes += [check.outcome for check in result.checks]
    assert outcomes == [CheckOutcome.PASSED, CheckOutcome.NOT_DONE]
    backing.close()


def test_a_reservation_is_not_blamed_for_what_another_process_takes_meanwhile(fakecuda):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.probes.reserve import measured_reservation

    fakecuda.reset()
    backing = open_device("cuda")
    call, reserve = backing.context.call, backing.reserve
    taken = []

    def reserve_beside_another(nbytes):
        taken.append(call("cuMemCreate", 200 * MIB, backing.properties, 0))  # stands for another's
        return reserve(nbytes)

    backing.reserve = reserve_beside_another
    with measured_reservation(backing, 64 << 20, read_facts()) as result:
        (check,) = result.checks
    assert check.outcome is CheckOutcome.NOT_DONE
    assert check.values["reason"] == "device-shared"
    for handle in taken:
        call("cuMemRelease", handle)
    backing.close()


def test_more_than_the_device_has_free_is_refused(run_on_standin):
    ran = run_on_standin(["grow", "--to", "1GiB", "--backing", "cuda:0"], memory="1GiB")
    assert ran.returncode == 5
    assert "on the device" in ran.stderr
    assert "or less" in ran.stderr
    ran.assert_clean()


def test_doctor_lists_devices(run_on_standin):
    ran = run_on_standin(["doctor", "--json"], devices=2)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["device_findings"]
    assert [check["kind"] for check in found] == ["device", "device"]
    assert {check["rating"] for check in found} == {"ok"}


def test_a_device_without_virtual_memory_management_is_a_problem(run_on_standin):
    ran = run_on_standin(["doctor", "--strict"], vmm=0)
    assert ran.returncode == 3
    assert "no virtual memory management" in ran.stdout


def test_a_device_that_cannot_be_used_is_still_described(run_on_standin):
    ran = run_on_standin(["granularity", "--backing", "cuda:0"], vmm=0)
    assert ran.returncode == 4
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert ["virtual", "memory", "management", "no"] in rows
    assert ["memory", "1", "GiB,", "unknown", "free"] in rows
    assert ["host", "NUMA", "node", "none"] in rows
    assert "cuda:0: not available" in ran.stdout


def test_a_device_without_room_for_a_context_hides_neither_itself_nor_others(run_on_standin):
    fault = "cuDevicePrimaryCtxRetain:1=2"
    ran = run_on_standin(["granularity", "--json"], devices=2, fail=fault)
    assert ran.returncode == 0, ran.stderr
    _, first, second = json.loads(ran.stdout)["backings"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in first["absent"]
    assert first["device"]["total_bytes"] == GIB
    assert second["absent"] is None
    ran = run_on_standin(["doctor", "--json"], devices=2, fail=fault)
    checks = json.loads(ran.stdout)["device_findings"]
    words = [check["message"] for check in checks if check["kind"] in {"cuda", "device"}]
    assert "cuDevicePrimaryCtxRetain" in words[0]
    assert words[1].startswith("cuda:1")


@pytest.mark.parametrize(
    "command",
    [
        "granularity",
        "doctor",
        "reserve 64MiB --backing cuda",
        "grow --to 8MiB --backing cuda",
        "stress --method all --capacity 8MiB --cycles 9 --backing cuda",
        "kv-estimate llama-3.1-8b --budget cuda:0 --weights none",
    ],
)
def test_the_facts_of_a_device_match_the_schema(run_on_standin, command):
    ran = run_on_standin([*command.split(), "--json"])
    assert ran.returncode == 0, ran.stderr
    described(json.loads(ran.stdout))


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
    assert "100 MiB of 8 GiB free" in check.message


def allocations(ran):
    (device,) = json.loads(ran.stdout)["backings"]
    return {
        (kind["location"], kind["handle"], kind["flag"]): (
            kind["supported"],
            kind["minimum_bytes"],
            kind["recommended_bytes"],
        )
        for kind in device["allocations"]
    }


def test_granularity_shows_every_kind_of_allocation(run_on_standin):
    ran = run_on_standin(
        ["granularity", "--backing", "cuda:0", "--json"],
        granularity="64KiB",
        granularity_rec="2MiB",
        host_numa=1,
        rdma=1,
        fabric=1,
        compression=1,
    )
    assert ran.returncode == 0, ran.stderr
    offered = (True, 64 << 10, 2 * MIB)
    assert allocations(ran) == {
        ("device", "none", None): offered,
        ("device", "posix-fd", None): offered,
        ("device", "fabric", None): offered,
        ("device", "none", "compressible"): offered,
        ("device", "none", "rdma"): offered,
        ("host NUMA node 0", "none", None): offered,
    }
    (device,) = json.loads(ran.stdout)["backings"]
    assert device["free_bytes"] == device["device"]["total_bytes"] == GIB
    assert device["device"]["attributes"]["multicast"] == 0
    ran.assert_clean()


def test_what_a_device_does_not_support_is_not_requested(run_on_standin):
    ran = run_on_standin(["granularity", "--backing", "cuda:0", "--json"], posix_fd=0)
    assert allocations(ran)["device", "posix-fd", None] == (False, None, None)
    assert allocations(ran)["device", "none", "rdma"] == (False, None, None)
    ran.assert_clean()


def test_plain_cuda_is_the_device_that_the_environment_names(python_with_fakecuda):
    code = (
        "import os, sys; os.environ['VMTOOL_DEVICE'] = '1'; from vmtool.cli.app import run; "
        "sys.exit(run(['reserve', '1GiB', '--backing', 'cuda', '--json']))"
    )
    ran = python_with_fakecuda(code, devices=2)
    assert ran.returncode == 0, ran.stderr
    assert "opening CUDA device 1..." in ran.stderr
    document = json.loads(ran.stdout)
    assert (document["backing"], document["device"]) == (
        "cuda:1",
        "vmtool stand-in GPU 1 (no hardware)",
    )


@pytest.mark.parametrize("value", ["x", "-1", "1.0"])
def test_a_device_that_is_no_number_is_wrong_usage(vmtool, monkeypatch, value):
    monkeypatch.setenv("VMTOOL_DEVICE", value)
    ran = vmtool("reserve", "1GiB", "--backing", "cuda")
    assert ran.code == 2
    assert "VMTOOL_DEVICE" in ran.stderr
    ran = vmtool("kv-estimate", "gpt2", "--budget", "cuda")
    assert ran.code == 2
    assert "opening" not in ran.stderr


def test_doctor_rates_one_device_with_its_free_memory(run_on_standin):
    ran = run_on_standin(["doctor", "--backing", "cuda:1", "--json"], devices=2)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert [each["kind"] for each in document["device_findings"]] == ["device"]
    assert document["machine_findings"] == []
    ran = run_on_standin(["doctor", "--backing", "cuda:all", "--json"], devices=2)
    document = json.loads(ran.stdout)
    assert [each["kind"] for each in document["device_findings"]] == ["device", "device"]
    assert document["machine_findings"] == []
    ran.assert_clean()
    missing = run_on_standin(["doctor", "--backing", "cuda:2"], devices=2)
    assert missing.returncode == 4


def test_doctor_leaves_devices_out_for_the_host(vmtool):
    ran = vmtool("doctor", "--backing", "host", "--json")
    assert ran.code == 0
    assert ran.document["machine_findings"]
    assert ran.document["device_findings"] == []


@pytest.mark.parametrize("method", ["cold", "pooled"])
@pytest.mark.parametrize("chunk", ["2MiB", "6MiB", "8MiB", "20MiB"])
def test_growing_by_chunks_of_a_handle(run_on_standin, method, chunk):
    arguments = ["--method", method, "--chunk", chunk, "--backing", "cuda:0", "--json"]
    ran = run_on_standin(["grow", "--to", "32MiB", *arguments], poison=0xA5)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["method"] == method
    assert f"{document['granule_bytes'] // MIB}MiB" == chunk
    ran.assert_clean()


@pytest.mark.parametrize("chunk", ["3MiB", "64KiB"])
def test_a_chunk_that_no_handle_can_have_is_wrong_usage(run_on_standin, chunk):
    ran = run_on_standin(["reserve", "1GiB", "--backing", "cuda", "--chunk", chunk])
    assert ran.returncode == 2
    assert "use a multiple of 2097152" in ran.stderr
    legal = ran.stderr.rpartition("such as ")[2].strip()
    assert legal == {"3MiB": "4194304", "64KiB": "2097152"}[chunk]
    ran = run_on_standin(["reserve", "1GiB", "--backing", "cuda", "--chunk", legal])
    assert ran.returncode == 0


@pytest.mark.parametrize("command", ["reserve", "grow", "stress"])
def test_help_says_what_a_chunk_can_be(vmtool, command):
    words = " ".join(vmtool(command, "--help").stdout.split())
    assert "Size of each physical handle of a device, a multiple of its granularity;" in words


def test_all_devices_are_not_for_every_command(vmtool):
    ran = vmtool("grow", "--to", "4MiB", "--backing", "cuda:all")
    assert ran.code == 2
    assert "not cuda:all" in ran.stderr


def test_a_chunk_is_not_for_the_host(vmtool):
    assert vmtool("reserve", "1GiB", "--chunk", "2MiB").code == 2


def test_a_granularity_that_is_no_power_of_two_is_an_error_and_no_default(fakecuda, monkeypatch):
    from vmtool.errors import VmtoolError
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.cuda.driver import Driver

    fakecuda.reset()
    for answer in (0, 3 << 20, -1):
        monkeypatch.setattr(Driver, "granularity", lambda *_, answer=answer: answer)
        with pytest.raises(VmtoolError, match="not a power of two"):
            open_device("cuda")


def test_a_granularity_query_that_fails_is_an_error_and_no_default(run_on_standin):
    ran = run_on_standin(
        ["reserve", "1GiB", "--backing", "cuda"], fail="cuMemGetAllocationGranularity:1+=999"
    )
    assert ran.returncode == 1
    assert "cuMemGetAllocationGranularity" in ran.stderr
    ran.assert_clean()


def test_growing_on_a_pool_finds_memory_that_is_not_zero(fakecuda):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.governor import Governor
    from vmtool.memory.inject_option import parse_fault
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.probes.grow import GrowPlan, run_growth

    fakecuda.reset(granularity="64KiB", poison=0xA5)
    plan = GrowPlan((64 << 10, 256 << 10, 64 << 10), 1 << 20, against_copying=False)
    for faults, failed in (([], None), (["cuMemsetD8:2=SKIP"], "zero")):
        governor = Governor()
        faulty = FaultyCalls([parse_fault(text) for text in faults])
        backing = open_device("cuda", method="pooled", governor=governor, faults=faulty)
        result, _ = run_growth(backing, plan, read_facts(), governor=governor)
        assert next((check.name for check in result.checks if check.failed), None) == failed
        backing.close()


def test_growing_on_a_device_finds_bytes_that_are_gone(fakecuda):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.inject_option import parse_fault
    from vmtool.memory.injected_faults import FaultyCalls
    from vmtool.probes.grow import GrowPlan, run_growth

    fakecuda.reset(granularity="64KiB")
    plan = GrowPlan((64 << 10, 256 << 10, 64 << 10), 1 << 20, against_copying=False)
    backing = open_device("cuda", faults=FaultyCalls([parse_fault("cuMemcpyHtoD:1=SKIP")]))
    result, _ = run_growth(backing, plan, read_facts())
    (check,) = [check for check in result.checks if check.failed]
    assert (check.name, check.values["offset"]) == ("contents", 0)
    backing.close()
