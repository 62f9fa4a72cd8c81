"""Files that are not what they should be: a clear error, without hanging or filling memory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import tracemalloc

import pytest

from vmtool.errors import InputError, UsageError
from vmtool.kv.sources import model_lookup
from vmtool.kv.sources.hf.config_to_layers import resolve
from vmtool.kv.sources.model_files import MAX_CONFIG_BYTES, parse_object

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"not json", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b'{"a": 1, "a": 2}', "a: is given twice"),
        (b'{"a": {"b": 1, "b": 1}}', "b: is given twice"),
        (b"[1, 2]", "not an object"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number that cannot be read"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_strict_json_is_refused(data, message):
    with pytest.raises(InputError, match=f"model.json: .*{message}") as caught:
        parse_object("model.json", data)
    assert caught.value.path == "model.json"
    assert str(caught.value).count("model.json") == 1  # said once, not as the cause of another


def test_infinity_and_nan_are_read_and_refused_only_where_they_are_used():
    mamba = (
        b'{"model_type": "mamba2", "num_hidden_layers": 2, "hidden_size": 2048, "num_heads": 64,'
    )
    mamba += b'"head_dim": 64, "n_groups": 1, "state_size": 128, "conv_kernel": 4, "expand": 2,'
    mamba += b'"time_step_limit": [0.0, Infinity], "x": NaN, "torch_dtype": "bfloat16"}'
    geometry = resolve(parse_object("c", mamba), "c", "m")
    # 2 x (3 x (4096 + 2 x 128) + 64 x 64 x 128) elements of 16 bits
    assert sum(layer.elements_held(0) for layer in geometry.layers) * 2 == 2_149_376
    with pytest.raises(InputError, match="state_size: must be an integer, not the number inf"):
        resolve(parse_object("c", mamba.replace(b"128", b"Infinity")), "c", "m")


def test_a_byte_order_mark_is_dropped():
    assert parse_object("x", b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_a_file_over_the_limit_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    tracemalloc.start()
    with pytest.raises(InputError, match="larger than"):
        model_lookup.load(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_100_mb_config_is_refused(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.write(b'{"a": "')
        file.truncate(100 * 10**6)
    with pytest.raises(InputError, match="larger than 4 MiB"):
        model_lookup.load(str(path))


def test_a_model_file_over_the_limit_is_named_as_what_it_is(tmp_path):
    path = tmp_path / "model.pt"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(100 << 20)
    with pytest.raises(InputError, match="is a ZIP archive"):
        model_lookup.load(str(path))


def test_the_worst_config_under_the_limit_takes_bounded_memory(write_config):
    path = write_config('{"a": [' + "{}," * ((MAX_CONFIG_BYTES - 20) // 3) + "{}]}")
    tracemalloc.start()
    with pytest.raises(InputError, match="model_type: is missing"):
        model_lookup.load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 256 << 20


def test_an_error_shows_a_hostile_key_short_and_printable():
    config = {**LLAMA, "kv\x1b[31m" + "x" * 100_000: 1}
    with pytest.raises(InputError) as caught:
        resolve(config, "config.json", "m")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_folder_is_read_through_its_config(write_config, tmp_path):
    write_config(LLAMA)
    geometry = model_lookup.load(str(tmp_path))
    assert len(geometry.layers) == 2
    assert geometry.name == tmp_path.name


def test_a_folder_without_a_config_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="folder without any of config"):
        model_lookup.load(str(tmp_path))


def test_a_folder_whose_config_is_a_folder_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        model_lookup.load(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this platform")
def test_a_pipe_is_read_to_its_end(tmp_path):
    path = tmp_path / "config.json"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(json.dumps(LLAMA),))
    writer.start()
    try:
        assert len(model_lookup.load(str(path)).layers) == 2
    finally:
        writer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="no device files on this platform")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device):
    with pytest.raises(InputError, match="a device or a socket"):
        model_lookup.load(device)


def test_an_unreadable_file_is_refused_by_name(write_config, monkeypatch):
    path = write_config(LLAMA)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vmtool.kv.sources.model_files.os.open", refuse)  # root may read everything
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        model_lookup.load(path)


def test_a_dangling_link_is_refused(tmp_path):
    link = tmp_path / "config.json"
    with contextlib.suppress(OSError):  # on Windows links need a right of their own
        link.symlink_to(tmp_path / "nothing")
    if not link.is_symlink():
        pytest.skip("no symbolic link to what is missing can be made here")
    with pytest.raises(InputError, match="cannot be read"):
        model_lookup.load(str(link))


def test_a_path_with_a_nul_is_neither_file_nor_model():
    with pytest.raises(UsageError):
        model_lookup.load("a\0b")


def test_an_empty_file_is_refused(write_config):
    with pytest.raises(InputError, match="is empty"):
        model_lookup.load(write_config(""))
