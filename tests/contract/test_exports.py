"""Views for other libraries without a copy, and that their memory stays while they use it."""

from __future__ import annotations

import ctypes
import gc

import pytest

from vmtool.errors import UsageError
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.buffer_views import LiveViewError
from vmtool.memory.governor import Tier


class Tensor(ctypes.Structure):
    """DLManagedTensor as dlpack.h has it, written down here once more on purpose."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


class VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        *Tensor._fields_[:-2],
    )


def consume(capsule, kind=Tensor, name=b"dltensor"):
    """Take a capsule as a consumer does: rename it, and own its structure."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    where = api.PyCapsule_GetPointer(capsule, name)
    api.PyCapsule_SetName(capsule, {b"dltensor": b"used_dltensor"}.get(name, USED_VERSIONED))
    return kind.from_address(where)


USED_VERSIONED = b"used_dltensor_versioned"  # a capsule keeps the address of its name


@pytest.fixture
def governor(platform):
    return platform.governor


@pytest.fixture
def buffer(platform, governor):
    buffer = VirtualBuffer(platform.backing, 8 * platform.backing.granularity, governor=governor)
    buffer.grow_to(2 * platform.backing.granularity)
    yield buffer
    gc.collect()
    buffer.close()


def test_an_empty_buffer_is_exported_without_an_address(platform, governor):
    with VirtualBuffer(platform.backing, platform.backing.granularity, governor=governor) as empty:
        tensor = consume(empty.__dlpack__())
        assert (tensor.data, tensor.shape[0]) == (None, 0)
        tensor.deleter(ctypes.addressof(tensor))
        if platform.backing.tier is Tier.DEVICE:
            assert empty.__cuda_array_interface__["data"] == (0, False)
            assert empty.__cuda_array_interface__["shape"] == (0,)


def test_a_consumed_capsule_describes_the_bytes_and_keeps_them(buffer, platform):
    capsule = buffer.__dlpack__()
    tensor = consume(capsule)
    del capsule
    gc.collect()
    assert tensor.data == buffer.base
    assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
    assert tensor.device_type == (1 if platform.backing.tier is Tier.HOST else 2)
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, len(buffer), 1)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)
    with pytest.raises(LiveViewError):
        buffer.close()
    with pytest.raises(LiveViewError):
        buffer.shrink_to(0)
    buffer.grow_to(4 * platform.backing.granularity)
    buffer.shrink_to(2 * platform.backing.granularity)
    tensor.deleter(ctypes.addressof(tensor))
    buffer.shrink_to(0)


def test_a_consumer_of_dlpack_1_gets_a_writable_versioned_capsule(buffer):
    capsule = buffer.__dlpack__(max_version=(1, 1))
    tensor = consume(capsule, VersionedTensor, b"dltensor_versioned")
    del capsule
    gc.collect()
    assert (tensor.major, tensor.minor, tensor.flags) == (1, 0, 0)
    assert tensor.data == buffer.base
    assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, len(buffer), 1)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)
    with pytest.raises(LiveViewError):
        buffer.close()
    tensor.deleter(ctypes.addressof(tensor))
    buffer.shrink_to(0)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 3)])
def test_an_unused_capsule_is_dropped(buffer, version):
    capsule = buffer.__dlpack__(max_version=version)
    versioned = version is not None and version[0] >= 1
    assert ('"dltensor_versioned"' if versioned else '"dltensor"') in repr(capsule)
    with pytest.raises(LiveViewError):
        buffer.close()
    del capsule
    gc.collect()
    buffer.close()


def test_an_export_outlives_a_forgotten_buffer(platform, governor):
    buffer = VirtualBuffer(platform.backing, platform.backing.granularity, governor=governor)
    buffer.grow_to(platform.backing.granularity)
    base = buffer.base
    tensor = consume(buffer.__dlpack__())
    del buffer
    gc.collect()
    assert not platform.memory.faults(base)
    assert platform.leased() == platform.backing.granularity
    tensor.deleter(ctypes.addressof(tensor))
    gc.collect()
    assert platform.memory.faults(base)
    assert platform.leased() == 0


def test_copies_and_other_devices_are_refused(buffer):
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(13, 7))
    consumed = consume(buffer.__dlpack__(dl_device=buffer.__dlpack_device__(), copy=False))
    consumed.deleter(ctypes.addressof(consumed))


def test_released_bytes_are_not_exported(buffer, platform):
    buffer.release(0, platform.backing.granularity)
    with pytest.raises(UsageError):
        buffer.__dlpack__()


def test_numpy_takes_host_memory_by_dlpack(buffer, platform):
    if platform.backing.tier is not Tier.HOST:
        pytest.skip("numpy has no device memory")
    numpy = pytest.importorskip("numpy")
    array = numpy.from_dlpack(buffer)
    assert array.ctypes.data == buffer.base
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":  # the first that asks for DLPack 1.0
        array[7] = 42
        assert buffer.view()[7] == 42
    assert array.shape == (len(buffer),)
    assert array.dtype == numpy.uint8
    with pytest.raises(LiveViewError):
        buffer.close()
    del array


def test_jax_shows_host_memory_by_dlpack(buffer, platform):
    """Arrays of JAX do not change; what is written to the buffer shows in them all the same."""
    if platform.backing.tier is not Tier.HOST:
        pytest.skip("a device that JAX does not know")
    jax_numpy = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    array = jax_numpy.from_dlpack(buffer)
    assert array.unsafe_buffer_pointer() == buffer.base
    buffer.view()[7] = 42
    assert array[7] == 42
    with pytest.raises(LiveViewError):
        buffer.close()
    del array
    gc.collect()


def test_the_cuda_array_interface_defers_the_close_to_the_last_reference(platform, governor):
    buffer = VirtualBuffer(platform.backing, 4 * platform.backing.granularity, governor=governor)
    buffer.grow_to(2 * platform.backing.granularity)
    if platform.backing.tier is Tier.HOST:
        assert not hasattr(buffer, "__cuda_array_interface__")
        buffer.close()
        return
    described = buffer.__cuda_array_interface__
    assert described["data"] == (buffer.base, False)
    assert described["shape"] == (len(buffer),)
    assert (described["typestr"], described["version"]) == ("|u1", 3)
    with pytest.raises(LiveViewError):
        buffer.shrink_to(0)
    base, charged = buffer.base, buffer.committed
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert not platform.memory.faults(base)
    assert platform.leased() == charged
    del buffer
    gc.collect()
    assert platform.memory.faults(base)
    assert platform.leased() == 0
