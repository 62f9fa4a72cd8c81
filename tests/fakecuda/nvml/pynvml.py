"""Stands in for nvidia-ml-py beside the stand-in driver: this process's bytes, and those of the others.

``FAKENVML`` chooses: unset, NVML cannot be initialised; ``on``; ``wddm``: it does not count by process;
``denied``: processes are not listed; ``mig``: the devices are MIG slices. The other user of a device is process 4242, ``/opt/other/engine``.
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


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetIndex(handle):
    return handle


def nvmlDeviceGetUUID(handle):
    raw = bytearray(b"vmtool stand-in\0")
    raw[15] = handle
    text = raw.hex()
    prefix = "MIG-" if _mode() == "mig" else "GPU-"
    return prefix + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def nvmlDeviceGetHandleByUUID(uuid):
    for index in range(nvmlDeviceGetCount()):
        if nvmlDeviceGetUUID(index) == uuid:
            return index
    raise NVMLError("Not Found")


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
    device = _report()["devices"][handle]
    counted = _mode() != "wddm"
    found = []
    if device["ours"]:
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


def nvmlDeviceGetEccMode(_handle):
    return [1, 1]


def nvmlDeviceGetMigMode(_handle):
    if _mode() != "mig":
        raise NVMLError("Not Supported")
    return [1, 1]  # current, pending


def nvmlDeviceGetPersistenceMode(_handle):
    return 0


def nvmlDeviceGetComputeMode(_handle):
    return 0
