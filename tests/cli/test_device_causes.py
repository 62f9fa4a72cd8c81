"""Devices that are shared, limited or integrated: the causes that are named, on the stand-in."""

from __future__ import annotations

import json
import os
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in needs Linux")

MIB = 1 << 20
GIB = 1 << 30


# -- what is free ----------------------------------------------------------------------------------


def test_a_device_without_virtual_memory_management_still_has_a_budget(run_on_standin):
    ran = run_on_standin(["kv-estimate", "gpt2", "--budget", "cuda:0"], attributes="102=0")
    assert ran.returncode == 0, ran.stderr
    ran.assert_clean()


def test_an_integrated_device_is_bounded_by_the_host(run_on_standin):
    arguments = ["grow", "--to", "600TiB", "--step", "600TiB", "--backing", "cuda"]
    settings = {"memory": "800TiB", "va_limit": "128TiB"}
    ran = run_on_standin(arguments, integrated=1, **settings)
    assert ran.returncode == 5, ran.stderr
    ran.assert_clean()


def test_a_coherent_device_is_bounded_by_the_host_too(fakecuda):
    from vmtool.machine.device_memory import read_device_memory
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
    from vmtool.machine.device_memory import read_device_memory
    from vmtool.memory.cuda.devices import device

    fakecuda.reset(memory="1GiB", others="1000MiB", integrated=1)
    assert read_device_memory(device(0)).free_bytes > 24 * MIB


def test_each_worker_needs_a_context(fakecuda):
    from vmtool.machine.device_memory import read_device_memory
    from vmtool.memory.cuda.devices import device

    fakecuda.reset(memory="4GiB", context_memory="300MiB")
    one, four = (read_device_memory(device(0), contexts=n) for n in (1, 4))
    assert one.free_bytes == 4 * GIB - 300 * MIB
    assert four.free_bytes == 4 * GIB - 1200 * MIB
    assert (one.context_bytes, one.context_measured) == (300 * MIB, False)
    fakecuda.reset(memory="4GiB", others="3GiB")
    assert read_device_memory(device(0)).context_bytes == 512 * MIB  # an estimate, and no more


def test_workers_whose_contexts_do_not_fit_are_refused(run_on_standin):
    settings = {"memory": "1GiB", "context_memory": "300MiB"}
    arguments = ["stress", "--backing", "cuda", "--cycles", "4", "--runs", "1", "--workers", "4"]
    ran = run_on_standin(arguments, **settings)
    assert ran.returncode == 5, ran.stderr
    assert "cuDevicePrimaryCtxRetain" not in ran.stderr  # none of them dies of it
    ran.assert_clean()


def test_doctor_asks_nvml_and_names_who_else_is_there(with_nvml):
    ran = with_nvml(["doctor", "--backing", "cuda:0"], others="200MiB", context_memory="300MiB")
    assert ran.returncode == 0, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "624 MiB of 1 GiB free" in words  # of 824, where a context may take 200
    assert "cuda:0 is in use by /opt/other/engine (4242) with 200 MiB" in words
    assert "cuDevicePrimaryCtxRetain" not in ran.reports[0]["calls"]  # no context was made


# -- a driver that is there and broken -------------------------------------------------------------


@pytest.mark.parametrize("code", [46, 802, 803, 804, 999])
def test_doctor_calls_a_driver_that_does_not_start_a_problem(run_on_standin, code):
    ran = run_on_standin(["doctor", "--strict", "--json"], fail=f"cuInit:1+={code}")
    assert ran.returncode == 3, ran.stderr
    checks = json.loads(ran.stdout)["device_findings"]
    (found,) = [check for check in checks if check["kind"] == "cuda"]
    assert found["rating"] == "problem"
    assert f"({code})" in found["message"]


def test_doctor_finds_a_device_that_accepts_no_process_without_a_context(with_nvml):
    ran = with_nvml(["doctor", "--backing", "cuda:0", "--strict"], attributes="20=2")
    assert ran.returncode == 3
    assert "in compute mode prohibited: it accepts no process" in ran.stdout
    assert "nvidia-smi -c DEFAULT" in ran.stdout


def test_doctor_is_content_without_a_device(run_on_standin):
    ran = run_on_standin(["doctor", "--json"], devices=0)
    checks = json.loads(ran.stdout)["device_findings"]
    (found,) = [check for check in checks if check["kind"] == "no-cuda"]
    assert found["rating"] == "note"


