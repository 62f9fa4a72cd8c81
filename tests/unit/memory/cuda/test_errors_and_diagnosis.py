"""CUDA that is missing is "not available here", with the reason; a full device is told from other limits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakecuda import build, control

from vmtool.errors import ExitCode, UnavailableError
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.counter_types import ProcessLimits
from vmtool.memory.cuda import devices, driver, errors_and_diagnosis
from vmtool.memory.cuda.errors_and_diagnosis import (
    CudaOutOfMemoryError,
    Situation,
    diagnose_device,
    diagnose_pinning,
    explain_code,
    limits_below_free,
)
from vmtool.units import GIB, MIB

LOAD = """
import json
from vmtool.errors import UnavailableError
from vmtool.memory.cuda import driver
try:
    driver.load()
except UnavailableError as exc:
    print(json.dumps([str(exc), exc.cause or "", exc.hint or "", int(exc.exit_code)]))
"""


@pytest.fixture
def load_with(tmp_path):
    """``driver.load()`` in a new process that finds its libcuda in one folder only."""
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")

    def load(folder):
        done = subprocess.run(
            [sys.executable, "-c", LOAD],
            env=os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(control.ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return json.loads(done.stdout)

    return load


@pytest.fixture
def stub(tmp_path, fakecuda_lib):
    """Compile a libcuda.so.1 from a few lines of C; its folder."""

    def compiled(source):
        path = tmp_path / "stub.c"
        path.write_text(source)
        build.compile_to(tmp_path / "libcuda.so.1", build.SHARED, [path])
        return tmp_path

    return compiled


def test_missing_bindings_say_how_to_install_them(monkeypatch):
    driver.forget()
    monkeypatch.setattr(sys, "platform", "linux")  # macOS, which has none, hears of no package
    monkeypatch.setattr(driver, "read_process_limits", ProcessLimits)  # not read as on Linux
    monkeypatch.setattr(driver, "missing_library", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UnavailableError, match="bindings cannot be imported") as caught:
        driver.load()
    assert "cuda-python" in caught.value.hint
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_the_bindings_are_not_imported_where_they_do_not_fit(monkeypatch):
    """Python 3.11 was seen to spin for ever in an import that ran out of address space."""
    driver.forget()
    process = ProcessLimits(address_space_bytes=24 << 20, address_space_limit_bytes=40 << 20)
    monkeypatch.setattr(driver, "read_process_limits", lambda: process)
    monkeypatch.setitem(sys.modules, "cuda", None)  # its import would be another error
    with pytest.raises(UnavailableError, match="16 MiB of address space is left"):
        driver.load()


def test_the_bindings_are_not_imported_where_there_is_no_driver(monkeypatch):
    def open_library(name):
        message = f"{name}: cannot open shared object file: No such file or directory"
        raise OSError(message)

    driver.forget()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(driver, "read_process_limits", ProcessLimits)
    monkeypatch.setattr("ctypes.CDLL", open_library)
    monkeypatch.setitem(sys.modules, "cuda", None)  # its import would be another error
    with pytest.raises(
        UnavailableError, match=r"no NVIDIA driver was found .*: libcuda\.so\.1"
    ) as caught:
        driver.load()
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_missing_bindings_on_macos_are_no_fault(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "macOS" in str(errors_and_diagnosis.no_bindings(ImportError("cuda")))


def test_a_library_that_is_no_library_counts_as_no_driver(tmp_path, load_with):
    (tmp_path / "libcuda.so.1").write_text("not an ELF file")
    message, _, hint, code = load_with(tmp_path)
    assert message.startswith("no NVIDIA driver was found on this machine")
    assert "--backing host" in hint
    assert code == 4


@pytest.mark.cc
def test_a_library_without_the_entry_point_is_too_old(stub, load_with):
    message, cause, hint, code = load_with(
        stub("int cuInit(unsigned f);\nint cuInit(unsigned f) { return (int)f; }\n")
    )
    assert "too old or not a real one" in message
    assert "CUDA 12.0" in cause
    assert "525.60" in hint
    assert code == 4


@pytest.mark.cc
def test_a_library_that_hands_out_nothing_is_not_usable(stub, load_with):
    source = (
        "int cuGetProcAddress_v2(const char *s, void **f, int v, unsigned long long g, int *t);\n"
        '__attribute__((visibility("default")))\n'
        "int cuGetProcAddress_v2(const char *s, void **f, int v, unsigned long long g, int *t)\n"
        "{ (void)s; (void)v; (void)g; (void)t; *f = 0; return 500; }\n"
    )
    message, cause, _, code = load_with(stub(source))
    assert "cuInit" in message
    assert "not usable" in message
    assert "does not offer" in cause
    assert code == 4


@pytest.mark.parametrize(
    ("code", "symbol", "advice"),
    [
        (3, "CUDA_ERROR_NOT_INITIALIZED", "spawn"),
        (34, "CUDA_ERROR_STUB_LIBRARY", "stubs"),
        (100, "CUDA_ERROR_NO_DEVICE", "nvidia-smi"),
        (802, "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"),
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cuda-compat"),
        (999, "CUDA_ERROR_UNKNOWN", "--gpus"),
        (214, "CUDA_ERROR_ECC_UNCORRECTABLE", "nvidia-smi"),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "nvidia-smi"),
    ],
)
def test_any_refusal_of_cuinit_is_named_with_advice(fakecuda, code, symbol, advice):
    fakecuda.fail(f"cuInit:1={code}")
    with pytest.raises(
        UnavailableError, match=rf"cuInit\(0\) failed: {symbol} \({code}\)"
    ) as caught:
        driver.load()
    assert advice in caught.value.hint
    fakecuda.reset()


def test_a_code_that_the_bindings_do_not_know_keeps_its_number(fakecuda):
    fakecuda.fail("cuInit:1=12345")
    with pytest.raises(UnavailableError, match="12345"):
        driver.load()


def test_hidden_devices_are_blamed_on_the_variable(fakecuda, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    fakecuda.reset(devices=0)
    with pytest.raises(UnavailableError, match="NO_DEVICE") as caught:
        driver.load()
    assert caught.value.cause == "CUDA_VISIBLE_DEVICES is ''"


def test_a_driver_from_before_cuda_12_is_too_old(fakecuda):
    fakecuda.reset(driver_version=11080)
    with pytest.raises(UnavailableError, match=r"supports CUDA 11\.8"):
        driver.load()


def test_a_refused_start_is_tried_again(fakecuda):
    fakecuda.fail("cuInit:1=999")
    with pytest.raises(UnavailableError):
        driver.load()
    assert driver.load().version == 13000


def test_wsl_is_named_where_the_driver_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        errors_and_diagnosis.platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2"
    )
    assert (
        "WSL" in errors_and_diagnosis.no_driver(RuntimeError("Failed to dlopen libcuda.so.1")).cause
    )
    assert devices.driver_model(0) == "wsl"


@pytest.mark.parametrize("code", [3, 34, 46, 802, 803, 804, 999])
def test_a_driver_that_does_not_start_is_distinguished_from_an_absent_one(fakecuda, code):
    fakecuda.fail(f"cuInit:1={code}")
    with pytest.raises(errors_and_diagnosis.BrokenDriverError) as caught:
        driver.load()
    assert caught.value.code == code
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    fakecuda.reset(devices=0)
    with pytest.raises(UnavailableError) as caught:
        driver.load()
    assert not isinstance(caught.value, errors_and_diagnosis.BrokenDriverError)


@pytest.mark.parametrize("name", ["cuMemRelease", "cuMemUnmap", "cuCtxSynchronize"])
def test_a_function_that_a_quota_library_hides_is_missed_at_the_start(python_with_fakecuda, name):
    done = python_with_fakecuda(LOAD, missing=name)
    message, _, hint, code = json.loads(done.stdout)
    assert f"{name} is not offered" in message
    assert "LD_PRELOAD" in hint
    assert code == 4


def test_every_function_that_is_needed_is_looked_up_at_the_start(fakecuda):
    loaded = driver.load()
    assert all(loaded.offers(name) for name in driver.FUNCTIONS)
    assert not loaded.offers("cuMemNoSuchCall")


MANY = 523_404
CASES = [
    ("device-address-range", "cuMemAddressReserve", 32 * GIB, 40 * GIB, 0, None),
    ("device-memory", "cuMemCreate", 2 * GIB, GIB, 0, None),
    ("device-memory", "cuMemCreate", 2 * GIB, None, 0, None),
    ("device-memory", "cuMemSetAccess", 2 * GIB, GIB, MANY, None),
    ("mapping-descriptors", "cuMemSetAccess", 2 * MIB, 40 * GIB, MANY, None),
    ("limited-below-free", "cuMemSetAccess", 2 * MIB, 40 * GIB, 24, None),
    ("limited-below-free", "cuMemCreate", 2 * MIB, 8 * GIB, 9, None),
    ("wddm-budget", "cuMemSetAccess", 2 * MIB, 40 * GIB, MANY, "wddm"),
    ("wddm-budget", "cuMemCreate", 2 * MIB, 40 * GIB, 0, "wsl"),
]


@pytest.mark.parametrize(("kind", "call", "nbytes", "free", "mappings", "model"), CASES)
def test_each_refusal_has_the_cause_that_the_numbers_prove(
    kind, call, nbytes, free, mappings, model
):
    found = diagnose_device(Situation(call, nbytes, free, mappings, model))
    assert found.kind == kind
    assert found.remedy


def test_an_address_limit_is_named_and_half_of_it_is_not_advised():
    at = Situation("cuMemAddressReserve", 8 * GIB, 40 * GIB, 0, None, address_limit_bytes=4 * GIB)
    found = diagnose_device(at)
    assert found.kind == "address-space-limit"
    assert "RLIMIT_AS" in found.cause
    assert "half" not in found.remedy


def test_limits_below_the_free_memory_are_named(monkeypatch):
    for name in ("LD_PRELOAD", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    assert "MPS" in " ".join(limits_below_free(mps=True, integrated=False))
    assert "integrated" in " ".join(limits_below_free(mps=False, integrated=True))
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G")
    monkeypatch.setenv("LD_PRELOAD", "libvgpu.so")
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "3G")  # HAMi's
    found = " ".join(limits_below_free(mps=True, integrated=False))
    assert "0=2G" in found
    assert "libvgpu.so" in found
    assert "CUDA_DEVICE_MEMORY_LIMIT_0 is 3G" in found


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc of Linux")
def test_limits_of_the_process_are_named_only_where_they_may_bind(monkeypatch):
    """Each exportable handle is a descriptor; addresses of a device count against RLIMIT_AS."""
    import resource

    for name in ("LD_PRELOAD", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    used = len(list(Path("/proc/self/fd").iterdir()))
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_NOFILE: used + 100}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    assert limits_below_free(mps=False, integrated=False) == ()
    limits |= {resource.RLIMIT_AS: 64 * GIB, resource.RLIMIT_NOFILE: used + 4}
    addresses, descriptors = limits_below_free(mps=False, integrated=False)
    assert addresses == "RLIMIT_AS is 64 GiB"
    assert f"of {used + 4:,} file descriptors are in use" in descriptors


@pytest.mark.parametrize(
    ("call", "code", "mode", "word"),
    [
        ("cuDevicePrimaryCtxRetain", 46, 3, "exclusive-process"),
        ("cuDevicePrimaryCtxRetain", 46, 2, "prohibited"),
        ("cuDevicePrimaryCtxRetain", 46, 0, "another process"),
        ("cuDevicePrimaryCtxRetain", 2, None, "context"),
        ("cuMemCreate", 800, None, "IMEX"),
        ("cuMemUnmap", 600, None, "finished"),
        ("cuMemCreate", 304, None, "operating system"),
        ("cuDeviceGet", 101, None, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_codes_have_causes(call, code, mode, word):
    cause, hint = explain_code(call, code, mode)
    assert word in cause
    assert hint


def test_the_hint_of_a_failed_query_is_not_to_request_less():
    assert explain_code("cuDeviceGetAttribute", 2, None) == (
        None,
        "run nvidia-smi: it shows what uses the device",
    )


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemFree"])
def test_a_failed_release_is_not_asked_to_be_smaller(call):
    _, hint = explain_code(call, 2, None)
    assert "request less" not in hint
    assert "gives everything back" in hint


def test_where_a_device_takes_no_process_fewer_workers_are_not_advised():
    assert "--workers" not in explain_code("cuDevicePrimaryCtxRetain", 46, 2)[1]


@pytest.mark.parametrize("model", ["wddm", "wsl", "tcc", None])
def test_only_windows_is_blamed_for_a_limit_of_pinned_memory(model):
    cause = diagnose_pinning(model).cause
    assert ("Windows" in cause) == (model in {"wddm", "wsl"})


def test_what_ran_out_is_read_before_the_rollback_gives_it_back(fakecuda):
    fakecuda.reset(memory="64MiB")
    backing = open_device("cuda")
    reservation = backing.reserve(64 * MIB)
    try:
        fakecuda.fail("cuMemSetAccess:1=2")
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.commit(reservation, 0, 48 * MIB)
        assert caught.value.cause == "48 MiB was requested and 16 MiB is free on the device"
        fakecuda.fail("cuMemSetAccess:1=2")
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.commit(reservation, 0, 2 * MIB)
        assert "something limits this process below that" in caught.value.cause
        assert "mappings" not in caught.value.cause
    finally:
        backing.unreserve(reservation)
        backing.close()


def test_the_limit_of_mappings_is_distinguished_from_a_full_device(fakecuda):
    """Seen on an H100: the 523,405th mapping is refused by cuMemSetAccess, with memory to spare."""
    fakecuda.reset(granularity="4KiB", memory="1GiB", max_mappings=10_000)
    backing = open_device("cuda")
    g = backing.granularity
    reservation = backing.reserve(10_016 * g)
    try:
        backing.commit(reservation, 0, 10_000 * g)
        with pytest.raises(CudaOutOfMemoryError) as caught:
            backing.commit(reservation, 10_000 * g, g)
        assert caught.value.call == "cuMemSetAccess"
        assert caught.value.symbol == "CUDA_ERROR_OUT_OF_MEMORY"
        assert "10,001 mappings" in caught.value.cause
        assert "--chunk" in caught.value.hint
        assert list(reservation.blocks) == [(0, 10_000 * g)]
        backing.release(reservation, 0, g)  # one descriptor is free again
        backing.commit(reservation, 10_000 * g, g)
    finally:
        backing.unreserve(reservation)
        backing.close()
