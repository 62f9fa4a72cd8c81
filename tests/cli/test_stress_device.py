"""``vmtool stress`` on a CUDA device: the stand-in driver, which is not hardware, and a real one."""

from __future__ import annotations

import json

import pytest

from vmtool.units import KIB, MIB

SHORT = [
    *("--cycles", "24", "--capacity", "16MiB", "--seed", "1", "--runs", "1", "--json", "-q"),
]


def stress(*more):
    return ["stress", "--backing", "cuda", *SHORT, *more]


def checks(document):
    passed = {"passed": True, "failed": False, "not done": None}
    return {check["name"]: passed[check["outcome"]] for check in document["checks"]}


@pytest.fixture(params=["standin", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_device(request, vmtool_child):
    """Run a command on the stand-in, or on hardware where there is some."""
    if request.param == "standin":
        return request.getfixturevalue("run_on_standin")
    probe = vmtool_child("doctor", "--backing", "cuda", "--quiet")
    if probe.code:
        pytest.skip(probe.stderr.splitlines()[0])

    def run(arguments, **_settings):
        ran = vmtool_child(*arguments)
        ran_like = type("Ran", (), {"assert_clean": staticmethod(lambda: None)})()
        ran_like.returncode, ran_like.stdout, ran_like.stderr = ran.code, ran.stdout, ran.stderr
        return ran_like

    return run


@pytest.mark.parametrize("verify", ["sample", "full"])
def test_pooled_is_compared_with_cold_and_every_call_is_timed_apart(on_device, verify):
    ran = on_device(stress("--method", "all", "--verify", verify), poison=0xA5)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["device"]
    cold, pooled = document["methods"]
    assert (cold["method"], pooled["method"]) == ("cold", "pooled")
    calls = {call["call"]: call["summary"]["samples"] for call in cold["calls"]}
    expected = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuCtxSynchronize", "cuMemUnmap")
    assert calls == dict.fromkeys((*expected, "cuMemRelease"), cold["cycles"])
    again = {call["call"]: call["summary"]["samples"] for call in pooled["calls"]}
    assert again["cuMemMap"] == again["cuMemsetD8"] == pooled["cycles"]
    assert not {"cuMemCreate", "cuMemRelease"} & set(again)  # the pool was full
    assert document["recommendation"]["method"] in {"cold", "pooled"}
    checked = checks(document)
    for check in ("contents", "zero", "base", "leases", "budget", "released"):
        assert checked[check], check
    assert checked["counters.device_mappings"]
    ran.assert_clean()


def test_the_result_carries_the_drivers_own_name_of_the_device(run_on_standin):
    ran = run_on_standin(stress())
    assert json.loads(ran.stdout)["device"] == "vmtool stand-in GPU 0 (no hardware)"
    text = [word for word in stress() if word != "--json"]
    assert "cuda:0, vmtool stand-in GPU 0 (no hardware)" in run_on_standin(text).stdout


def test_page_and_table_carry_the_name_and_the_calls(run_on_standin, tmp_path):
    page, rows = tmp_path / "page.html", tmp_path / "rows.csv"
    ran = run_on_standin(stress("--html", str(page), "--csv", str(rows)))
    assert ran.returncode == 0, ran.stderr
    assert "vmtool stand-in GPU 0 (no hardware)" in page.read_text(encoding="utf-8")
    assert "cuMemSetAccess" in page.read_text(encoding="utf-8")
    assert "driver_call,,cold,,cuMemSetAccess,median_ns" in rows.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "pattern", ["random", "hole-punch", "sawtooth", "block-grow-partial-shrink"]
)
def test_every_pattern_keeps_its_contents(run_on_standin, pattern):
    arguments = ["--pattern", pattern, "--method", "all", "--granule", "128KiB", "--verify", "full"]
    ran = run_on_standin(stress(*arguments), granularity="64KiB", poison=0x5A)
    assert ran.returncode == 0, ran.stderr
    ran.assert_clean()


def test_a_granule_of_several_handles_is_one_run(run_on_standin):
    arguments = ["--chunk", "64KiB", "--granule", "1MiB"]
    ran = run_on_standin(stress(*arguments), granularity="64KiB", granularity_rec="2MiB")
    (method,) = json.loads(ran.stdout)["methods"]
    calls = {call["call"]: call["summary"]["samples"] for call in method["calls"]}
    assert calls["cuMemMap"] == 16 * method["cycles"]
    assert calls["cuMemSetAccess"] == calls["cuMemUnmap"] == method["cycles"]
    ran.assert_clean()


def test_threads_and_workers_share_a_device(run_on_standin):
    arguments = ["--method", "all", "--threads", "2", "--workers", "2", "--verify", "full"]
    ran = run_on_standin(stress(*arguments), devices=2)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert len(document["base_addresses"]) == 2 * 2 * 2
    assert checks(document)["counters.device_mappings"]
    ran.assert_clean()


def test_the_second_device(run_on_standin):
    arguments = ["cuda:1" if word == "cuda" else word for word in stress()]
    ran = run_on_standin(arguments, devices=2)
    assert json.loads(ran.stdout)["device"] == "vmtool stand-in GPU 1 (no hardware)"
    ran.assert_clean()
    assert run_on_standin(arguments, devices=1).returncode == 4
    assert run_on_standin(stress(), devices=0).returncode == 4


def test_every_device_has_workers_and_a_row_of_its_own(run_on_standin):
    arguments = ["cuda:all" if word == "cuda" else word for word in stress("--runs", "1")]
    ran = run_on_standin(arguments, devices=2, granularity_of="1:4MiB")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["settings"]["granule_bytes"] == 4 * MIB  # what both can map
    assert [device["peers"] for device in document["devices"]] == [["cuda:1"], ["cuda:0"]]
    assert [len(device["unmapping"]["access_ns"]) for device in document["devices"]] == [2, 2]
    assert [device["backing"] for device in document["devices"]] == ["cuda:0", "cuda:1"]
    assert [device["methods"][0]["cycles"] for device in document["devices"]] == [24, 24]
    uuids = {device["machine"]["uuid"] for device in document["devices"]}
    assert len(uuids) == 2
    assert all(device["unmapping"] for device in document["devices"])
    assert document["methods"][0]["cycles"] == 48
    assert checks(document)["counters.device_mappings"]
    ran.assert_clean()
    failing = run_on_standin(arguments, devices=2, fail="cuMemCreate@1:9=214")
    assert failing.returncode == 1
    assert "vmtool: error: cuda:1: cuMemCreate(" in failing.stderr
    outcomes = [device["outcome"] for device in json.loads(failing.stdout)["devices"]]
    assert outcomes == ["complete", "call-failed"]
    assert run_on_standin(arguments, devices=0).returncode == 4


def test_a_bound_on_what_a_pool_keeps_makes_it_create(run_on_standin):
    ran = run_on_standin(stress("--method", "pooled", "--retain", "4MiB"))
    (method,) = json.loads(ran.stdout)["methods"]
    calls = {call["call"]: call["summary"]["samples"] for call in method["calls"]}
    assert calls["cuMemCreate"] > 0
    assert calls["cuMemRelease"] > 0
    ran.assert_clean()
    assert run_on_standin(stress("--retain", "4MiB")).returncode == 2


@pytest.mark.parametrize(("waits", "expected"), [(0, False), (1, True)])
def test_whether_unmapping_waited_for_running_work_is_reported(run_on_standin, waits, expected):
    ran = run_on_standin(stress("--touch", "none"), busy_ms=20, unmap_waits=waits)
    assert ran.returncode == 0, ran.stderr
    unmapping = json.loads(ran.stdout)["unmapping"]
    assert unmapping["waited"] is expected
    assert unmapping["rounds"] > 0
    ran.assert_clean()


def test_work_that_is_too_short_shows_nothing(run_on_standin):
    unmapping = json.loads(run_on_standin(stress()).stdout)["unmapping"]
    assert unmapping["waited"] is None


def test_more_than_is_free_is_refused(run_on_standin):
    arguments = ["--budget", "15MiB", "--granule", "1MiB"]
    ran = run_on_standin(stress(*arguments), granularity="64KiB", memory="16MiB")
    assert ran.returncode == 5
    assert "on the device" in ran.stderr
    ran.assert_clean()


def test_a_small_device_gets_a_small_budget(run_on_standin):
    ran = run_on_standin(stress("--granule", "1MiB"), granularity="64KiB", memory="8MiB")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["settings"]["budget_bytes"] < 4 * MIB
    ran.assert_clean()


def test_addresses_that_run_out_are_distinguished_from_memory(run_on_standin):
    ran = run_on_standin(stress(), va_limit="8MiB")
    assert ran.returncode == 1
    assert "address space" in ran.stderr
    assert "device memory did not run out" in ran.stderr
    ran.assert_clean()


def test_mappings_are_not_blamed_where_there_are_few(run_on_standin):
    arguments = ["--granule", "64KiB", "--pattern", "random"]
    ran = run_on_standin(stress(*arguments), granularity="64KiB", max_mappings=4)
    assert ran.returncode == 1
    (failure,) = json.loads(ran.stdout)["failures"]
    assert failure["call"] == "cuMemSetAccess"
    assert "something limits this process below that" in failure["cause"]
    assert failure["injected"] is False
    ran.assert_clean()


@pytest.mark.parametrize(
    "fault",
    ["cuMemCreate:9", "cuMemMap:9", "cuMemSetAccess:9", "cuCtxSynchronize:9", "cuMemUnmap:9"],
)
@pytest.mark.parametrize("method", ["cold", "pooled"])
def test_a_call_that_fails_ends_the_run_and_gives_everything_back(run_on_standin, fault, method):
    ran = run_on_standin(stress("--method", method), fail=f"{fault}=999")
    if method == "pooled" and fault == "cuMemCreate:9":  # the pool is as large as it gets: 8
        assert ran.returncode in {0, 1}
    else:
        assert ran.returncode == 1, ran.stderr
        document = json.loads(ran.stdout)
        assert document["outcome"] == "call-failed"
        assert document["failures"][0]["symbol"] == "CUDA_ERROR_UNKNOWN"
        assert checks(document)["leases"]
        assert checks(document)["released"]
    ran.assert_clean()


def test_an_injected_fault_is_reported_as_injected(run_on_standin):
    ran = run_on_standin(stress("--inject", "cuMemMap:5=CUDA_ERROR_INVALID_VALUE"))
    assert ran.returncode == 1
    (failure,) = json.loads(ran.stdout)["failures"]
    assert (failure["call"], failure["symbol"], failure["injected"]) == (
        "cuMemMap",
        "CUDA_ERROR_INVALID_VALUE",
        True,
    )
    ran.assert_clean()


def test_access_that_was_not_given_is_found_by_the_ledger_of_mappings(run_on_standin):
    arguments = ["stress", "--backing", "cuda", "--duration", "600ms", "--json", "-q"]
    ran = run_on_standin([*arguments, "--inject", "cuMemSetAccess:5+=SKIP", "--touch", "none"])
    assert ran.returncode == 3
    assert checks(json.loads(ran.stdout))["counters.device_mappings"] is False
    ran.assert_clean()


def test_memory_that_is_not_cleared_is_found(run_on_standin):
    arguments = stress("--inject", "cuMemsetD8:1+=SKIP", "--method", "pooled")
    ran = run_on_standin(arguments, poison=0xA5)
    assert ran.returncode == 3
    assert checks(json.loads(ran.stdout))["zero"] is False
    ran.assert_clean()


def test_a_lost_device_ends_the_run_with_a_result(run_on_standin):
    ran = run_on_standin(stress(), fail="cuCtxSynchronize:9=700")
    assert ran.returncode in {1, 3}, ran.stderr
    document = json.loads(ran.stdout)
    assert document["outcome"] == "call-failed"
    assert document["failures"][0]["symbol"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert any(report["sticky"] for report in ran.reports)
    ran.assert_clean()


def test_the_cpu_never_writes_to_a_device(run_on_standin):
    ran = run_on_standin(["guards", "--backing", "cuda"])
    assert ran.returncode == 4
    assert "the CPU cannot write" in ran.stderr


def test_limits_of_a_device(run_on_standin):
    arguments = ["limits", "mappings", "--backing", "cuda", "--method", "cold", "--force", "--json"]
    ran = run_on_standin(arguments, granularity="64KiB", max_mappings=20)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    (found,) = document["kinds"][0]["methods"]
    assert 20 in found.values()
    assert document["device"] == "vmtool stand-in GPU 0 (no hardware)"


def test_a_matrix_of_a_device_carries_its_name(run_on_standin):
    arguments = ["matrix", "--backing", "cuda", "--duration", "1s", "--capacity", "4MiB"]
    ran = run_on_standin([*arguments, "--granule", "2MiB,4MiB", "--json"])
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["device"] == "vmtool stand-in GPU 0 (no hardware)"
    assert {cell["method"] for cell in document["cells"]} == {"cold", "pooled"}
    ran.assert_clean()


def test_the_smallest_granule_is_a_handle(run_on_standin):
    ran = run_on_standin(stress("--granule", "64KiB"), granularity="2MiB")
    assert ran.returncode == 2
    assert str(2 * MIB) in ran.stderr
    document = json.loads(run_on_standin(stress(), granularity="64KiB").stdout)
    assert document["settings"]["granule_bytes"] % (64 * KIB) == 0


def test_a_lost_device_is_explained_on_stderr_too(run_on_standin):
    arguments = ["stress", "--backing", "cuda", "--runs", "1", "--cycles", "20", "--json"]
    ran = run_on_standin(arguments, fail="cuMemMap:9=719")
    assert ran.returncode == 1
    assert "vmtool: error: cuMemMap(" in ran.stderr
    assert "  cause: this or earlier work on the device failed" in ran.stderr
    assert "Xid" in ran.stderr
