"""Whatever the bytes, a source gives a geometry or an error of vmtool's own, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vmtool.errors import VmtoolError
from vmtool.kv.geometry import ModelGeometry
from vmtool.kv.sources import genai, model_lookup
from vmtool.kv.sources.builtin import config_of, names
from vmtool.kv.sources.gguf.architectures import ARCHITECTURES
from vmtool.kv.sources.gguf.file_format import read_metadata
from vmtool.kv.sources.gguf.model import build as build_gguf
from vmtool.kv.sources.hf.architecture_lookup import families
from vmtool.kv.sources.hf.config_to_layers import resolve
from vmtool.kv.sources.model_files import parse_object

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(),
    st.sampled_from([1 << 24, (1 << 24) + 1, 1 << 40, 1 << 63, -(1 << 63), 10**400]),
    st.floats(allow_nan=False),
    st.sampled_from(["", "8", "auto", "full_attention", "sliding_attention", "M*E-", "LLLG", "\0"]),
    st.lists(st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.text(max_size=3))),
    st.dictionaries(st.text(max_size=8), st.integers(-1, 9), max_size=3),
)
MODELS = {name: config_of(name) for name in names()}
KEYS = sorted({key for config in MODELS.values() for key in config})
NAMES = st.one_of(st.sampled_from(KEYS), st.text(max_size=12))
MANY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(result_of, *args):
    """Call *result_of*; pass if it returns a usable geometry or raises an error of ours."""
    try:
        geometry = result_of(*args)
    except VmtoolError as exc:
        assert str(exc)
        return
    assert isinstance(geometry, ModelGeometry)
    assert geometry.layers
    for layer in geometry.layers:
        assert all(t.heads > 0 and t.dim > 0 for t in layer.tensors)
        assert all(state.elements >= 0 for state in layer.states)
        assert layer.elements_held(1000) >= 0


def places(value, path=()):
    """Return the path of every value in *value*."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        found += places(item, (*path, key)) if isinstance(item, (dict, list)) else [(*path, key)]
    return found


def changed(config, data):
    """Return *config* with one to four of its values replaced, removed or added."""
    config = copy.deepcopy(config)
    for _ in range(data.draw(st.integers(1, 4))):
        options = places(config)
        target = config
        if not options or data.draw(st.booleans()):
            target[data.draw(NAMES)] = data.draw(ODD)
            continue
        *above, last = data.draw(st.sampled_from(options))
        for key in above:
            target = target[key]
        if data.draw(st.booleans()):
            target[last] = data.draw(ODD)
        else:
            del target[last]
    return config


@MANY
@given(st.sampled_from(sorted(MODELS)), st.data())
def test_any_change_of_a_config_is_a_geometry_or_an_error(name, data):
    check(resolve, changed(MODELS[name], data), "config.json", name)


@MANY
@given(st.sampled_from(sorted(families())), st.dictionaries(NAMES, ODD, max_size=12))
def test_any_config_of_any_architecture_is_a_geometry_or_an_error(architecture, config):
    check(resolve, {**config, "model_type": architecture}, "config.json", "m")


@MANY
@given(st.dictionaries(NAMES, ODD, max_size=8), st.sampled_from(["text_config", "model_config"]))
def test_any_nesting_is_a_geometry_or_an_error(config, key):
    check(resolve, {"model_type": "llava", key: {"model_type": "llama", **config}}, "c", "m")


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_an_error(data):
    try:
        assert isinstance(parse_object("config.json", data), dict)
    except VmtoolError as exc:
        assert "config.json" in str(exc)


@MANY
@given(st.data())
def test_any_damage_to_a_json_file_is_a_geometry_or_an_error(write_config, data):
    text = json.dumps(MODELS["qwen3-8b"])
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, len(text)))
    path = write_config(text[:at] + data.draw(st.text(max_size=6)) + text[end:])
    check(model_lookup.load, path)


GENAI = {
    "model": {
        "type": "llama",
        "context_length": 64,
        "decoder": {
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "head_size": 64,
            "sliding_window": {"window_size": 8, "layers": [0]},
            "inputs": {"past_key_names": "past_key_values.%d.key"},
        },
    }
}


@MANY
@given(st.data())
def test_any_change_of_a_genai_config_is_a_geometry_or_an_error(data):
    check(genai.build, changed(GENAI, data), "genai_config.json", {})


GGUF_KEYS = (
    "block_count embedding_length context_length nextn_predict_layers feed_forward_length"
    " attention.head_count attention.head_count_kv attention.key_length attention.value_length"
    " attention.key_length_mla attention.kv_lora_rank attention.sliding_window"
    " attention.sliding_window_pattern attention.shared_kv_layers ssm.conv_kernel ssm.inner_size"
    " ssm.state_size ssm.group_count ssm.time_step_rank shortconv.l_cache wkv.head_size new"
)
GGUF_KEYS = GGUF_KEYS.split()
GGUF_VALUES = st.one_of(
    st.integers(0, 8),
    st.sampled_from([64, 128, 4096, -1, (1 << 64) - 1, None]),
    st.floats(),
    st.booleans(),
    st.text(max_size=4),
    st.lists(st.one_of(st.integers(-1, 8), st.booleans(), st.floats()), max_size=8),
)


@MANY
@given(
    st.sampled_from(sorted(ARCHITECTURES)),
    st.integers(1, 8),
    st.dictionaries(st.sampled_from(GGUF_KEYS), GGUF_VALUES, max_size=10),
)
def test_any_gguf_metadata_is_a_geometry_or_an_error(architecture, layers, values):
    usual = {"block_count": layers, "embedding_length": 512, "attention.head_count": 8}
    metadata = {f"{architecture}.{key}": value for key, value in {**usual, **values}.items()}
    metadata["general.architecture"] = architecture
    check(build_gguf, metadata, "m.gguf", {})


