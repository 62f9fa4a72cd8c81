"""DLPack capsules: how arrays of other libraries take memory without a copy.

The structures are those of ``dlpack.h`` before its version 1 (DLManagedTensor), which every
consumer takes; https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vmtool.memory.exports import Export

CPU: Final = 1
CUDA: Final = 2
_UINT: Final = 1


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_NAME: Final = b"dltensor"
# What a consumer holds, by the address of its structure, until it calls the deleter.
_held: Final[dict[int, tuple[_ManagedTensor, Any, Export]]] = {}

# By index, because attributes of pythonapi are shared with everyone who declares them otherwise.
_is_valid = ctypes.pythonapi["PyCapsule_IsValid"]
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_get_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_get_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p
_new = ctypes.pythonapi["PyCapsule_New"]
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new.restype = ctypes.py_object


def _delete(address: int) -> None:
    """Forget an export; a consumer calls it from any thread, once."""
    _held.pop(address, None)


def _destroy(capsule: int) -> None:
    """Forget an export whose capsule nobody took; a consumer renames the one that it takes."""
    if _is_valid(capsule, _NAME):
        _held.pop(_get_pointer(capsule, _NAME), None)


# Kept for ever: C code calls them. The capsule is passed as a plain address, because it is being
# destroyed and must not be referenced.
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DELETER: Final = _CALLBACK(_delete)
_DESTRUCTOR: Final = _CALLBACK(_destroy)


def capsule(export: Export, address: int, device: tuple[int, int]) -> object:
    """Return a capsule of the exported bytes at *address*, one-dimensional and unsigned.

    Args:
        export: Kept until the consumer is done.
        address: The first byte, on that device.
        device: ``(CPU, 0)`` or ``(CUDA, ordinal)``.
    """
    shape = (ctypes.c_int64 * 1)(export.nbytes)
    strides = (ctypes.c_int64 * 1)(1)
    managed = _ManagedTensor()
    managed.tensor.data = address
    managed.tensor.device = _Device(*device)
    managed.tensor.ndim = 1
    managed.tensor.dtype = _DataType(_UINT, 8, 1)
    managed.tensor.shape = shape
    managed.tensor.strides = strides
    managed.deleter = ctypes.cast(_DELETER, ctypes.c_void_p).value
    where = ctypes.addressof(managed)
    _held[where] = (managed, (shape, strides), export)
    return _new(where, _NAME, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))
