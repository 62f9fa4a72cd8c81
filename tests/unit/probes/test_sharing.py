"""Sharing between kinds of handles, processes and devices, on the stand-in."""

from __future__ import annotations

import json

import pytest

from vmtool.machine.device_facts import access_costs
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.probes.sharing import try_handles, try_peers

SHARE = """
import dataclasses, json
from vmtool.probes.sharing import share_between_processes
print(json.dumps(dataclasses.asdict(share_between_processes(0))))
"""
MIB = 1 << 20


@pytest.fixture
def opened(fakecuda):
    made = []

    def open_one(**settings):
        fakecuda.reset(**settings)
        made.append(open_device("cuda"))
        return made[-1]

    yield open_one
    for backing in made:
        backing.close()


def test_a_fabric_handle_that_the_attribute_promises_may_be_refused(opened):
    trials = {each.handle: each for each in try_handles(opened(fabric=1))}
    assert trials["none"].created
    assert (trials["posix-fd"].created, trials["posix-fd"].exported) == (True, True)
    assert not trials["fabric"].created
    assert trials["fabric"].refusal == "CUDA_ERROR_NOT_PERMITTED"
    assert "IMEX" in trials["fabric"].cause


@pytest.mark.parametrize("code", ["800", "801"])
def test_an_export_that_is_refused_is_distinguished_from_a_creation(opened, fakecuda, code):
    backing = opened()
    fakecuda.fail(f"cuMemExportToShareableHandle:1={code}")
    trial = try_handles(backing)[1]
    assert (trial.created, trial.exported) == (True, False)
    assert trial.refusal in {"CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_NOT_SUPPORTED"}


@pytest.mark.parametrize("fault", ["cuMemExportToShareableHandle:1=999", "cuMemCreate:2=999"])
def test_a_handle_that_fails_for_another_reason_is_an_error(opened, fakecuda, fault):
    backing = opened()
    fakecuda.fail(fault)
    with pytest.raises(CudaError, match=fault.partition(":")[0]):
        try_handles(backing)


def test_memory_is_shared_between_two_processes(python_with_fakecuda):
    done = python_with_fakecuda(SHARE)
    found = json.loads(done.stdout)
    assert found["error"] is None, done.stderr
    assert found["seen"]
    assert found["written_back"]
    assert found["outlives_exporter"]
    assert found["descriptors"] == 1
    assert {"create", "export", "import", "map", "access", "unmap", "release"} == set(
        found["steps_ns"]
    )
    assert all(ns > 0 for ns in found["steps_ns"].values())
    done.assert_clean()  # the exporter was killed and wrote no report


def test_memory_that_goes_with_its_exporter_is_no_failure_but_an_answer(python_with_fakecuda):
    done = python_with_fakecuda(SHARE, outlives=0)
    found = json.loads(done.stdout)
    assert found["error"] is None, done.stderr
    assert (found["seen"], found["written_back"], found["outlives_exporter"]) == (True, True, False)


@pytest.mark.parametrize(
    "fault",
    [
        "cuCtxPopCurrent:2=999",  # of the exporter, after it was told to look
        "cuCtxPushCurrent:2=999",
        "cuMemcpyDtoH:2=999",  # of the importer, once the exporter is gone
        "cuMemExportToShareableHandle:1=999",
        "cuMemImportFromShareableHandle:1=999",
        "cuMemMap:1=999",
        "cuMemcpyDtoH:1=999,cuMemUnmap:1=304",  # the first is said, not what fails while it is undone
    ],
)
def test_a_call_that_fails_on_either_side_is_an_error(python_with_fakecuda, fault):
    done = python_with_fakecuda(SHARE, fail=fault)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"{fault.partition(':')[0]}(" in last
    assert "CUDA_ERROR_UNKNOWN" in last


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"missing": "cuMemImportFromShareableHandle"}, "is not offered"),
        ({"missing": "cuMemExportToShareableHandle"}, "is not offered"),
        ({"fail": "cuMemExportToShareableHandle:1=801"}, "CUDA_ERROR_NOT_SUPPORTED"),
    ],
)
def test_what_the_driver_does_not_offer_is_not_available(python_with_fakecuda, settings, words):
    done = python_with_fakecuda(SHARE, **settings)
    assert done.returncode == 0, done.stderr
    assert words in json.loads(done.stdout)["error"]


@pytest.mark.parametrize(("peers", "granted"), [(1, True), (0, False)])
def test_every_pair_of_devices_is_tried(fakecuda, peers, granted):
    fakecuda.reset(devices=3, peers=peers)
    found = try_peers()
    assert {(each.owner, each.peer) for each in found} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }
    for each in found:
        assert (each.offered, each.granted) == (granted, granted)
        assert each.seen == (True if granted else None)
        assert each.refusal == (None if granted else "CUDA_ERROR_INVALID_DEVICE")


def test_one_device_has_no_peers(fakecuda):
    assert try_peers() == ()


def test_the_granule_of_a_pair_is_the_larger_one(fakecuda):
    fakecuda.reset(devices=2, granularity_of="1:4MiB")
    assert [each.seen for each in try_peers()] == [True, True]
    assert fakecuda.report()["peak"]["physical_bytes"] == 4 * MIB


def test_access_is_timed_on_mappings_that_have_none(fakecuda):
    fakecuda.reset(devices=3, latency="cuMemSetAccess:1000")
    backing = CudaBacking(DeviceContext(0), peers=(1, 2))
    costs = access_costs(backing)
    assert len(costs) == 3
    assert min(costs) >= 1000
    calls = fakecuda.report()["calls"]
    assert calls["cuMemMap"]["calls"] == calls["cuMemSetAccess"]["calls"] == 27
    backing.close()


def test_memory_for_several_devices_is_read_by_all(fakecuda):
    fakecuda.reset(devices=2, granularity_of="1:4MiB")
    backing = CudaBacking(DeviceContext(0), peers=(1,))
    assert backing.granularity == 4 * MIB
    reservation = backing.reserve(4 * MIB)
    backing.commit(reservation, 0, 4 * MIB)
    peer = DeviceContext(1)
    into = bytearray(8)
    with peer.current():
        peer.call("cuMemcpyDtoH", into, reservation.base, 8)
    peer.close()
    backing.unreserve(reservation)
    backing.close()
