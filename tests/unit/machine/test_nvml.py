"""NVML through a module object: what it answers, and what is "not available" and why."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from vmtool.errors import ExitCode, UnavailableError
from vmtool.machine.nvml import DeviceProcess, Nvml, open_nvml, read_nvml

UUID = "766d746f-6f6c-2073-7461-6e642d696e00"
GIB = 1 << 30


class NVMLError(Exception):
    """What the package raises."""


def refuse(*_arguments):
    raise NVMLError("Not Supported")


def library(**changes):
    """The functions that are asked, answering for one device with two processes."""
    processes = [
        SimpleNamespace(pid=10, usedGpuMemory=3 * GIB),
        SimpleNamespace(pid=20, usedGpuMemory=GIB),
    ]
    functions = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.65.06",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: 0 if uuid == f"GPU-{UUID}" else refuse(),
        "nvmlDeviceGetUUID": lambda _handle: f"GPU-{UUID}",
        "nvmlDeviceGetName": lambda _handle: b"NVIDIA H200",
        "nvmlDeviceGetPciInfo": lambda _handle: SimpleNamespace(busId=b"00000000:3B:00.0"),
        "nvmlDeviceGetMemoryInfo": lambda _h: SimpleNamespace(
            total=140 * GIB, used=5 * GIB, free=135 * GIB
        ),
        "nvmlDeviceGetComputeRunningProcesses": lambda _handle: processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _handle: processes[:1],
        "nvmlSystemGetProcessName": lambda pid: f"/usr/bin/engine{pid}",
        "nvmlDeviceGetEccMode": lambda _handle: [1, 0],
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": refuse,
        "nvmlDeviceGetPersistenceMode": lambda _handle: 0,
        "nvmlDeviceGetComputeMode": lambda _handle: 3,
    }
    return SimpleNamespace(**functions | changes)


def test_a_device_is_described_with_its_processes():
    with Nvml(library()) as nvml:
        assert nvml.driver_version == "580.65.06"
        (device,) = nvml.devices()
    assert (device.uuid, device.name, device.pci) == (UUID, "NVIDIA H200", "00000000:3B:00.0")
    assert (device.total_bytes, device.used_bytes, device.free_bytes) == (
        140 * GIB,
        5 * GIB,
        135 * GIB,
    )
    assert (device.ecc, device.mig, device.persistence) == (True, None, False)
    assert device.compute_mode == "exclusive-process"
    assert device.processes == (
        DeviceProcess(10, "/usr/bin/engine10", 3 * GIB),
        DeviceProcess(20, "/usr/bin/engine20", GIB),
    )
    assert device.bytes_of(10) == 3 * GIB
    assert device.bytes_of(30) == 0
    assert device.others(10) == (DeviceProcess(20, "/usr/bin/engine20", GIB),)


def test_a_device_is_found_by_the_uuid_that_cuda_has():
    nvml = Nvml(library())
    assert nvml.device(UUID) == nvml.devices()[0]
    assert nvml.device("0" * 8) is None
    assert nvml.device(None) is None


def test_a_mig_slice_is_found_too():
    slices = library(nvmlDeviceGetHandleByUUID=lambda uuid: 0 if uuid == "MIG-1" else refuse())
    assert Nvml(slices).device("1") is not None


def test_memory_that_is_not_counted_by_process_is_not_available():
    uncounted = [SimpleNamespace(pid=10, usedGpuMemory=None)]
    (device,) = Nvml(
        library(nvmlDeviceGetComputeRunningProcesses=lambda _handle: uncounted)
    ).devices()
    assert device.bytes_of(10) is None
    assert device.bytes_of(30) == 0


def test_processes_that_may_not_be_listed_are_not_available():
    (device,) = Nvml(library(nvmlDeviceGetComputeRunningProcesses=refuse)).devices()
    assert device.processes is None
    assert device.bytes_of(10) is None
    assert device.others() == ()


def test_what_a_device_does_not_answer_is_none():
    everything = {
        name: refuse
        for name in vars(library())
        if name.startswith("nvmlDeviceGet") and not name.endswith(("Count", "Index"))
    }
    (device,) = Nvml(library(**everything)).devices()
    assert device.total_bytes is device.pci is device.processes is device.compute_mode is None


def test_an_old_package_that_lacks_functions_and_wants_bytes_answers_the_rest():
    old = library()
    del old.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, old.nvmlDeviceGetMigMode
    old.nvmlDeviceGetHandleByUUID = lambda uuid: uuid + b""
    with Nvml(old) as nvml:
        (device,) = nvml.devices()
        assert (device.ecc, device.mig, device.free_bytes) == (True, None, 135 * GIB)
        assert nvml.device(UUID) is None


def test_another_module_of_that_name_is_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=lambda: None))
    with pytest.raises(UnavailableError, match="is not that of nvidia-ml-py") as caught:
        open_nvml()
    assert "vmtool[nvml]" in caught.value.hint


def test_a_package_for_python_2_is_the_reason(monkeypatch, tmp_path):
    (tmp_path / "pynvml.py").write_text('print "NVML"\n')
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot be imported" in read_nvml().absent


def test_a_missing_package_is_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UnavailableError, match="nvidia-ml-py is not installed") as caught:
        open_nvml()
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    assert "vmtool[nvml]" in caught.value.hint
    assert read_nvml().absent == "NVML is not available: nvidia-ml-py is not installed"


def test_a_driver_that_does_not_answer_is_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=refuse))
    reading = read_nvml()
    assert reading.absent == "NVML is not available: Not Supported"
    assert reading.devices == ()


def test_one_reading_has_everything(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library())
    reading = read_nvml()
    assert reading.absent is None
    assert reading.device(UUID) == reading.devices[0]
    assert reading.device(None) is None
