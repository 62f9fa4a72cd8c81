"""Stands in for nvidia-ml-py beside the stand-in driver: this process's bytes, and those of the others.

``FAKENVML`` chooses: unset, NVML cannot be initialised; ``on``; ``wddm``: it does not count by process;
``denied``: processes are not listed; ``container``: the list is empty, as in one without ``--pid=host``;
``mig``: each device is the one MIG slice of a parent, and only parents are listed. The other user of a device is process 4242, ``/opt/other/engine``.
"""

import ctypes
import json
import os
from types import SimpleNamespace

OTHER = 4242


class NVMLError(Exception):
    pass


def _mode():
    return os.environ.get("FAKENVML")


def _report():
    library = ctypes.CDLL("libcuda.so.1")
    library.fakecuda_report.restype = ctypes.c_size_t
    library.fakecuda_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(1 << 16)
    library.fakecuda_report(text, len(text))
    return json.loads(text.value)


def nvmlInit():
    if _mode() is None:
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.65.06"


def nvmlDeviceGetCount():
    return len(_report()["devices"])


class _Parent(int):
    """The handle of a device that is divided: CUDA and the driver's books know its slice alone."""


def _whole(handle):
    if _mode() == "mig" and not isinstance(handle, _Parent):
        raise NVMLError("Invalid Argument")


def nvmlDeviceGetHandleByIndex(index):
    return _Parent(index) if _mode() == "mig" else index


def nvmlDeviceGetIndex(handle):
    return int(handle)


def nvmlDeviceGetUUID(handle):
    raw = bytearray(b"vmtool stand-in\0")
    raw[15] = handle
    if isinstance(handle, _Parent):
        raw[0] ^= 0xFF
    text = raw.hex()
    prefix = "MIG-" if _mode() == "mig" and not isinstance(handle, _Parent) else "GPU-"
    return prefix + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def nvmlDeviceGetHandleByUUID(uuid):
    for index in range(nvmlDeviceGetCount()):
        for handle in (nvmlDeviceGetHandleByIndex(index), index):
            if nvmlDeviceGetUUID(handle) == uuid:
                return handle
    raise NVMLError("Not Found")


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    if _mode() != "mig" or isinstance(handle, _Parent):
        raise NVMLError("Invalid Argument")
    return _Parent(handle)


def nvmlDeviceGetName(handle):
    return f"vmtool stand-in GPU {handle} (no hardware)"


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0")


def nvmlDeviceGetMemoryInfo(handle):
    device = _report()["devices"][handle]
    used = device["ours"] + device["others"]
    return SimpleNamespace(total=device["total"], used=used, free=device["total"] - used)


def nvmlDeviceGetComputeRunningProcesses(handle):
    if _mode() == "denied":
        raise NVMLError("Insufficient Permissions")
    if _mode() == "container":
        return []
    report = _report()
    device = report["devices"][handle]
    counted = _mode() != "wddm"
    found = []
    if device["ours"] or report["live"]["context_refs"]:
        ours = device["ours"] if counted else None
        found.append(SimpleNamespace(pid=os.getpid(), usedGpuMemory=ours))
    if device["others"]:
        others = device["others"] if counted else None
        found.append(SimpleNamespace(pid=OTHER, usedGpuMemory=others))
    return found


def nvmlDeviceGetGraphicsRunningProcesses(_handle):
    raise NVMLError("Not Supported")


def nvmlSystemGetProcessName(pid):
    return "/opt/other/engine" if pid == OTHER else "python"


def nvmlDeviceGetEccMode(handle):
    _whole(handle)
    return [1, 1]


def nvmlDeviceGetMigMode(handle):
    _whole(handle)
    if _mode() != "mig":
        raise NVMLError("Not Supported")
    return [1, 1]  # current, pending


def nvmlDeviceGetPersistenceMode(handle):
    _whole(handle)
    return 0


def nvmlDeviceGetComputeMode(_handle):
    return 0
