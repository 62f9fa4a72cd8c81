"""The checked call: outputs as plain values, errors with everything needed to understand them."""

import contextlib
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

from vmtool.errors import CallError, ExitCode, UnavailableError
from vmtool.memory.cuda import devices, driver
from vmtool.memory.cuda.context import DeviceContext
from vmtool.memory.cuda.errors_and_diagnosis import (
    LOST_CODES,
    CudaError,
    CudaNotSupportedError,
    CudaOutOfMemoryError,
    DeviceLostError,
)

MIB = 1 << 20


def test_importing_the_module_does_not_import_the_bindings():
    code = "import sys, vmtool.memory.cuda.devices; print('cuda.bindings' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_outputs_are_none_one_value_or_a_tuple(fakecuda):
    cuda = driver.load()
    context = cuda.call("cuDevicePrimaryCtxRetain", 0)
    assert cuda.call("cuCtxSetCurrent", context) is None
    assert cuda.call("cuCtxGetCurrent") == context
    assert cuda.call("cuMemGetInfo") == (1024 * MIB, 1024 * MIB)
    assert type(cuda.call("cuCtxGetDevice")) is int
    stream = cuda.call("cuStreamCreate", driver.STREAM_NON_BLOCKING)
    event = cuda.call("cuEventCreate", 0)
    assert [type(value) for value in (context, stream, event)] == [int, int, int]
    cuda.call("cuDevicePrimaryCtxRelease", 0)


def test_addresses_and_handles_are_integers(fakecuda):
    cuda = driver.load()
    properties = cuda.allocation_properties(0)
    nbytes = cuda.granularity(properties, driver.GRANULARITY_MINIMUM)
    address = cuda.call("cuMemAddressReserve", nbytes, 0, 0, 0)
    handle = cuda.call("cuMemCreate", nbytes, properties, 0)
    assert type(address) is int
    assert type(handle) is int
    cuda.call("cuMemMap", address, nbytes, 0, handle, 0)
    cuda.call("cuMemRelease", handle)
    cuda.call("cuMemSetAccess", address, nbytes, [cuda.access(0)], 1)
    assert cuda.call("cuMemRetainAllocationHandle", address) == handle
    cuda.call("cuMemRelease", handle)
    cuda.call("cuMemUnmap", address, nbytes)
    cuda.call("cuMemAddressFree", address, nbytes)


def test_an_error_names_call_arguments_symbol_number_and_words(fakecuda):
    cuda = driver.load()
    with pytest.raises(CudaError) as caught:
        cuda.call("cuMemAddressReserve", 4096, 0, 0, 0)
    error = caught.value
    assert str(error) == (
        "cuMemAddressReserve(4096, 0, 0, 0) failed: CUDA_ERROR_INVALID_VALUE (1): invalid argument"
    )
    assert (error.call, error.arguments, error.code) == ("cuMemAddressReserve", "4096, 0, 0, 0", 1)
    assert isinstance(error, CallError)
    assert error.exit_code == ExitCode.CALL_FAILED
    assert fakecuda.forgive() != []


def test_arguments_that_are_not_numbers_are_named_by_kind(fakecuda):
    cuda = driver.load()
    with pytest.raises(CudaError) as caught:
        cuda.call("cuMemcpyHtoD", 1, b"12345", 5)
    assert caught.value.arguments == "1, <5 bytes>, 5"
    with pytest.raises(CudaError) as caught:
        cuda.call("cuMemSetAccess", 0, 0, [cuda.access(0)], 1)
    assert caught.value.arguments == "0, 0, [<CUmemAccessDesc>], 1"
    assert fakecuda.forgive() != []


