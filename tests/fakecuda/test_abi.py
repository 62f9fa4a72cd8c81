"""The stand-in's layouts and numbers against NVIDIA's own header, where one is installed."""

import subprocess
from pathlib import Path

import pytest
from fakecuda import build

PAIRS = {
    "INVALID_VALUE": "CUDA_ERROR_INVALID_VALUE",
    "OUT_OF_MEMORY": "CUDA_ERROR_OUT_OF_MEMORY",
    "NOT_INITIALIZED": "CUDA_ERROR_NOT_INITIALIZED",
    "NO_DEVICE": "CUDA_ERROR_NO_DEVICE",
    "INVALID_DEVICE": "CUDA_ERROR_INVALID_DEVICE",
    "INVALID_CONTEXT": "CUDA_ERROR_INVALID_CONTEXT",
    "INVALID_HANDLE": "CUDA_ERROR_INVALID_HANDLE",
    "NOT_FOUND": "CUDA_ERROR_NOT_FOUND",
    "NOT_READY": "CUDA_ERROR_NOT_READY",
    "ILLEGAL_ADDRESS": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CONTEXT_IS_DESTROYED": "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "HOST_MEMORY_ALREADY_REGISTERED": "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    "HOST_MEMORY_NOT_REGISTERED": "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
    "NOT_SUPPORTED": "CUDA_ERROR_NOT_SUPPORTED",
    "PINNED": "CU_MEM_ALLOCATION_TYPE_PINNED",
    "LOCATION_DEVICE": "CU_MEM_LOCATION_TYPE_DEVICE",
    "LOCATION_HOST_NUMA": "CU_MEM_LOCATION_TYPE_HOST_NUMA",
    "ACCESS_READ": "CU_MEM_ACCESS_FLAGS_PROT_READ",
    "ACCESS_READWRITE": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
    "HANDLE_POSIX_FD": "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
    "HANDLE_FABRIC": "CU_MEM_HANDLE_TYPE_FABRIC",
    "GRANULARITY_RECOMMENDED": "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED",
    "STREAM_NON_BLOCKING": "CU_STREAM_NON_BLOCKING",
    "EVENT_DISABLE_TIMING": "CU_EVENT_DISABLE_TIMING",
}
FIELDS = {  # ours -> NVIDIA's, per structure
    ("CUprop", "CUmemAllocationProp"): {
        "type": "type",
        "handle_types": "requestedHandleTypes",
        "location": "location",
        "win32_metadata": "win32HandleMetaData",
        "compression": "allocFlags.compressionType",
        "rdma": "allocFlags.gpuDirectRDMACapable",
        "usage": "allocFlags.usage",
    },
    ("CUaccess", "CUmemAccessDesc"): {"location": "location", "flags": "flags"},
    ("CUlocation", "CUmemLocation"): {"type": "type", "id": "id"},
}
# Both headers define these names; ours get another spelling for this one translation unit.
RENAMED = ("CUresult", "CUdevice", "CUdeviceptr", "CUcontext", "CUstream", "CUevent", "CUuuid")


def header():
    """The newest cuda.h of the usual places that declares these calls, or ``None``."""
    found = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))
    return found[-1] if found else None


@pytest.mark.cc
def test_layouts_and_numbers_are_those_of_the_installed_cuda_h(tmp_path, fakecuda_lib):
    if header() is None:
        pytest.skip("no cuda.h in /usr/local/cuda*/include")
    checks = [
        f'_Static_assert((int){ours} == (int){theirs}, "{ours}");' for ours, theirs in PAIRS.items()
    ]
    for (ours, theirs), fields in FIELDS.items():
        checks.append(f'_Static_assert(sizeof({ours}) == sizeof({theirs}), "{ours}");')
        checks += [
            f'_Static_assert(offsetof({ours}, {a}) == offsetof({theirs}, {b}), "{ours}.{a}");'
            for a, b in fields.items()
        ]
    source = tmp_path / "abi.c"
    lines = [
        *(f"#define {name} our_{name}" for name in RENAMED),
        '#include "abi.h"',
        *(f"#undef {name}" for name in RENAMED),
        f'#include "{header()}"',
        *checks,
        "int main(void) { return 0; }",
    ]
    source.write_text("\n".join(lines) + "\n")
    command = ["cc", "-std=c11", "-fsyntax-only", f"-I{build.SOURCES}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0
