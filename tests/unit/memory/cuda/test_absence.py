"""Every way in which CUDA can be missing becomes "not available here", with the reason."""

import json
import os
import subprocess
import sys

import pytest
from fakecuda import build, control

from vmtool.errors import ExitCode, UnavailableError
from vmtool.memory.counter_types import ProcessLimits
from vmtool.memory.cuda import absence, devices, driver

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
    assert "macOS" in str(absence.no_bindings(ImportError("cuda")))


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
    monkeypatch.setattr(absence.platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    assert "WSL" in absence.no_driver(RuntimeError("Failed to dlopen libcuda.so.1")).cause
    assert devices.driver_model(0) == "wsl"


@pytest.mark.parametrize("code", [3, 34, 46, 802, 803, 804, 999])
def test_a_driver_that_does_not_start_is_distinguished_from_an_absent_one(fakecuda, code):
    fakecuda.fail(f"cuInit:1={code}")
    with pytest.raises(absence.BrokenDriverError) as caught:
        driver.load()
    assert caught.value.code == code
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    fakecuda.reset(devices=0)
    with pytest.raises(UnavailableError) as caught:
        driver.load()
    assert not isinstance(caught.value, absence.BrokenDriverError)


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
