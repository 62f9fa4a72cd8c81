"""The bytes of weights: indexes, headers, split files, and what is not one."""

import json

import pytest

from vmtool.errors import InputError
from vmtool.kv.weights import weights_bytes


def safetensors(path, tensors, *, data=None, header=None):
    """Write a safetensors file whose *tensors* are name to (begin, end)."""
    head = (
        header
        or json.dumps(
            {
                "__metadata__": {"format": "pt"},
                **{
                    n: {"dtype": "BF16", "shape": [], "data_offsets": list(o)}
                    for n, o in tensors.items()
                },
            }
        ).encode()
    )
    size = max((end for _, end in tensors.values()), default=0) if data is None else data
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    return str(path)


def test_an_index_states_the_size(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"metadata": {"total_size": 16060522496}, "weight_map": {}}')
    assert weights_bytes(str(path)) == weights_bytes(str(tmp_path)) == 16_060_522_496


def test_a_size_written_as_a_whole_float_counts(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"metadata": {"total_size": 16060522496.0}}')
    assert weights_bytes(str(path)) == 16_060_522_496


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata": {}}',
        "{}",
        '{"metadata": {"total_size": -1}}',
        '{"metadata": {"total_size": 0}}',
        '{"metadata": 5}',
        '{"metadata": {"total_size": "big"}}',
        '{"metadata": {"total_size": true}}',
        '{"metadata": {"total_size": 1e400}}',
    ],
)
def test_an_index_without_a_size_names_the_field(tmp_path, text):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"metadata\.total_size"):
        weights_bytes(str(path))


def test_a_header_states_where_the_tensors_end(tmp_path):
    path = safetensors(tmp_path / "a.safetensors", {"x": (0, 100), "y": (100, 164)})
    assert weights_bytes(path) == 164
    safetensors(tmp_path / "b.safetensors", {"z": (0, 36)})
    assert weights_bytes(str(tmp_path)) == 200


@pytest.mark.parametrize(
    ("tensors", "data", "field"),
    [
        ({"x": (0, 51)}, 50, "x.data_offsets"),
        ({"x": (-1, 10)}, 50, "x.data_offsets"),
        ({"x": (20, 10)}, 50, "x.data_offsets"),
    ],
)
def test_offsets_outside_the_file_name_the_tensor(tmp_path, tensors, data, field):
    with pytest.raises(InputError, match=field):
        weights_bytes(safetensors(tmp_path / "a.safetensors", tensors, data=data))


def test_tensors_may_end_where_the_file_ends_and_there_may_be_none(tmp_path):
    assert weights_bytes(safetensors(tmp_path / "a.safetensors", {"x": (0, 50)}, data=50)) == 50
    assert weights_bytes(safetensors(tmp_path / "b.safetensors", {})) == 0


@pytest.mark.parametrize(
    "content", [b"", b"1234567", (1 << 62).to_bytes(8, "little") + b"{}", b"\xff" * 100]
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="header of"):
        weights_bytes(str(path))


def test_a_header_larger_than_any_real_one_is_not_parsed(tmp_path):
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write((17 << 20).to_bytes(8, "little"))
        file.truncate(18 << 20)  # a sparse file, so the header would fit
    with pytest.raises(InputError, match="header of 17825792 bytes"):
        weights_bytes(str(path))


def test_a_header_that_is_not_json_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not JSON"):
        weights_bytes(safetensors(tmp_path / "a.safetensors", {}, header=b"{not json"))


def test_gguf_counts_whole_and_in_all_its_parts(tmp_path):
    for i, size in ((1, 96), (2, 196)):
        (tmp_path / f"m-{i:05}-of-00002.gguf").write_bytes(b"GGUF" + bytes(size))
    single = tmp_path / "m.gguf"
    single.write_bytes(b"GGUF" + bytes(60))
    assert weights_bytes(str(single)) == 64
    assert weights_bytes(str(tmp_path / "m-00002-of-00002.gguf")) == 300


def test_a_missing_part_is_named(tmp_path):
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"m-00002-of-00002\.gguf: cannot be read"):
        weights_bytes(str(tmp_path / "m-00001-of-00002.gguf"))


@pytest.mark.parametrize("name", ["a.gguf", "a.bin", "missing.safetensors"])
def test_what_is_not_weights_is_refused(tmp_path, name):
    path = tmp_path / name
    if not name.startswith("missing"):
        path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=name):
        weights_bytes(str(path))


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no \.safetensors file"):
        weights_bytes(str(tmp_path))
