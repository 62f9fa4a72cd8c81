"""The metadata of a GGUF file: read as the gguf package writes it; hostile files are refused cheaply."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from vmtool.errors import InputError
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.gguf.file_format import MAX_METADATA_BYTES, read_metadata


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64",
                                  "int64"])  # fmt: skip
def test_every_integer_type_is_read(tmp_path, kind):
    gguf = pytest.importorskip("gguf", reason="the gguf package writes the file to read")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    getattr(writer, f"add_{kind}")("llama.block_count", 100)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_metadata(str(tmp_path / "m.gguf"))["llama.block_count"] == 100


def test_other_values_are_read_too(write_gguf):
    values = {"a": True, "b": 0.5, "c": "text", "d": [1, 2], "e": [0.25], "f": [True, False]}
    metadata = read_metadata(write_gguf("llama", values))
    assert {key: metadata[f"llama.{key}"] for key in values} == values


def header(entries=1, version=3, tensors=0):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


HUGE = struct.pack("<Q", (1 << 64) - 1)


ARRAY, STRING, UINT32 = 9, 8, 4


def nested(depth):
    value = struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", UINT32, 0)
    return entry("a", ARRAY, value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF", "truncated"),
        (header()[:-1], "truncated"),
        (header(), "truncated"),
        (header(version=1), "version 1"),
        (header(version=3 << 24), "big-endian"),
        (header(entries=1 << 60), "claims 1152921504606846976 entries"),
        (header() + HUGE, "key of 18446744073709551615 bytes"),
        (header() + string(""), "key of 0 bytes"),
        (header() + string(b"\xff\xfe"), "not UTF-8"),
        (header() + string("a\nb"), "unprintable key"),
        (header() + entry("a", 99, b""), "unknown value type 99"),
        (header() + entry("a", STRING, HUGE), "a: is truncated: 18446744073709551615 bytes"),
        (header() + entry("a", STRING, string(b"\xff")), "a: is a string that is not UTF-8"),
        (header() + entry("a", ARRAY, struct.pack("<I", UINT32) + HUGE), "a: is truncated"),
        (header() + entry("a", ARRAY, struct.pack("<I", STRING) + HUGE), "list entries"),
        (header() + entry("a", ARRAY, struct.pack("<I", ARRAY) + HUGE), "list entries"),
        (header() + entry("a", ARRAY, struct.pack("<IQ", 77, 1)), "list of the unknown value type"),
        (header() + nested(50), "a: is nested too deeply"),
        (header(2) + entry("a", UINT32, b"\0" * 4) * 2, "a: is given twice"),
        (header(0), "general.architecture: is missing"),
    ],
)
def test_a_hostile_file_is_refused_without_filling_memory(tmp_path, data, message):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(InputError, match=message) as caught:
        model_lookup.load(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.path == str(path)
    assert peak < 4 << 20


def test_a_nested_list_that_is_shallow_is_walked_over(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(header() + nested(4))
    assert read_metadata(str(path)) == {"a": None}
    path.write_bytes(header() + nested(5))
    with pytest.raises(InputError, match="nested too deeply"):
        read_metadata(str(path))


def test_metadata_past_the_limit_is_refused_though_the_file_has_the_bytes(tmp_path):
    path = tmp_path / "m.gguf"
    size = MAX_METADATA_BYTES + 1
    with path.open("wb") as file:
        file.write(header() + string("a") + struct.pack("<IQ", STRING, size))
        file.truncate(file.tell() + size)
    with pytest.raises(InputError, match="bytes of metadata"):
        read_metadata(str(path))


def test_a_long_string_or_list_is_skipped_and_what_follows_is_read(write_gguf):
    path = write_gguf("llama", {"a": [7] * 10_000, "b": "x" * 10_000, "c": 5})
    metadata = read_metadata(path)
    assert [metadata[f"llama.{key}"] for key in "abc"] == [None, None, 5]


def test_every_truncation_of_a_good_file_is_refused(write_gguf, tmp_path):
    values = {"block_count": 4, "embedding_length": 4096, "attention.head_count": 32}
    data = Path(write_gguf("llama", values)).read_bytes()
    end = len(data) - len(data) % 32  # the writer may pad the end
    path = tmp_path / "cut.gguf"
    for length in range(4, end - 32):
        path.write_bytes(data[:length])
        with pytest.raises(InputError):
            model_lookup.load(str(path))
