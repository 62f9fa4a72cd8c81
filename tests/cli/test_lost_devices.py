"""Devices that are lost or fail in the middle of a command: what the report says first, on the stand-in."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in needs Linux")

MIB = 1 << 20

STRESS = ["stress", "--backing", "cuda", "--runs", "1", "--capacity", "64MiB", "--json"]


def checks_of(ran):
    return {each["name"]: each for each in json.loads(ran.stdout)["checks"]}


def test_a_device_lost_while_unmapping_beside_work_is_no_success(run_on_standin):
    ran = run_on_standin([*STRESS, "--cycles", "20"], fail="cuStreamQuery:1=700")
    assert ran.returncode == 1
    assert "unmapping while other work ran ended the context: cuStreamQuery(" in ran.stderr
    assert json.loads(ran.stdout)["unmapping"] is None


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (["reserve", "1GiB", "--backing", "cuda"], "cuDevicePrimaryCtxRelease:1"),
        (["grow", "--to", "8MiB", "--backing", "cuda"], "cuDevicePrimaryCtxRelease:2"),
        ([*STRESS, "--cycles", "20"], "cuDeviceGetName:5"),
    ],
)
def test_a_device_lost_by_the_last_call_or_while_it_is_described_is_no_success(
    run_on_standin, command, call
):
    ran = run_on_standin(command, fail=f"{call}=719")
    assert ran.returncode == 1
    assert f"vmtool: error: {call.partition(':')[0]}(" in ran.stderr
    assert ran.stdout


@pytest.mark.parametrize("call", ["cuMemAddressFree:1", "cuMemAddressReserve:2", "cuMemMap:63"])
def test_a_device_lost_with_no_work_beside_is_not_blamed_on_unmapping(run_on_standin, call):
    # Closing the buffer, preparing the measurement of unmapping, and what comes after it.
    ran = run_on_standin([*STRESS, "--cycles", "20"], fail=f"{call}=719")
    assert ran.returncode == 1
    assert f"vmtool: error: {call.partition(':')[0]}(" in ran.stderr


@pytest.mark.parametrize("call", ["cuStreamCreate", "cuMemGetInfo"])
def test_a_call_that_fails_is_not_swallowed(run_on_standin, call):
    nth = 1 if call == "cuStreamCreate" else 4
    ran = run_on_standin([*STRESS, "--cycles", "20"], fail=f"{call}:{nth}+=304")
    assert ran.returncode == 1
    assert call in ran.stderr


@pytest.mark.parametrize("code", [214, 220])
def test_the_first_failing_call_of_a_lost_device_is_the_headline(run_on_standin, code):
    faults = f"cuMemCreate:8+={code},cuCtxSynchronize:30+={code},cuMemUnmap:30+={code}"
    ran = run_on_standin([*STRESS, "--cycles", "60"], fail=faults)
    assert ran.returncode == 1
    assert "vmtool: error: cuMemCreate" in ran.stderr
    assert "cuCtxSynchronize" not in ran.stderr
    assert checks_of(ran)["released"]["outcome"] != "failed"


@pytest.mark.parametrize("code", [46, 101, 999])
def test_a_device_that_answers_the_same_to_everything_is_lost(run_on_standin, code):
    faults = ",".join(f"{call}:1+={code}" for call in ("cuCtxSynchronize", "cuMemUnmap"))
    ran = run_on_standin([*STRESS, "--cycles", "60"], fail=f"cuMemCreate:8+={code},{faults}")
    assert ran.returncode == 1
    assert "vmtool: error: cuMemCreate" in ran.stderr
    assert f"({code})" in ran.stderr
    assert checks_of(ran)["released"]["outcome"] != "failed"


def test_a_lost_device_that_a_counter_meets_first_is_no_difference(run_on_standin):
    # --hold counts while everything is mapped, whatever is mapped at a checkpoint between rounds.
    arguments = [*STRESS, "--method", "all", "--cycles", "60", "--threads", "2", "--hold"]
    ran = run_on_standin(arguments, fail="cuMemGetAccess:1=719")
    assert ran.returncode == 1, ran.stderr
    assert "cuMemGetAccess" in ran.stderr
    assert not any(each["outcome"] == "failed" for each in checks_of(ran).values())


@pytest.mark.parametrize("counted", [False, True])
def test_a_run_is_not_blamed_for_what_others_take(run_on_standin, with_nvml, counted):
    run = with_nvml if counted else run_on_standin
    settings = {"others": "200MiB", "others_after": 60, "context_memory": "1MiB"}
    ran = run([*STRESS, "--cycles", "200", "--verify", "off"], **settings)
    assert ran.returncode == 0, ran.stderr
    checks = checks_of(ran)
    memory = checks["counters.device_memory"]
    assert memory["outcome"] == ("passed" if counted else "not done")
    if not counted:
        assert memory["values"]["reason"] == "device-shared"
        assert memory["values"]["others_bytes"] == 200 * MIB
    assert checks["released"]["outcome"] == "passed"
    assert checks["leak.device_memory"]["outcome"] != "failed"


def test_memory_that_another_process_took_is_the_headline_and_no_failed_release(run_with_fakecuda):
    settings = {"memory": "256MiB", "others": "250MiB", "others_after": 30}
    ran = run_with_fakecuda([*STRESS, "--cycles", "200", "--verify", "off"], **settings)
    assert ran.returncode == 1
    assert "vmtool: error: cuMemCreate(" in ran.stderr
    (failure,) = json.loads(ran.stdout)["failures"]
    assert failure["cause"] == "2 MiB was requested and 0 B is free on the device"
    assert checks_of(ran)["released"]["outcome"] == "passed"
    ran.assert_clean()


def test_a_release_that_is_only_pretended_is_still_found_out(run_on_standin):
    arguments = [*STRESS, "--cycles", "300", "--inject", "cuMemRelease:1+=SKIP"]
    ran = run_on_standin([*arguments, "--verify", "off"], memory="4GiB")
    assert ran.returncode == 3, ran.stderr
    assert checks_of(ran)["counters.device_memory"]["outcome"] == "failed"


def test_a_hang_while_a_pool_is_filled_is_named(run_on_standin):
    arguments = [*STRESS, "--method", "pooled", "--cycles", "3", "--hang-timeout", "1s"]
    ran = run_on_standin(arguments, latency="cuMemCreate:20000000000")  # one takes 20 s
    assert ran.returncode == 1
    assert "ended in fill" in ran.stderr


def test_a_pool_that_is_not_cleared_is_reported(run_on_standin):
    arguments = ["stress", "--backing", "cuda", "--cycles", "20", "--runs", "1"]
    ran = run_on_standin([*arguments, "--method", "pooled", "--no-clear"], poison=0xA5)
    assert ran.returncode == 0, ran.stderr
    assert "pool memory was not cleared" in ran.stdout
    assert all("cuMemsetD8" not in report["calls"] for report in ran.reports)
    assert run_on_standin([*arguments, "--method", "cold", "--no-clear"]).returncode == 2


def test_a_matrix_of_a_device_sweeps_its_chunks():
    from vmtool.stress.matrix import GRANULES, usual_granules

    assert usual_granules(2 * MIB, on_device=True) == (2 * MIB, 6 * MIB, 16 * MIB)
    assert usual_granules(4096, on_device=False) == GRANULES


def test_a_matrix_on_a_lost_device_names_the_call(run_on_standin):
    arguments = ["matrix", "--backing", "cuda", "--method", "cold", "--granule", "2MiB"]
    faults = "cuMemCreate:3+=214,cuCtxSynchronize:1+=214,cuMemUnmap:1+=214"
    ran = run_on_standin([*arguments, "--duration", "1s", "--json"], fail=faults)
    assert ran.returncode == 1
    assert "cuMemCreate" in ran.stderr
    assert any("cuMemCreate" in cell["error"] for cell in json.loads(ran.stdout)["cells"])


# -- processes that cannot be killed ---------------------------------------------------------------


def test_a_process_that_cannot_be_killed_is_given_up():
    from types import SimpleNamespace

    from vmtool.errors import VmtoolError
    from vmtool.memory.children import end_child

    def wait(timeout):
        raise subprocess.TimeoutExpired("child", timeout)

    stuck = SimpleNamespace(
        pid=77, kill=lambda: None, wait=wait, stdin=None, stdout=None, stderr=None
    )
    with pytest.raises(VmtoolError, match="process 77 cannot be killed: it is stuck in the driver"):
        end_child(stuck, timeout_s=0.01)


# -- what failed first is what is said -------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "fault", "call"),
    [
        (
            ["allocators", "--budget", "16MiB", "--most", "2MiB", "--rounds", "1"],
            "cuMemAddressFree:2=999",
            "cuMemAddressFree",
        ),
        (["granularity", "--prove"], "cuMemCreate:4=999", "cuMemCreate"),
        (["granularity", "--prove", "--backing", "cuda"], "cuMemCreate:1=999", "cuMemCreate"),
        (["granularity", "--prove", "--backing", "cuda"], "cuMemRelease:4=304", "cuMemRelease"),
    ],
)
def test_a_failing_call_is_the_headline_and_no_verdict(run_on_standin, arguments, fault, call):
    ran = run_on_standin(arguments, fail=fault)
    assert ran.returncode == 1, ran.stderr
    assert f"vmtool: error: {call}(" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["allocators", "--budget", "16MiB", "--most", "2MiB", "--rounds", "1"], "cuMemAlloc"),
        (["grow", "--to", "8MiB", "--backing", "cuda"], "cuMemAlloc"),
        (["granularity", "--prove", "--backing", "cuda"], "cuMemExportToShareableHandle"),
        (["granularity", "--prove", "--backing", "cuda"], "cuMemImportFromShareableHandle"),
    ],
)
def test_a_missing_call_takes_its_own_measurement_only(run_with_fakecuda, arguments, missing):
    ran = run_with_fakecuda(arguments, missing=missing)
    assert ran.returncode == 0, ran.stderr
    from fakecuda import control

    assert f"{missing} is not offered" in " ".join(ran.stdout.split())
    assert [control.leaks(report) for report in ran.reports if control.leaks(report)] == []


def test_a_driver_without_the_work_s_call_is_not_a_failure_of_mapping(run_with_fakecuda):
    arguments = ["allocators", "--budget", "16MiB", "--most", "2MiB", "--rounds", "1"]
    ran = run_with_fakecuda([*arguments, "--beside-work"], missing="cuMemsetD32Async")
    assert ran.returncode == 4, ran.stderr
    assert "not available: cuMemsetD32Async is not offered" in " ".join(ran.stdout.split())


def test_a_failing_trim_of_a_pool_is_called_so(run_on_standin):
    arguments = [
        "stress",
        "--backing",
        "cuda",
        "--method",
        "pooled",
        "--cycles",
        "4",
        "--runs",
        "1",
    ]
    ran = run_on_standin([*arguments, "--capacity", "8MiB"], fail="cuMemRelease:1=304")
    assert ran.returncode == 1
    words = " ".join(ran.stdout.split())
    assert "failed in trim of the pool" in words
    assert "in 0 ns" not in words
    assert "of granule" not in words.partition("failed in")[2]


def test_the_measurement_beside_work_has_no_cycle(run_on_standin):
    arguments = ["stress", "--backing", "cuda", "--cycles", "4", "--runs", "1"]
    ran = run_on_standin([*arguments, "--capacity", "8MiB", "--json"], fail="cuStreamQuery:1=304")
    assert ran.returncode == 1, ran.stderr
    document = json.loads(ran.stdout)
    assert document["unmapping"] is None
    (failure,) = document["failures"]
    assert (failure["call"], failure["cycle"]) == ("cuStreamQuery", None)


def test_why_unmapping_beside_work_was_not_measured_is_kept_and_printed(run_on_standin, tmp_path):
    page = tmp_path / "page.html"
    arguments = [
        "stress",
        "--backing",
        "cuda",
        "--cycles",
        "4",
        "--runs",
        "1",
        "--capacity",
        "8MiB",
    ]
    fault = "cuMemsetD8Async:9=2"
    ran = run_on_standin([*arguments, "--json", "--html", str(page)], fail=fault)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in found["unmapping"]["not_measured"]
    assert found["machine"]["device"]["fresh_zero"] is not None
    words = "whether unmapping waits for running work was not measured: cuMemsetD8Async("
    assert words in page.read_text(encoding="utf-8")
    assert words in " ".join(run_on_standin(arguments, fail=fault).stdout.split())
