"""What is read of a device, and a device that is not there or cannot be used; on the stand-in."""

import sys

import pytest

from vmtool.errors import UnavailableError
from vmtool.memory.cuda import devices


def test_windows_device_models_are_distinguished(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert [devices.driver_model(tcc) for tcc in (0, 1, None)] == ["wddm", "tcc", None]


def test_a_device_without_virtual_memory_management_is_refused(fakecuda):
    fakecuda.reset(vmm=0)
    with pytest.raises(UnavailableError, match=r"cuda:0 \(vmtool stand-in GPU 0"):
        devices.require_vmm(devices.device(0))


def test_a_device_that_is_not_there_is_unavailable(fakecuda):
    fakecuda.reset(devices=2)
    with pytest.raises(UnavailableError, match="no CUDA device 2") as caught:
        devices.device(2)
    assert caught.value.hint == "use cuda:0 to cuda:1"
