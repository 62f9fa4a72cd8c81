"""Sharing between kinds of handles, processes and devices, on the stand-in."""

from __future__ import annotations

import json

import pytest

from vmtool.machine.device_facts import access_costs
from vmtool.memory import open_device
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.memory.cuda.context import DeviceContext
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


def test_an_export_that_fails_is_distinguished_from_a_creation_that_does(opened, fakecuda):
    backing = opened()
    fakecuda.fail("cuMemExportToShareableHandle:1=999")
    trial = try_handles(backing)[1]
    assert (trial.created, trial.exported, trial.refusal) == (True, False, "CUDA_ERROR_UNKNOWN")


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


def test_what_fails_on_either_side_is_said(python_with_fakecuda):
    for call in ("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap"):
        done = python_with_fakecuda(SHARE, fail=f"{call}:1=999")
        assert call in json.loads(done.stdout)["error"]


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