def test_a_full_device_is_an_error_of_its_own(fakecuda):
    cuda = driver.load()
    with pytest.raises(CudaOutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        cuda.call("cuMemCreate", 2048 * MIB, cuda.allocation_properties(0), 0)
    assert caught.value.hint


def test_what_is_not_supported_is_unavailable(fakecuda):
    cuda = driver.load()
    properties = cuda.allocation_properties(0, handle_types=driver.HANDLE_FABRIC)
    with pytest.raises(CudaNotSupportedError) as caught:
        cuda.call("cuMemCreate", 2 * MIB, properties, 0)
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_a_result_that_the_bindings_do_not_know_is_a_cuda_error(fakecuda):
    cuda = driver.load()
    fakecuda.fail("cuDeviceGetCount:1=4321")
    with pytest.raises(CudaError, match="4321") as caught:
        cuda.call("cuDeviceGetCount")
    assert caught.value.code == 4321


@pytest.mark.parametrize("name", ["cuMemAllocPitch", "cuNoSuchFunction"])
def test_a_function_that_is_not_offered_is_unavailable(fakecuda, name):
    with pytest.raises(UnavailableError, match=name):
        driver.load().call(name, *[8] * 3 * (name == "cuMemAllocPitch"))


def test_a_wrong_argument_raises_what_the_bindings_raise(fakecuda):
    cuda = driver.load()
    with pytest.raises(RuntimeError, match="List is too small"):
        cuda.call("cuMemSetAccess", 0, 0, [cuda.access(0)], 2)
    with pytest.raises(TypeError):
        cuda.call("cuMemcpyHtoD", 0, "text", 4)


@pytest.mark.parametrize("code", sorted(LOST_CODES))
def test_after_a_sticky_error_nothing_is_called_any_more(fakecuda, code):
    cuda = driver.load()
    cuda.call("cuDeviceGetCount")
    fakecuda.fail(f"cuDeviceGet:1={code}")
    with pytest.raises(DeviceLostError) as first:
        cuda.call("cuDeviceGet", 0)
    assert (first.value.code, str(cuda.lost)) == (code, str(first.value))
    before = fakecuda.report()["calls"]["cuDeviceGetCount"]
    with pytest.raises(DeviceLostError, match=r"cuDeviceGet\(0\) failed") as later:
        cuda.call("cuDeviceGetCount")
    assert later.value.code == code
    assert later.value.hint == first.value.hint
    assert fakecuda.report()["calls"]["cuDeviceGetCount"] == before


def test_other_errors_leave_the_driver_usable(fakecuda):
    cuda = driver.load()
    fakecuda.fail("cuDeviceGet:1=999")
    with pytest.raises(CudaError, match="999"):
        cuda.call("cuDeviceGet", 0)
    assert cuda.lost is None
    assert cuda.call("cuDeviceGet", 0) == 0


def test_the_hint_in_a_forked_child_is_to_use_spawn(python_with_fakecuda):
    done = python_with_fakecuda(
        "import os\n"
        "from vmtool.memory.cuda import driver, driver as errors\n"
        "cuda = driver.load()\n"
        "if os.fork() == 0:\n"
        "    try: cuda.call('cuDeviceGetCount')\n"
        "    except errors.CudaError as exc: print(exc.code, exc.hint, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert done.stdout == "3 start workers with spawn, not fork\n"


def test_devices_are_listed_without_a_context(fakecuda):
    fakecuda.reset(devices=2, memory="24GiB", fabric=1, integrated=1)
    found = devices.devices()
    assert [info.ordinal for info in found] == [0, 1]
    assert found[1].name == "vmtool stand-in GPU 1 (no hardware)"
    assert found[0].uuid != found[1].uuid
    assert len(found[0].uuid) == 36
    assert found[0].total_bytes == 24 << 30
    assert found[0].compute_capability == "9.0"
    assert found[0].integrated is True
    assert found[0].driver_version == 13000
    assert {key for key, value in found[0].attributes.items() if value == 1} == {
        *("vmm", "posix_fd", "fabric", "unified_addressing", "memory_pools"),
    }
    assert found[0].attributes["host_numa_id"] == -1
    calls = fakecuda.report()["calls"]
    assert not [name for name in calls if "Ctx" in name]


def test_an_attribute_that_the_driver_does_not_know_is_none(fakecuda):
    cuda = driver.load()
    assert cuda.attribute("NO_SUCH_ATTRIBUTE", 0) is None
    for refusal in ("cuDeviceGetAttribute:1=1", "cuDeviceGetAttribute:1=801"):
        fakecuda.fail(refusal)
        assert cuda.attribute("INTEGRATED", 0) is None
    fakecuda.fail("cuDeviceGetAttribute:1=2")
    with pytest.raises(CudaOutOfMemoryError):
        cuda.attribute("INTEGRATED", 0)


def test_load_starts_the_driver_once(fakecuda):
    assert driver.load() is driver.load()
    assert fakecuda.report()["calls"]["cuInit"]["calls"] == 1
    assert os.getpid() == fakecuda.report()["pid"]


@pytest.mark.parametrize("code", [46, 101, 999])
def test_a_second_kind_of_call_with_the_same_answer_shows_that_the_device_is_gone(fakecuda, code):
    cuda = driver.load()
    fakecuda.fail(f"cuDeviceGetCount:1+={code},cuDeviceGet:1+={code}")
    for _ in range(3):  # one call that goes on failing may have a reason of its own
        with pytest.raises(CudaError) as caught:
            cuda.call("cuDeviceGetCount")
        assert not isinstance(caught.value, DeviceLostError)
    with pytest.raises(DeviceLostError, match=f"cuDeviceGet.*{code}"):
        cuda.call("cuDeviceGet", 0)
    fakecuda.fail("")
    calls = fakecuda.report()["calls"]
    with pytest.raises(DeviceLostError, match=r"cuDeviceGet\(0\)"):  # the one that lost it
        cuda.call("cuDeviceGetCount")
    assert fakecuda.report()["calls"] == calls
    fakecuda.reset()


@pytest.mark.parametrize("code", [719, 999])
def test_what_is_remembered_of_an_error_keeps_nothing_alive(fakecuda, code):
    cuda = driver.load()
    fakecuda.fail(f"cuDeviceGet:1={code}")
    held = []

    def use():
        context = DeviceContext.__new__(DeviceContext)
        held.append(weakref.ref(context))
        cuda.call("cuDeviceGet", 0)

    with contextlib.suppress(CudaError):
        use()
    assert held[0]() is None
    fakecuda.reset()


def test_the_first_error_that_lost_a_device_is_the_one_that_is_reported(fakecuda):
    cuda = driver.load()
    cuda.error_of("cuMemCreate", (1,), "CUDA_ERROR_ECC_UNCORRECTABLE")
    cuda.error_of("cuMemMap", (), "CUDA_ERROR_ILLEGAL_ADDRESS")  # a thread was inside that call
    with pytest.raises(DeviceLostError, match=r"cuMemCreate\(1\) failed.*214"):
        cuda.call("cuDeviceGetCount")
    fakecuda.reset()


def test_a_call_that_succeeds_in_between_clears_the_suspicion(fakecuda):
    cuda = driver.load()
    fakecuda.fail("cuDeviceGetCount:1=999,cuDeviceTotalMem:2=999")
    with pytest.raises(CudaError):
        cuda.call("cuDeviceGetCount")
    cuda.call("cuDeviceTotalMem", 0)
    with pytest.raises(CudaError) as caught:
        cuda.call("cuDeviceTotalMem", 0)
    assert not isinstance(caught.value, DeviceLostError)
    assert cuda.call("cuDeviceGetCount") == 1


def test_waiting_for_the_device_in_vain_twice_shows_that_it_is_gone(fakecuda):
    context = DeviceContext(0)
    fakecuda.fail("cuCtxSynchronize:1+=999")
    with pytest.raises(CudaError) as caught:
        context.synchronise()
    assert not isinstance(caught.value, DeviceLostError)
    with pytest.raises(DeviceLostError):  # pushing the context in between proves nothing
        context.synchronise()
    fakecuda.reset()


def test_an_exclusive_device_is_named_where_its_context_is_refused(fakecuda):
    fakecuda.reset(devices=2, attributes="20@1=3")
    fakecuda.fail("cuDevicePrimaryCtxRetain:1+=46")
    for ordinal, cause in ((1, "exclusive-process"), (0, "another process")):
        with pytest.raises(CudaError) as caught:
            DeviceContext(ordinal)
        assert cause in caught.value.cause
        fakecuda.reset(devices=2, attributes="20@1=3", fail="cuDevicePrimaryCtxRetain:1+=46")


@pytest.mark.parametrize(
    ("version", "offered", "called"),
    [
        ("12.9.10", {"cuDeviceGetUuid", "cuDeviceGetUuid_v2"}, "cuDeviceGetUuid_v2"),
        ("12.9.10", {"cuDeviceGetUuid"}, None),  # the first version: a slice's parent
        ("13.4.4", {"cuDeviceGetUuid"}, "cuDeviceGetUuid"),  # the second, under the plain name
    ],
)
def test_a_uuid_comes_from_the_call_that_knows_mig_slices(version, offered, called):
    made = []

    def call(name, _handle):
        made.append(name)
        return SimpleNamespace(bytes=bytes(range(16)))

    loaded = SimpleNamespace(
        bindings_version=version, has_binding=offered.__contains__, call=call, lost=None
    )
    uuid = devices.read_uuid(loaded, 0)
    assert made == ([] if called is None else [called])
    assert uuid == (None if called is None else "00010203-0405-0607-0809-0a0b0c0d0e0f")