@pytest.fixture
def gguf_bytes():
    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    numbers = {
        "block_count": 2,
        "embedding_length": 512,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
    }
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(numbers) + 2)
    data += string("general.architecture") + struct.pack("<I", 8) + string("llama")
    for key, value in numbers.items():
        data += string(f"llama.{key}") + struct.pack("<II", 4, value)
    words = struct.pack("<IQ", 8, 3) + string("a") + string("bb") + string("ccc")
    return data + string("tokenizer.ggml.tokens") + struct.pack("<I", 9) + words


@MANY
@given(st.data())
def test_any_damage_to_a_gguf_file_is_a_geometry_or_an_error(gguf_bytes, tmp_path, data):
    damaged = bytearray(gguf_bytes)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    check(model_lookup.load, str(path))


def test_the_undamaged_gguf_file_is_read(gguf_bytes, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes)
    assert len(model_lookup.load(str(path)).layers) == 2
    assert read_metadata(str(path))["tokenizer.ggml.tokens"] is None


@pytest.fixture
def onnx_bytes():
    onnx = pytest.importorskip("onnx", reason="the optional onnx package is not installed")
    values = [
        onnx.helper.make_tensor_value_info(
            f"past_key_values.0.{what}", onnx.TensorProto.FLOAT16, ["batch", 2, "past", 64]
        )
        for what in ("key", "value")
    ]
    graph = onnx.helper.make_graph([], "g", values, [])
    return onnx.helper.make_model(graph).SerializeToString()


@MANY
@given(st.data())
def test_any_damage_to_an_onnx_file_is_a_geometry_or_an_error(onnx_bytes, tmp_path, data):
    damaged = bytearray(onnx_bytes)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(1, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.onnx"
    path.write_bytes(damaged[: data.draw(st.integers(1, len(damaged)))])
    check(model_lookup.load, str(path))


HOWS = ("prefix", "suffix", "nested", "moe_config", "vision")


def moved(config, key, how):
    """Return *config* with *key* renamed, or moved into an object that nothing knows."""
    result = copy.deepcopy(config)
    value = result.pop(key)
    if how == "nested":
        return {**result, "cache_options": {key: value}}
    if how == "listed":
        return {**result, "parts": [{"deep": {"er": [{key: value}]}}]}
    if how == "part":
        return {**result, "backbone_config": {key: value}}
    if how in ("vision_config", "moe_config"):  # objects that usually are of something else
        return {**result, how: {key: value}}
    if how == "vision":
        return {**result, f"vision_{key}": value}
    if how == "camel":
        first, *rest = key.strip("_").split("_")
        return {**result, first + "".join(map(str.title, rest)): value}
    return {**result, (f"x_{key}" if how == "prefix" else f"{key}_v2"): value}


def test_a_field_of_any_types_default_config_is_never_missed_either():
    # One change in 40: all of them, with those of wrappers, take a minute.
    lines = Path(__file__).with_name("transformers.jsonl").read_text().splitlines()
    number = 0
    for row in map(json.loads, lines):
        config = row["config"]
        expected = resolve(config, "config.json", "m").layers
        for key, how in itertools.product(
            config, ("prefix", "suffix", "nested", "moe_config", "vision")
        ):
            number += 1
            if number % 40 or key.endswith("_config") or key == "model_type" or config[key] is None:
                continue
            with contextlib.suppress(VmtoolError):
                assert resolve(moved(config, key, how), "c", "m").layers == expected, (row, key)


@pytest.mark.parametrize(
    "how",
    [*HOWS, "listed", "part", "camel", "vision_config"],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_field_under_another_name_never_changes_the_answer_silently(name, how):
    config = MODELS[name]
    expected = resolve(config, "config.json", name).layers
    for key, value in config.items():
        if key == "model_type" or value is None or value is False:
            continue
        if how == "vision" and isinstance(value, dict):  # that would be the config of a part
            continue
        try:
            found = resolve(moved(config, key, how), "config.json", name).layers
        except VmtoolError:
            continue
        assert found == expected, key


SYNONYMS = {
    "num_key_value_heads": "num_query_groups gqa_groups n_groups numKeyValueHeads kvheads",
    "head_dim": "d_head dim_head size_per_head headdim headDim attention_dim key_dim",
    "num_hidden_layers": "depth num_layer num_blocks num_decoder_layers numHiddenLayers",
    "hidden_size": "dim width model_dim hiddenSize",
    "num_attention_heads": "nheads num_head attn_heads numAttentionHeads",
    "sliding_window": "attention_span local_size attn_span slidingWindow lookback span",
    "layer_types": "pattern layer_pattern mixer_types kinds layerTypes",
    "num_kv_shared_layers": "shared_layers num_shared_layers",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_field_under_a_name_of_other_programs_never_changes_the_answer_silently(name):
    config = MODELS[name]
    expected = resolve(config, "config.json", name).layers
    for key, others in SYNONYMS.items():
        if config.get(key) is None:
            continue
        for other in others.split():
            changed = {k: v for k, v in config.items() if k != key}
            with contextlib.suppress(VmtoolError):
                found = resolve({**changed, other: config[key]}, "c", name).layers
                assert found == expected, (key, other)


@pytest.mark.parametrize("name", MODELS)
def test_a_known_model_of_an_unknown_type_is_the_same_or_refused(name):
    config = MODELS[name]
    with contextlib.suppress(VmtoolError):
        found = resolve({**config, "model_type": "new_type"}, "c", name)
        expected = resolve(config, "c", name).layers
        assert [layer.tensors for layer in found.layers] == [layer.tensors for layer in expected]
        assert not any(layer.states for layer in expected)