# -- causes ----------------------------------------------------------------------------------------


def test_memory_refused_below_what_is_free_names_the_limits(run_on_standin, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=16M")
    ran = run_on_standin(
        ["grow", "--to", "64MiB", "--backing", "cuda"], fail="cuMemCreate:10+=2", attributes="133=1"
    )
    assert ran.returncode == 1
    words = " ".join(ran.stderr.split())
    assert "something limits this process below that" in words
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is 0=16M" in words
    assert "commit less" not in words
    ran.assert_clean()


def test_mappings_are_not_blamed_where_there_are_few(run_on_standin):
    arguments = ["grow", "--to", "48MiB", "--step", "48MiB", "--backing", "cuda"]
    ran = run_on_standin(arguments, memory="64MiB", fail="cuMemSetAccess:1=2")
    assert "48 MiB was requested and 16 MiB is free" in " ".join(ran.stderr.split())
    assert "mappings" not in ran.stderr
    ran.assert_clean()


def test_a_limit_of_addresses_is_named_where_a_reservation_fails(fakecuda):
    from vmtool.memory.backing_by_name import open_device
    from vmtool.memory.cuda.errors_and_diagnosis import CudaOutOfMemoryError

    backing = open_device("cuda")
    import resource

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


def test_an_exclusive_device_is_the_reason_for_a_refused_context(run_on_standin):
    ran = run_on_standin(
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


def test_the_facts_of_a_device_are_in_the_result(run_on_standin):
    ran = run_on_standin(
        ["granularity", "--backing", "cuda:0", "--json"], attributes="20=3,32=1,133=1,100=1"
    )
    device = json.loads(ran.stdout)["backings"][0]["device"]
    assert device["pci"] == "0000:01:00.0"
    known = {name: device[name] for name in ("compute_mode", "ecc", "mps", "coherent")}
    assert known == {
        "compute_mode": "exclusive-process",
        "ecc": True,
        "mps": True,
        "coherent": True,
    }


FACTS = {
    "reserve": ["reserve", "64MiB", "--backing", "cuda"],
    "grow": ["grow", "--to", "4MiB", "--backing", "cuda", "--against", "nothing"],
    "granularity": ["granularity", "--backing", "cuda:0", "--prove"],
    "stress": ["stress", "--backing", "cuda", "--runs", "1", "--cycles", "20"],
    "allocators": ["allocators", "--most", "2MiB", "--budget", "4MiB", "--rounds", "1"],
}


@pytest.mark.parametrize("command", FACTS)
def test_every_result_of_a_device_carries_its_facts(with_nvml, command, tmp_path):
    path = tmp_path / "result.json"
    arguments = [*FACTS[command], "--json", "-o", str(path)]
    ran = with_nvml(arguments, mode="mig", poison=0xA5, attributes="133=1,100=1")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(path.read_text(encoding="utf-8"))
    if command == "granularity":
        device = document["backings"][0]["device"]
    elif command == "allocators":
        device = document["devices"][0]["device"]
    else:
        device = document["machine"]["device"]
    names = (
        "pci",
        "module_version",
        "ecc",
        "mig",
        "mps",
        "persistence",
        "compute_mode",
        "coherent",
    )
    assert [device[name] for name in names] == [
        *("0000:01:00.0", "580.65.06", True, True, True, False, "default", True)
    ]
    assert device["integrated"] is False
    assert device["binding_ns"] > 0
    assert device["fresh_zero"] is (None if command in {"reserve", "limits"} else False)


def test_doctor_has_the_facts_too_and_stress_names_the_neighbour(with_nvml):
    ran = with_nvml(["doctor", "--json"], others="200MiB", attributes="133=1")
    (device,) = json.loads(ran.stdout)["devices"]
    assert (device["mps"], device["module_version"]) == (True, "580.65.06")
    ran = with_nvml([*FACTS["stress"], "--json"], others="200MiB", context_memory="8MiB")
    (other,) = json.loads(ran.stdout)["machine"]["device"]["used_by"]
    assert other == {"pid": 4242, "name": "/opt/other/engine", "used_bytes": 200 * MIB}


@pytest.mark.parametrize("command", ["stress", "grow", "reserve"])
@pytest.mark.parametrize("mode", ["on", "wddm"])
def test_the_text_names_the_neighbour_and_its_bytes(with_nvml, command, mode):
    ran = with_nvml(FACTS[command], mode=mode, others="200MiB", context_memory="8MiB")
    words = " ".join(ran.stdout.split())
    size = " with 200 MiB" if mode == "on" else ""  # not counted by process
    assert f"in use by /opt/other/engine (4242){size}" in words
    assert words.count("(4242)") == 1  # it is not ours
    assert (" with 200 MiB" in words) == (mode == "on")


@pytest.mark.parametrize("listed", [True, False])
def test_no_neighbour_is_named_where_the_list_may_have_vmtool_under_another_number(
    monkeypatch, listed
):
    from types import SimpleNamespace

    from vmtool.machine import nvml
    from vmtool.machine.nvml import DeviceProcess

    other, ours = DeviceProcess(4242, "engine", MIB), DeviceProcess(os.getpid(), "vmtool", MIB)
    processes = (other, ours) if listed else (other,)
    managed = SimpleNamespace(
        processes=processes, others=lambda pid: tuple(e for e in processes if e.pid != pid)
    )
    reading = SimpleNamespace(device=lambda _uuid: managed)
    monkeypatch.setattr(nvml, "read_nvml", lambda _uuid: reading)
    found = nvml.users_beside_us(SimpleNamespace(uuid="x"))
    assert found == ((other,) if listed else None)


def test_what_is_safe_on_the_host_is_not_taken_for_the_device(with_nvml):
    ran = with_nvml(["granularity", "--backing", "cuda:0"])
    first, *_ = ran.stdout.splitlines()
    granule, safe = first.split("; ")
    assert granule == "granule: cuda:0 2 MiB"
    size = safe.removesuffix(" is safe to commit on the host")
    assert size != safe
    assert f"{size} (limited by" in ran.stdout  # the same figure among the host's facts


def test_the_text_has_the_facts_of_the_device(with_nvml):
    ran = with_nvml(FACTS["grow"], mode="mig", attributes="133=1,100=1")
    words = " ".join(ran.stdout.split())
    assert "CUDA 13.0, module 580.65.06, PCI 0000:01:00.0, ECC on, MIG on, MPS on" in words
    assert "compute mode default, coherent: its memory is a NUMA node of the host" in words
    assert "new memory was zero, Python and the binding add about" in words


# -- others on the device --------------------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
def test_growth_is_not_blamed_for_what_others_take(run_on_standin, with_nvml, counted):
    run = with_nvml if counted else run_on_standin
    arguments = ["grow", "--to", "64MiB", "--backing", "cuda", "--against", "nothing", "--json"]
    ran = run(arguments, others="200MiB", others_after=10, context_memory="1MiB")
    assert ran.returncode == 0, ran.stderr
    checks = {each["name"]: each for each in json.loads(ran.stdout)["checks"]}
    assert checks["released"]["outcome"] == ("passed" if counted else "not done")
    if not counted:
        assert checks["released"]["values"]["others_bytes"] == 200 * MIB
        assert checks["released"]["values"]["reason"] == "device-shared"
    ran.assert_clean()


def test_growth_says_why_and_by_how_much_it_cannot_tell(with_nvml):
    arguments = ["grow", "--to", "64MiB", "--backing", "cuda", "--against", "nothing"]
    ran = with_nvml(arguments, mode="denied", others="200MiB", others_after=10)
    assert ran.returncode == 0, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "every check passed" not in words
    assert words.count("not available: something else uses the device") == 2
    assert words.count("(+200 MiB)") == 2
    assert "hint: run where NVML lists this process" in words  # it is installed already


def test_a_reservation_is_not_blamed_either():
    from types import SimpleNamespace

    from vmtool.probes.reserve import check_counters

    reservation = SimpleNamespace(address_space_bytes=GIB, capacity=GIB)
    for grown, shared, outcome in (
        (200 * MIB, True, "not done"),
        (200 * MIB, False, "failed"),
        (GIB, True, "failed"),  # the size of the range: it was committed
        (0, True, "passed"),
    ):
        (check,) = check_counters(
            reservation, {"device_memory": 0}, {"device_memory": grown}, {}, shared=shared
        )
        assert check.outcome.value == outcome


def test_no_context_is_made_on_a_device_that_others_use(with_nvml):
    for arguments in (["granularity", "--json"], ["doctor", "--json"]):
        ran = with_nvml(arguments, others="200MiB", devices=4)
        assert ran.returncode == 0, ran.stderr
        assert "cuDevicePrimaryCtxRetain" not in ran.reports[0]["calls"]
    ran = with_nvml(["granularity", "--json"], others="200MiB")
    found = json.loads(ran.stdout)["backings"][1]
    assert found["used_by"] == [{"pid": 4242, "name": "/opt/other/engine", "used_bytes": 200 * MIB}]
    assert found["granularity"]["commit_bytes"] == 2 * MIB
    assert found["largest_reservation"] is None
    assert found["free_bytes"] < GIB
    ran = with_nvml(["granularity"], others="200MiB")
    assert "in use by /opt/other/engine (4242)" in " ".join(ran.stdout.split())


# -- trying instead of believing -------------------------------------------------------------------


def test_handles_are_created_and_shared_to_prove_it(run_on_standin):
    arguments = ["granularity", "--backing", "cuda:0", "--prove"]
    ran = run_on_standin(arguments, fabric=1)
    assert ran.returncode == 0, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "fabric: attribute yes, creation refused (CUDA_ERROR_NOT_PERMITTED)" in words
    assert "IMEX" in words
    assert "handle posix-fd: attribute yes, created and exported" in words
    assert "memory outlives its exporter" in words


@pytest.mark.parametrize("backing", ["all", "cuda:all"])
def test_every_pair_of_devices_is_in_the_matrix(run_on_standin, backing):
    ran = run_on_standin(["granularity", "--backing", backing, "--prove"], devices=2)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("yes, contents seen") == 2
    assert ("granule: host" in ran.stdout.splitlines()[0]) == (backing == "all")
    assert "several devices share: granules of 2 MiB, the largest of any device" in ran.stdout
    assert {each["rule"] for each in ran.reports[0]["violations"]} == {"C1"}  # tried on purpose
    assert not any(ran.reports[0]["live"].values())


def test_only_out_of_memory_ends_the_search_for_the_largest_reservation(run_on_standin):
    arguments = ["granularity", "--backing", "cuda"]
    ran = run_on_standin(arguments, fail="cuMemAddressReserve:9=999")
    assert ran.returncode == 1
    assert "cuMemAddressReserve" in ran.stderr


# -- growing ---------------------------------------------------------------------------------------


def test_a_pool_that_cannot_release_a_handle_reports_it_and_continues(run_on_standin):
    arguments = ["grow", "--to", "16MiB", "--backing", "cuda", "--method", "pooled"]
    ran = run_on_standin([*arguments, "--against", "nothing"], fail="cuMemRelease:1=999")
    assert ran.returncode == 1
    assert "cuMemRelease" in ran.stderr
    assert ran.reports[0]["live"]["handles"] == 1


def test_growing_is_compared_with_allocating_and_copying_on_the_device(run_on_standin):
    ran = run_on_standin(["grow", "--to", "16MiB", "--backing", "cuda", "--json"])
    assert ran.returncode == 0, ran.stderr
    copying = json.loads(ran.stdout)["copying"]
    assert copying["steps"] == copying["planned_steps"] > 0
    assert "faster_from_bytes" in copying
    assert ran.reports[0]["calls"]["cuMemcpyDtoD"]["calls"] == copying["steps"] - 1
    ran.assert_clean()


# -- replay ----------------------------------------------------------------------------------------


def test_a_replay_with_the_pooled_method_uses_a_pool(run_on_standin):
    arguments = ["kv-replay", "synthetic:requests=8,rate=0.05", "--model", "gpt2", "--json"]
    budget = ["--backing", "cuda", "--budget", "512MiB"]
    for method in ("pooled", "cold"):
        ran = run_on_standin([*arguments, *budget, "--method", method])
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["real"]["method"] == method
        created = ran.reports[0]["calls"]["cuMemCreate"]["calls"]
        mapped = ran.reports[0]["calls"]["cuMemMap"]["calls"]
        assert (created < mapped) == (method == "pooled")
        ran.assert_clean()


def test_a_comparison_that_fails_leaves_the_growth_and_says_why(run_on_standin):
    for call in ("cuMemAlloc:2", "cuMemcpyDtoD:1", "cuMemFree:1+"):
        arguments = ["grow", "--to", "8MiB", "--step", "4MiB", "--backing", "cuda", "--json"]
        ran = run_on_standin(arguments, fail=f"{call}=999")
        assert ran.returncode == 0, ran.stderr
        assert call.partition(":")[0] in json.loads(ran.stdout)["copying"]["stopped"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("reserve", "cuMemAddressReserve:1=714"),
        ("reserve", "cuMemAddressReserve:1=999"),
        ("commit", "cuMemCreate:3=719"),
        ("mappings", "cuMemMap:3=304"),
        ("lock", "cuMemHostRegister:1=214"),
    ],
)
def test_a_call_that_fails_for_another_reason_is_no_limit(run_on_standin, kind, fault):
    call = fault.partition(":")[0]
    arguments = ["limits", kind, "--backing", "cuda", "--force", "--json"]
    ran = run_on_standin(arguments, fail=fault, memory="64MiB")
    assert ran.returncode == 1
    assert f"no limit was found: {call}(" in ran.stderr
    (found,) = json.loads(ran.stdout)["kinds"]
    for each in found["methods"]:
        assert (each["outcome"], each["reached"], each["refused"]) == ("not found", None, None)
        assert each["tries"] == 1


# -- limits ----------------------------------------------------------------------------------------


def test_limits_takes_no_device_that_others_may_use(run_on_standin, with_nvml):
    for kind in ("commit", "mappings"):
        ran = run_on_standin(["limits", kind, "--backing", "cuda"])
        assert ran.returncode == 5
        assert "is unknown" in ran.stderr
        assert "--force" in ran.stderr
        ran = with_nvml(["limits", kind, "--backing", "cuda"], others="200MiB")
        assert ran.returncode == 5
        assert "/opt/other/engine (4242)" in ran.stderr
        assert ("takes all memory of cuda" in ran.stderr) == (kind == "commit")
        assert ("maps one handle of cuda" in ran.stderr) == (kind == "mappings")


def test_an_empty_list_proves_nothing_where_this_process_would_not_be_in_it(with_nvml):
    ran = with_nvml(["limits", "commit", "--backing", "cuda"], mode="container", others="200MiB")
    assert ran.returncode == 5, ran.stderr
    assert "NVML lists no processes, not even this one" in " ".join(ran.stderr.split())
    assert "--force" in ran.stderr
    ran.assert_clean()


def test_a_device_is_filled_granule_by_granule(with_nvml, run_on_standin):
    settings = {"memory": "64MiB", "context_memory": "8MiB"}
    for run, force in ((with_nvml, []), (run_on_standin, ["--force"])):
        arguments = ["limits", "commit", "--backing", "cuda", "--method", "cold", "--json"]
        ran = run([*arguments, *force], **settings)
        assert ran.returncode == 0, ran.stderr
        (limit,) = json.loads(ran.stdout)["kinds"][0]["methods"]
        assert (limit["reached"], limit["refused"], limit["tries"]) == (56 * MIB, 58 * MIB, 1)


def test_mappings_are_counted_with_one_handle(with_nvml):
    arguments = ["limits", "mappings", "--backing", "cuda", "--method", "cold"]
    ran = with_nvml([*arguments, "--json"], memory="64MiB", max_mappings=5000)
    assert ran.returncode == 0, ran.stderr
    (limit,) = json.loads(ran.stdout)["kinds"][0]["methods"]
    assert limit["reached"] == 4999  # and the one that is shared
    ran = with_nvml(arguments, memory="64MiB", max_mappings=5000)
    assert ran.stdout.startswith("limits: mappings of one handle 4,999")
    assert "memory areas" not in ran.stdout


def test_a_driver_that_pins_nothing_names_the_call(run_on_standin):
    ran = run_on_standin(["limits", "lock", "--backing", "cuda"], pin_limit=0)
    assert ran.returncode == 0, ran.stderr
    lines = [line.strip() for line in ran.stdout.splitlines()]
    assert (
        "memory of the host pinned by one cuMemHostRegister; a new process for each attempt"
        in lines
    )
    assert any(
        line.endswith(": not even the smallest size works (1 attempt, searched up to 4 KiB)")
        for line in lines
    )
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in ran.stdout
    ran.assert_clean()
