"""Reading the files of a model, which may be hostile: regular files, bounded sizes, strict JSON."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from vmtool import input_files
from vmtool.errors import InputError, printable
from vmtool.kv.sources.fields import shown

#: Parsed, the worst text takes some thirty times its length. The index of the largest checkpoints
#: has about 9 MiB.
MAX_JSON_BYTES = 16 << 20
#: Real configs are a few KiB; the largest, with a map of labels inside, have about 1 MiB.
MAX_CONFIG_BYTES = 4 << 20
#: What a folder may hold, the most telling first.
_IN_FOLDER = ("config.json", "genai_config.json", "mlc-chat-config.json")


def config_in(path: str) -> str:
    """Return *path*, or the config file in it if it is a folder.

    Raises:
        InputError: If it is a folder without one.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            return path
    except OSError:  # a link into a place this user may not see; opening it will say so
        return path
    for name in _IN_FOLDER:
        if os.path.lexists(folder / name):
            return str(folder / name)
    raise InputError(path, f"is a folder without any of {', '.join(_IN_FOLDER)}")


def quantization_beside(path: str) -> tuple[str, dict[str, Any]] | None:
    """Return ``hf_quant_config.json`` in the folder of the ``config.json`` *path* and what it holds.

    ModelOpt before 0.31 says there, and nowhere else, how a checkpoint is quantised (vLLM's
    ``get_config`` in ``transformers_utils/config.py``).
    """
    file = Path(path).with_name("hf_quant_config.json")
    if Path(path).name != "config.json" or not os.path.lexists(file):
        return None
    return str(file), read_object(str(file), MAX_CONFIG_BYTES)


def name_of(path: str) -> str:
    """Return what to call the model in *path*: its folder's name where the file's says nothing."""
    if path == "-":
        return "standard input"
    full = Path(path).absolute()
    if full.parent.name == "fd":  # a shell's <(command), such as /dev/fd/63
        return printable(path)
    return printable((full.parent.name if full.name in _IN_FOLDER else "") or full.name)


def open_regular(path: str) -> BinaryIO:
    """Return *path* opened for reading, without waiting on a FIFO or touching a device.

    Raises:
        InputError: If it cannot be read or is not a regular file.
    """
    try:
        # O_NONBLOCK so that opening a FIFO returns; it changes nothing for a regular file.
        descriptor = os.open(
            path,
            os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0),
        )
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise InputError(path, f"cannot be read: {reason}") from exc
    file = os.fdopen(descriptor, "rb", closefd=True) if _is_regular(descriptor) else None
    if file is None:
        os.close(descriptor)
        raise InputError(path, "is not a regular file")
    return file


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def head_of(path: str, length: int) -> bytes:
    """Return the first *length* bytes of *path*, decompressed, or as many as it has.

    Raises:
        InputError: If it cannot be read.
    """
    with input_files.open_bytes(path) as file:
        try:
            return file.read(length)
        except OSError as exc:
            raise InputError(path, f"cannot be read: {exc.strerror or exc}") from exc


def parse_object(path: str, data: bytes) -> dict[str, Any]:
    """Return *data* as one JSON object, refusing what a JSON parser would let through.

    Raises:
        InputError: If it is not UTF-8 JSON, repeats a key, is nested too deeply, or is not an object.
    """
    import json  # noqa: PLC0415  # a built-in model needs no JSON

    def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise InputError(path, "is given twice", field=shown(key))
            result[key] = value
        return result

    if not data.strip():
        raise InputError(path, "is empty")
    try:
        # utf-8-sig: a byte order mark is allowed and dropped, as Windows editors write one.
        # Infinity and NaN, which Python writes though JSON has none, stay: a value that is used is
        # checked when it is.
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=no_repeats)
    except InputError:  # of the two above; it is a ValueError too
        raise
    except UnicodeDecodeError as exc:
        if data[:1] in b"{[ \t\r\n":
            raise InputError(path, f"is not UTF-8 at byte {exc.start}") from exc
        kind = input_files.kind_of(data) or "not a file that describes a model's cache"
        hint = "give a config.json, a GGUF file, a genai_config.json or an ONNX model"
        raise InputError(path, f"is {kind}", hint=hint) from exc
    except RecursionError as exc:
        raise InputError(path, "is nested too deeply") from exc
    except json.JSONDecodeError as exc:
        raise InputError(
            path, f"is not JSON: {exc.msg}", field=f"line {exc.lineno}, column {exc.colno}"
        ) from exc
    except ValueError as exc:  # an integer of more digits than Python converts
        raise InputError(
            path, "holds a number that cannot be read: it has too many digits"
        ) from exc
    if not isinstance(value, dict):
        raise InputError(path, "is JSON, but not an object of named fields")
    return value


def read_object(path: str, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in *path*; see `parse_object` for what is refused."""
    return parse_object(path, input_files.read_bytes(path, limit, text=True))
