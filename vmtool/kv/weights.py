"""The size of a model's weights, read from its index or from the headers of its files."""

from __future__ import annotations

import functools
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from vmtool.errors import InputError, UnavailableError
from vmtool.kv.sources import hub
from vmtool.kv.sources.model_files import (
    MAX_JSON_BYTES,
    open_regular,
    parse_object,
    read_object,
)

_SPLIT: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


def bytes_beside(path: str) -> int | None:
    """Return the bytes of the weights that *path*, a model's file or folder, comes with, if any.

    That is a GGUF file itself, and the safetensors files beside a ``config.json``.
    """
    if path.endswith(".gguf"):
        return _gguf(path)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if Path(path).is_file() and Path(path).name != "config.json":
        return None
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return None
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return None
    return _folder(str(folder))


@functools.cache  # each row of a comparison asks
def bytes_on_hub(spec: str) -> int | None:
    """Return the bytes of the weights of *spec*, OWNER/NAME on the hub; ``None`` if it does not tell.

    They are what the index of its safetensors files says, or the size of a single file.
    """
    repository = hub.repository_of(spec)
    if repository is None:
        return None
    with suppress(InputError, UnavailableError):
        return _index(hub.fetched(repository, "model.safetensors.index.json"))
    return hub.size_of(repository, "model.safetensors")


def weights_bytes(path: str) -> int:
    """Return the bytes of the weights at *path*.

    Args:
        path: A folder, a ``*.safetensors.index.json``, a ``.safetensors`` or a ``.gguf`` file. Of a
            GGUF file that is split, all parts are counted. A GGUF file counts whole: its head is
            small beside its tensors.

    Raises:
        InputError: If it is none of these, or not as its format says.
    """
    if Path(path).is_dir():
        return _folder(path)
    if path.endswith(".json"):
        return _index(path)
    if path.endswith(".safetensors"):
        return _header(path)
    if path.endswith(".gguf"):
        return _gguf(path)
    raise InputError(
        path,
        "is not a file of weights",
        hint="give a size, a .safetensors.index.json, a .safetensors or a .gguf file, or a folder",
    )


def _folder(path: str) -> int:
    try:
        names = sorted(entry.name for entry in Path(path).iterdir())
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    for name in names:
        if name.endswith(".safetensors.index.json"):
            return _index(str(Path(path, name)))
    found = [name for name in names if name.endswith(".safetensors")]
    if found:
        return sum(_header(str(Path(path, name))) for name in found)
    raise InputError(path, "has no .safetensors file and no index of them")


def _index(path: str) -> int:
    metadata = read_object(path).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some writers leave a float of a whole number here.
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or not 0 < total < 1 << 63:
        raise InputError(path, "is missing, or is not a size", field="metadata.total_size")
    return total


def _header(path: str) -> int:
    """Return the bytes of the tensors of a safetensors file, from its header."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(MAX_JSON_BYTES, size - 8):
            raise InputError(path, f"its header of {length} bytes does not fit", field="byte 0")
        header = parse_object(path, file.read(length))
    end = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(offset) is int for offset in offsets)
            or not 0 <= offsets[0] <= offsets[1] <= size - 8 - length
        ):
            raise InputError(path, "is not inside the file", field=f"{name[:80]}.data_offsets")
        end = max(end, offsets[1])
    return end


def _gguf(path: str) -> int:
    split = _SPLIT.search(path)
    if split is None:
        return _gguf_file(path)
    parts = int(split[1])
    stem = path[: split.start()]
    return sum(_gguf_file(f"{stem}-{i:05}-of-{parts:05}.gguf") for i in range(1, parts + 1))


def _gguf_file(path: str) -> int:
    with open_regular(path) as file:
        if file.read(4) != b"GGUF":
            raise InputError(path, "does not begin with GGUF", field="byte 0")
        return os.fstat(file.fileno()).st_size
