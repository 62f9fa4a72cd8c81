"""llama.cpp's own library, called through ctypes, and the GGUF files for it.

A folder of its libraries is ``bins/linux-x64`` of npm's ``@node-llama-cpp/linux-x64``, tried with 3.22.1,
which is llama.cpp v0.5.0.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from ctypes import c_char_p, c_int, c_uint8, c_void_p
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

F32, F16 = 0, 1
_ALIGN = 32
# Where struct llama_model_params has load_mode and no_alloc. -1 leaves the mode to llama.cpp, which maps
# the file, 0 reads it, and 3 is mmap and mlock.
_LOAD_MODE, _NO_ALLOC = 24, 76
AUTOMATIC, READ, MAP_AND_LOCK = -1, 0, 3
#: Where struct llama_context_params has what is set here, and the same by the names of v0.5.0.
_CONTEXT = {
    "n_ctx": 0,
    "n_ubatch": 8,
    "n_seq_max": 12,
    "n_rs_seq": 16,
    "ctx_type": 36,
    "flash_attn_type": 52,
    "type_k": 104,
    "type_v": 108,
}
_SWA_FULL, _UNIFIED = 132, 133
_DEFAULTS = {"n_ctx": 512, "n_ubatch": 512, "n_seq_max": 1, "flash_attn_type": -1, "type_k": F16}
#: A file that says so little that the library asks for more is completed at most so often.
_MOST_LOADS = 1000


class Parameters(ctypes.Structure):
    """Parameters of any kind. Both are passed on the stack, where further bytes do no harm."""

    _fields_ = (("bytes", c_uint8 * 1024),)


class Library:
    """The functions of llama.cpp in *folder*; *log* gets what it logs, with the level of each text."""

    def __init__(self, folder: Path, log: Callable[[int, bytes], object]) -> None:
        self.calls = ctypes.CDLL(str(next(folder.glob("libllama.*so"))))
        ggml = ctypes.CDLL(str(next(folder.glob("libggml.*so"))))
        kind = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
        self._log = kind(lambda level, words, _: void(log(level, words)))
        self.calls.llama_log_set(self._log, None)
        ggml.ggml_backend_load_all_from_path(str(folder).encode())
        self.calls.llama_backend_init()
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(self.calls, name).restype = Parameters
        for name in ("llama_model_load_from_file", "llama_init_from_model"):
            getattr(self.calls, name).restype = c_void_p
        self.calls.llama_model_load_from_file.argtypes = [c_char_p, Parameters]
        self.calls.llama_init_from_model.argtypes = [c_void_p, Parameters]

    def load(self, path: Path, mode: int = AUTOMATIC, *, no_alloc: bool = False) -> int | None:
        """Return the model in *path*; with *no_alloc*, without memory for its weights."""
        parameters = self.calls.llama_model_default_params()
        if struct.unpack_from("<i", parameters.bytes, _LOAD_MODE)[0] != AUTOMATIC:
            sys.exit("this llama.cpp keeps its load mode elsewhere")
        struct.pack_into("<i", parameters.bytes, _LOAD_MODE, mode)
        parameters.bytes[_NO_ALLOC] = no_alloc
        model: int | None = self.calls.llama_model_load_from_file(str(path).encode(), parameters)
        return model

    def context(
        self, model: int, *, swa_full: bool = True, unified: bool = False, **values: int
    ) -> int | None:
        """Return a context of *model* with *values*, by their names in struct llama_context_params."""
        parameters = self.calls.llama_context_default_params()
        for name, value in _DEFAULTS.items():
            if struct.unpack_from("<i", parameters.bytes, _CONTEXT[name])[0] != value:
                sys.exit(f"this llama.cpp keeps {name} elsewhere")
        for name, value in values.items():
            struct.pack_into("<i", parameters.bytes, _CONTEXT[name], value)
        parameters.bytes[_SWA_FULL], parameters.bytes[_UNIFIED] = swa_full, unified
        context: int | None = self.calls.llama_init_from_model(model, parameters)
        return context


def void(_: object) -> None:
    """Return nothing, as a callback of C has to."""


# ---- GGUF files ---------------------------------------------------------------------------------


@dataclass
class GgufFile:
    """A GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    Attributes:
        metadata: Its keys; an ``int`` becomes a number of 32 bits.
        tensors: Its tensors, with the shape of each.
        matrix: The type of those with two dimensions or more; all others are F32.
    """

    metadata: dict[str, Any]
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    matrix: int = F16

    def write(self, path: Path, contents: Callable[[str], bytes] | None = None) -> None:
        """Write it to *path*; without *contents*, which gives each tensor's bytes, as a hole."""
        keys = b"".join(_text(key) + _typed(value) for key, value in self.metadata.items())
        infos, at = b"", 0
        for name, shape in self.tensors.items():
            kind = self.matrix if len(shape) > 1 else F32
            infos += _text(name) + struct.pack("<I", len(shape))
            infos += struct.pack(f"<{len(shape)}QIQ", *shape, kind, at)
            size = 2 if kind == F16 else 4
            for extent in shape:
                size *= extent
            at += -(-size // _ALIGN) * _ALIGN
        counts = struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))
        head = b"GGUF" + counts + keys + infos
        with path.open("wb") as file:
            file.write(head + b"\0" * (-len(head) % _ALIGN))
            if contents is None:
                file.truncate(file.tell() + at)
                return
            for name in self.tensors:
                part = contents(name)
                file.write(part + b"\0" * (-len(part) % _ALIGN))


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _typed(value: Any) -> bytes:
    """Return *value* after its type."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if value >= 0 else struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    items = [_typed(item) for item in value]
    contents = b"".join(item[4:] for item in items)
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + contents


# ---- what it logs for a file with given keys -----------------------------------------------------

_ABSENT = re.compile(r"tensor '([^']+)' not found")
_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected ([\d, ]+), got")
_LOADED = re.compile(r"loading tensor (\S+)")
_BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
_CACHE = re.compile(r"(?:llama_kv_cache|llama_memory_recurrent): size = .*")
_REFUSED = 3
_REASON = re.compile(r"llama_init_from_model: (.*)")


class Loader:
    """Loads files without weights, with the tensors for which the library asks in its errors.

    An assertion of the library ends the process, so each model needs one of its own (`os.fork`).
    """

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        self._logged = bytearray()
        self._pipe: int | None = None
        self._library = Library(folder, self._keep)

    def _keep(self, _: int, words: bytes) -> None:
        self._logged += words
        if self._pipe is not None:
            os.write(self._pipe, words)

    def load(self, metadata: Mapping[str, Any], path: Path) -> int:
        """Return the model of a file with *metadata*, which is written to *path*.

        Raises:
            ValueError: If the library takes no such file, with the end of what it logged.
        """
        name = metadata["general.architecture"]
        blocks = metadata[f"{name}.block_count"]
        file = GgufFile({"tokenizer.ggml.model": "none", **metadata})
        if f"{name}.nextn_predict_layers" in metadata:  # else it is a file of these layers only
            file.tensors["blk.0.attn_norm.weight"] = (1,)
        if name == "rwkv6":  # one of two that it does not ask for, and cannot do without
            file.tensors |= {f"blk.{i}.time_mix_lerp_w.weight": (1,) for i in range(blocks)}
        for _ in range(_MOST_LOADS):
            self._logged.clear()
            file.write(path)
            model = self._library.load(path, READ, no_alloc=True)
            if model is not None:
                return model
            if not _complete(file.tensors, self._logged.decode(errors="replace"), blocks):
                break
        raise ValueError(self._logged.decode(errors="replace")[-300:])

    def caches(self, model: int, **settings: Any) -> tuple[list[str], str]:
        """Return the lines about caches for a context, and why there is none, else nothing.

        What the library does after its caches were made, such as end the process, is no matter.
        """
        if sys.platform == "win32":
            raise OSError("llama.cpp's library is loaded on Linux only")
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            self._pipe = writer
            os._exit(_REFUSED if self._library.context(model, **settings) is None else 0)
        os.close(writer)
        with open(reader, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
        _, status = os.waitpid(child, 0)
        lines = [match[0].strip() for match in _CACHE.finditer(text)]
        if os.waitstatus_to_exitcode(status) == _REFUSED:
            return [], next(reversed(_REASON.findall(text)), "")
        return lines, "ended by an assertion"


def _complete(tensors: dict[str, tuple[int, ...]], text: str, blocks: int) -> bool:
    """Change *tensors* as an error in *text* asks, and return whether there was one.

    What one of the *blocks* lacks, those after it lack too, and are of the same shape.
    """
    if absent := _ABSENT.search(text):
        for name in _alike(absent[1], blocks):
            tensors.setdefault(name, (1,))
        return True
    if wrong := _SHAPE.search(text):
        shape = [int(extent) for extent in wrong[2].split(",")]
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        tensors |= dict.fromkeys(
            (n for n in _alike(wrong[1], blocks) if n in tensors), tuple(shape)
        )
        return True
    unused = set(tensors) - set(_LOADED.findall(text))
    if "wrong number of tensors" in text and unused:
        for name in unused:
            del tensors[name]
        return True
    return False


def _alike(name: str, blocks: int) -> Sequence[str]:
    found = _BLOCK.fullmatch(name)
    if found is None:
        return [name]
    return [f"blk.{i}.{found[2]}" for i in range(int(found[1]), max(blocks, int(found[1]) + 1))]
