"""What a process and its children hold on each GPU, from what NVML lists."""

import pytest

from vmtool.inspect.devices import read_devices
from vmtool.machine.device_facts import DeviceProcess
from vmtool.machine.nvml import ManagedDevice, NvmlReading
from vmtool.report.inspect import describe_unavailable
from vmtool.results.inspect import ProcessDevice
from vmtool.units import GIB, MIB

_OURS = (10, 11)  # a process and its child
_OTHER = DeviceProcess(20, "/opt/other/engine", 5 * GIB)


def _device(index, *processes, listed=True):
    return ManagedDevice(
        index=index,
        uuid=f"0{index}",
        name="H200",
        pci=None,
        total_bytes=140 * GIB,
        used_bytes=60 * GIB,
        free_bytes=80 * GIB,
        processes=processes if listed else None,
        ecc=None,
        mig=None,
        persistence=None,
        compute_mode=None,
    )


def _holds(index, own, *others):
    return ProcessDevice(index, "H200", 140 * GIB, 80 * GIB, own, others)


def _used(pid, used):
    return DeviceProcess(pid, "engine", used)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(
            [_device(0, _OTHER, _used(10, GIB), _used(11, MIB))],
            [_holds(0, GIB + MIB, _OTHER)],
            id="own and child",
        ),
        pytest.param(
            [_device(0, _OTHER), _device(1, _used(11, MIB))], [_holds(1, MIB)], id="child alone"
        ),
        pytest.param(
            [_device(0, _used(10, GIB)), _device(1)], [_holds(0, GIB)], id="one of two devices"
        ),
        pytest.param([_device(0, listed=False)], [_holds(0, None)], id="no list"),
        pytest.param(
            [_device(0, _used(10, None), _OTHER)], [_holds(0, None, _OTHER)], id="not counted"
        ),
        pytest.param(
            [_device(0, _used(10, GIB), _used(11, None))], [_holds(0, None)], id="child not counted"
        ),
        pytest.param(
            [_device(0, _used(11, None))], [_holds(0, None)], id="only child, not counted"
        ),
        pytest.param([], [], id="no device"),
    ],
)
def test_what_the_process_and_its_children_hold(devices, expected):
    found, absent = read_devices(_OURS, NvmlReading(devices=tuple(devices)))

    assert list(found) == expected
    assert absent is None


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([_device(0)], [], id="nobody, as in a container"),
        pytest.param([_device(0, _OTHER)], [], id="others only"),
        pytest.param(
            [_device(0), _device(1, listed=False)], [_holds(1, None)], id="no list of one"
        ),
    ],
)
def test_a_process_that_is_not_listed_may_still_use_memory(devices, expected):
    found, absent = read_devices(_OURS, NvmlReading(devices=tuple(devices)))

    assert list(found) == expected
    assert (absent.what, absent.reason) == ("devices", "not listed")
    (line,) = describe_unavailable([absent])
    assert line.startswith("devices: NVML does not list this process. In a container")


def test_without_nvml_the_reason_is_given():
    found, absent = read_devices(_OURS, NvmlReading(absent="NVML is not available: no driver"))

    assert found == ()
    assert (absent.reason, absent.detail) == ("platform", "NVML is not available: no driver")
