"""Views of a buffer for other libraries: memoryview, DLPack and ``__cuda_array_interface__``.

Each is recorded while it lives, so that a buffer never releases memory that a view shows.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import CapsuleType


class LiveViewError(UsageError):
    """A close, release or shrink that would release memory that a live view shows."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(
            f"a live view shows the first {format_size(nbytes)}",
            hint="release the views and arrays made from this buffer first",
        )


class Export:
    """The first bytes of a buffer, lent to another library. It keeps the buffer and its memory alive.

    Attributes:
        nbytes: How many bytes.
    """

    __slots__ = ("__weakref__", "_buffer", "nbytes")

    def __init__(self, buffer: object, nbytes: int) -> None:
        self._buffer = buffer
        self.nbytes = nbytes


class Exports:
    """The exports of one buffer that are alive.

    Attributes:
        made: References to the exports made so far; empty is the common case.
        lent_bytes: Bytes lent through ``__cuda_array_interface__``, which has no end: its users keep
            the buffer itself.
    """

    __slots__ = ("lent_bytes", "made")

    def __init__(self) -> None:
        self.made: list[weakref.ref[Export]] = []
        self.lent_bytes = 0

    def add(self, buffer: object, nbytes: int) -> Export:
        """Return a new export of the first *nbytes* of *buffer*."""
        export = Export(buffer, nbytes)
        self.made = [ref for ref in self.made if ref() is not None]
        self.made.append(weakref.ref(export))
        return export

    def check(self, start: int, end: int) -> None:
        """Raise if anything lent shows a byte of ``start..end``.

        Raises:
            LiveViewError: If something does.
        """
        longest = max(self.live_bytes(), self.lent_bytes)
        if start < min(end, longest):
            raise LiveViewError(longest)

    def live_bytes(self) -> int:
        """Return how many bytes the longest export that is alive shows."""
        self.made = [ref for ref in self.made if ref() is not None]
        return max((export.nbytes for ref in self.made if (export := ref())), default=0)


def host_view(export: Export, address: int) -> memoryview:
    """Return the exported bytes at *address* as a writable view that keeps the export."""
    array = (ctypes.c_ubyte * export.nbytes).from_address(address)
    array.export = export  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def cuda_array_interface(address: int, nbytes: int) -> dict[str, Any]:
    """Return version 3 of ``__cuda_array_interface__`` for bytes at a device address."""
    return {
        "shape": (nbytes,),
        "typestr": "|u1",
        "data": (address, False),
        "strides": None,
        "stream": None,  # nothing of ours is in flight: the backing waits for what it starts
        "version": 3,
    }


CPU: Final = 1
CUDA: Final = 2
_UINT: Final = 1
#: The version of dlpack.h whose structures follow: https://github.com/dmlc/dlpack
_VERSION: Final = (1, 0)


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
    """``DLManagedTensor``, for consumers of before DLPack 1.0; numpy takes it as read-only."""

    _fields_ = (
        ("tensor", _Tensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _VersionedTensor(ctypes.Structure):
    """``DLManagedTensorVersioned``; without the flag for read-only it is writable."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_NAME: Final = b"dltensor"
_VERSIONED_NAME: Final = b"dltensor_versioned"
# What consumers use, by the address of its structure, until they call the deleter.
_exported: Final[dict[int, tuple[_ManagedTensor | _VersionedTensor, Any, Export]]] = {}

# By index: attributes of pythonapi are shared with any code that declares them otherwise.
_is_valid = ctypes.pythonapi["PyCapsule_IsValid"]
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_get_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_get_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p
_new = ctypes.pythonapi["PyCapsule_New"]
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new.restype = ctypes.py_object


# Arrays may outlive this module at the interpreter's exit. So the callbacks look nothing up in it:
# what they need is bound as defaults.
def _delete(address: int, drop: Callable[..., Any] = _exported.pop) -> None:
    """Drop an export; a consumer calls it from any thread, once."""
    drop(address, None)


def _destroy(
    capsule: int,
    drop: Callable[..., Any] = _exported.pop,
    is_valid: Callable[..., int] = _is_valid,
    get_pointer: Callable[..., int] = _get_pointer,
    names: tuple[bytes, ...] = (_NAME, _VERSIONED_NAME),
) -> None:
    """Drop an export whose capsule was not consumed; a consumer renames the capsule it takes."""
    for name in names:
        if is_valid(capsule, name):
            drop(get_pointer(capsule, name), None)


# The capsule is passed as a plain address, because it is being destroyed and must not be referenced.
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DELETER: Final = _CALLBACK(_delete)
_DESTRUCTOR: Final = _CALLBACK(_destroy)

# C code keeps the addresses of these, and may use them after this module is gone.
_keep = ctypes.pythonapi["Py_IncRef"]
_keep.argtypes = [ctypes.py_object]
_keep.restype = None
for _immortal in (_DELETER, _DESTRUCTOR, _NAME, _VERSIONED_NAME):
    _keep(_immortal)


def capsule(
    export: Export, address: int, device: tuple[int, int], max_version: tuple[int, int] | None
) -> CapsuleType:
    """Return a capsule of the exported bytes at *address*, one-dimensional and unsigned.

    Args:
        export: Kept until the consumer is done.
        address: The first byte, on that device.
        device: ``(CPU, 0)`` or ``(CUDA, ordinal)``.
        max_version: The newest version that the consumer takes; ``None`` is before 1.0.
    """
    versioned = max_version is not None and max_version[0] >= _VERSION[0]
    shape = (ctypes.c_int64 * 1)(export.nbytes)
    strides = (ctypes.c_int64 * 1)(1)
    managed: _ManagedTensor | _VersionedTensor
    if versioned:
        managed = _VersionedTensor()
        managed.major, managed.minor = _VERSION
    else:
        managed = _ManagedTensor()
    managed.tensor.data = address
    managed.tensor.device = _Device(*device)
    managed.tensor.ndim = 1
    managed.tensor.dtype = _DataType(_UINT, 8, 1)
    managed.tensor.shape = shape
    managed.tensor.strides = strides
    managed.deleter = ctypes.cast(_DELETER, ctypes.c_void_p).value
    where = ctypes.addressof(managed)
    _exported[where] = (managed, (shape, strides), export)
    name = _VERSIONED_NAME if versioned else _NAME
    made: CapsuleType = _new(where, name, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))
    return made
