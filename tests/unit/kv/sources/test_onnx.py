"""ONNX models and ``genai_config.json``: what is read of them, and what only the model says."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from vmtool.errors import InputError, UsageError
from vmtool.kv.element_formats import choose_formats
from vmtool.kv.geometry import LayerKind, Span, TensorRole
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources import model_lookup

# ---- ONNX Runtime GenAI ---------------------------------------------------------------------------


def genai(**decoder):
    base = {
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "num_attention_heads": 32,
        "head_size": 128,
        "inputs": {"past_key_names": "past_key_values.%d.key"},
    }
    return {"model": {"type": "llama", "context_length": 4096, "decoder": {**base, **decoder}}}


def bytes_at(geometry, tokens):
    """Return the bytes of a sequence of *tokens* in the format that the model has."""
    formats = choose_formats(geometry.dtype, key=None, value=None, cache_dtype=geometry.cache_dtype)
    return SequenceCost.of(geometry, formats).bytes_for(tokens)


def test_a_genai_config_gives_layers_heads_and_context(write_config):
    geometry = model_lookup.load(write_config(genai(), "genai_config.json"))
    assert (len(geometry.layers), geometry.context_tokens) == (4, 4096)
    assert [(t.heads, t.dim) for t in geometry.layers[0].tensors] == [(8, 128), (8, 128)]
    assert geometry.provenance["kv_heads"].detail == "model.decoder.num_key_value_heads"


@pytest.mark.parametrize(
    ("provider", "more", "chunk", "held"),
    [
        ("cuda", {}, None, 512),
        ("cuda", {"cache_slack": 64}, None, 576),
        ("cuda", {"cache_slack": 64}, 256, 767),  # a chunk needs 255 places beside the window
        (None, {}, None, 528),  # on CPU 16 more
        ("NvTensorRtRtx", {"cache_slack": 64}, 256, 512),
        ("webgpu", {}, None, None),
    ],
)
def test_a_genai_window_is_kept_with_the_places_of_its_provider(
    write_config, provider, more, chunk, held
):
    window = {"window_size": 512, "slide_key_value_cache": False, "layers": [0, 2], **more}
    options = {"provider_options": [] if provider is None else [{provider: {}}]}
    config = genai(sliding_window=window, session_options=options)
    if chunk:
        config["search"] = {"chunk_size": chunk}
    geometry = model_lookup.load(write_config(config))
    assert [layer.window for layer in geometry.layers] == [held, None, held, None]


def test_a_genai_window_without_a_list_is_of_every_layer_but_not_with_beams(write_config):
    config = genai(sliding_window={"window_size": 512, "slide_key_value_cache": False})
    assert [x.window for x in model_lookup.load(write_config(config)).layers] == [528] * 4
    config["search"] = {"num_beams": 4}
    assert [x.window for x in model_lookup.load(write_config(config)).layers] == [None] * 4


def test_a_genai_cache_that_slides_itself_has_all_tokens_in_one_byte_an_element(write_config):
    # WindowedKeyValueCache: context - window positions of the past, and a window of what is computed.
    geometry = model_lookup.load(write_config(genai(sliding_window={"window_size": 512})))
    assert [layer.window for layer in geometry.layers] == [None] * 4
    assert bytes_at(geometry, 4096) == 4 * 2 * 8 * 128 * 4096


@pytest.mark.parametrize(("bits", "row"), [("0", 256), ("8", 132), ("4", 68)])
def test_a_genai_cache_may_be_quantised(write_config, bits, row):
    # One 32-bit scale and 8 or 4 bits for each of 128 elements of a head.
    options = {"provider_options": [{"webgpu": {"kvCacheQuantizationBits": bits}}]}
    geometry = model_lookup.load(write_config(genai(session_options=options)))
    assert bytes_at(geometry, 1) == 4 * 2 * 8 * row


def test_a_genai_cache_of_other_bits_is_refused(write_config):
    options = {"provider_options": [{"webgpu": {"kvCacheQuantizationBits": "3"}}]}
    with pytest.raises(InputError, match="kvCacheQuantizationBits is neither"):
        model_lookup.load(write_config(genai(session_options=options)))


def test_genai_whisper_also_keeps_the_encoders_frames(write_config):
    config = genai(inputs={"cross_past_key_names": "past_key_cross_%d"})
    with pytest.raises(InputError, match="cross_past_key_names: is set"):
        model_lookup.load(write_config(config))
    config["model"]["type"] = "whisper"
    tensors = model_lookup.load(write_config(config)).layers[0].tensors
    assert [t.tokens_held(7) for t in tensors] == [7, 7, 1500, 1500]


def test_a_genai_state_without_its_size_is_refused(write_config):
    config = genai(inputs={"past_conv_names": "past.%d.conv_state"})
    with pytest.raises(InputError, match=r"model\.decoder\.inputs\.past_conv_names") as caught:
        model_lookup.load(write_config(config))
    assert ".onnx" in caught.value.hint


LFM2 = {
    "hidden_size": 1024,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "conv_cache_size": 3,
    "inputs": {"past_conv_names": "past_conv.%d"},
}


def test_a_genai_lfm2_says_its_convolutions_itself(write_config):
    config = genai(**LFM2)
    config["model"]["type"] = "lfm2"
    geometry = model_lookup.load(write_config(config))
    assert [layer.kind for layer in geometry.layers].count(LayerKind.SHORT_CONV) == 3
    # 3 x 1024 channels x 3 columns, and K and V of 8 heads of 128 in one layer, of 16 bits.
    assert bytes_at(geometry, 10) == 3 * 1024 * 3 * 2 + 10 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": None}, "layer_types: is missing: which layers keep states is only"),
        ({"layer_types": ["conv"] * 3}, "has 3 entries, but there are 4 layers"),
        ({"layer_types": ["conv"] * 3 + ["mamba"]}, r"layer_types\[3\]: is neither"),
        ({"conv_cache_size": None}, "conv_cache_size: is null"),
    ],
)
def test_a_genai_lfm2_that_does_not_say_is_refused(write_config, change, message):
    config = genai(**{**LFM2, **change})
    config["model"]["type"] = "lfm2"
    with pytest.raises(InputError, match=message):
        model_lookup.load(write_config(config))


@pytest.mark.parametrize("kind", ["gemma4", "gemma4_text", "qwen3_5", "qwen3_5_moe_text"])
def test_a_genai_type_with_uneven_layers_needs_its_model_beside_it(write_config, kind):
    config = genai()
    config["model"]["type"] = kind
    with pytest.raises(InputError, match=f"is {kind}: .* only in the decoder's ONNX") as caught:
        model_lookup.load(write_config(config))
    assert "config.json" in caught.value.hint


@pytest.mark.parametrize("kind", ["lfm2_moe", "newarch", None])
def test_a_genai_type_that_is_not_understood_is_refused(write_config, kind):
    config = genai()
    config["model"]["type"] = kind
    with pytest.raises(InputError, match=r"model\.type"):
        model_lookup.load(write_config(config))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"head_size": None}, "model.decoder.head_size"),
        ({"num_hidden_layers": 0}, "model.decoder.num_hidden_layers"),
        ({"num_key_value_heads": "8"}, "model.decoder.num_key_value_heads"),
        ({"inputs": []}, "model.decoder.inputs"),
        ({"sliding_window": {"window_size": -1}}, "model.decoder.sliding_window.window_size"),
        ({"sliding_window": {"window_size": 8, "layers": [4]}}, "model.decoder.sliding_window.lay"),
    ],
)
def test_a_wrong_genai_field_is_refused_by_name(write_config, change, field):
    with pytest.raises(InputError) as caught:
        model_lookup.load(write_config(genai(**change)))
    assert caught.value.field.startswith(field)


# ---- ONNX -----------------------------------------------------------------------------------------


@pytest.fixture
def write_onnx(tmp_path):
    onnx = pytest.importorskip("onnx", reason="the optional onnx package is not installed")

    def write(inputs, elem_type=onnx.TensorProto.FLOAT16):
        values = [
            onnx.helper.make_tensor_value_info(name, elem_type, shape) for name, shape in inputs
        ]
        path = tmp_path / "model.onnx"
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", values, [])), path)
        return str(path)

    return write


def pasts(count, name="past_key_values.{}.{}", shape=("batch", 8, "past", 128)):
    return [(name.format(i, what), list(shape)) for i in range(count) for what in ("key", "value")]


def test_an_onnx_decoder_shows_its_cache_in_its_inputs(write_onnx):
    ids = ("input_ids", ["batch", "tokens"])
    geometry = model_lookup.load(write_onnx([ids, *pasts(12)]))
    assert (len(geometry.layers), geometry.dtype) == (12, "fp16")
    assert [(t.role, t.heads, t.dim) for t in geometry.layers[11].tensors] == [
        (TensorRole.KEY, 8, 128),
        (TensorRole.VALUE, 8, 128),
    ]
    assert geometry.layers[0].tensors[0].extent.span is Span.ALL
    assert geometry.provenance["layer 0 key"].detail == "past_key_values.0.key"


@pytest.mark.parametrize(("elem_type", "dtype"), [(1, "fp32"), (10, "fp16"), (16, "bf16")])
def test_the_element_type_of_an_onnx_cache_is_the_models(write_onnx, elem_type, dtype):
    assert model_lookup.load(write_onnx(pasts(1), elem_type)).dtype == dtype


@pytest.mark.parametrize(("elem_type", "size"), [(1, 4), (2, 1), (3, 1), (10, 2), (16, 2), (17, 1)])
def test_an_onnx_cache_takes_the_bytes_of_its_own_element_type(write_onnx, elem_type, size):
    assert (
        bytes_at(model_lookup.load(write_onnx(pasts(3), elem_type)), 7)
        == 3 * 2 * 8 * 128 * 7 * size
    )


def test_an_onnx_model_shows_states_and_layers_without_any(write_onnx):
    states = [
        ("past_key_values.0.conv_state", ["batch", 96, 3]),
        ("past_key_values.0.recurrent_state", ["batch", 4, 16, 32]),
        ("past_conv.2", ["batch", 64, 4]),
    ]
    kv = [(f"past_key_values.4.{what}", ["batch", 2, "past", 64]) for what in ("key", "value")]
    geometry = model_lookup.load(write_onnx([*states, *kv]))
    assert [layer.kind for layer in geometry.layers] == [
        LayerKind.LINEAR,
        LayerKind.NONE,
        LayerKind.SHORT_CONV,
        LayerKind.NONE,
        LayerKind.FULL,
    ]
    assert bytes_at(geometry, 5) == 2 * (96 * 3 + 4 * 16 * 32 + 64 * 4 + 5 * 2 * 2 * 64)


def test_an_onnx_model_may_keep_the_states_after_several_tokens(write_onnx):
    states = [
        ("past_key_values.0.conv_state", [4, "batch", 96, 3]),
        ("past_key_values.0.recurrent_state", [4, "batch", 4, 16, 32]),
    ]
    geometry = model_lookup.load(write_onnx([*states, *pasts(2)[2:]]))
    assert bytes_at(geometry, 0) == 4 * 2 * (96 * 3 + 4 * 16 * 32)


def gemma4(write_config, **decoder):
    """Write the config of a Gemma 4: four sliding layers of 8 x 256 and a full one of 2 x 512."""
    window = {"window_size": 1024, "slide_key_value_cache": False, "layers": [0, 1, 2, 3]}
    options = {"provider_options": [{"cuda": {}}]}
    config = genai(
        filename="model.onnx",
        num_hidden_layers=5,
        head_size=256,
        sliding_window=window,
        session_options=options,
        **decoder,
    )
    config["model"]["type"] = "gemma4"
    return write_config(config, "genai_config.json")


def test_the_layers_of_a_genai_config_come_from_the_model_beside_it(write_config, write_onnx):
    full = pasts(5, shape=("batch", 2, "past", 512))[8:]
    write_onnx([*pasts(4, shape=("batch", 8, "window", 256)), *full])
    path = gemma4(write_config)
    geometry = model_lookup.load(path)
    assert [layer.window for layer in geometry.layers] == [1024] * 4 + [None]
    assert (geometry.context_tokens, geometry.dtype) == (4096, "fp16")
    assert bytes_at(geometry, 4096) == 2 * 2 * (4 * 1024 * 8 * 256 + 4096 * 2 * 512)
    with pytest.raises(UsageError, match="--layers does not apply: the ONNX model has the value"):
        model_lookup.load(path, overrides={"layers": 2})


def test_a_genai_config_says_which_file_beside_it_is_damaged(write_config, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"model\.onnx: is not an ONNX model"):
        model_lookup.load(gemma4(write_config))


def test_an_onnx_cache_of_another_element_type_is_refused(write_onnx):
    with pytest.raises(InputError, match=r"past_key_values\.0\.key: has the element type 7"):
        model_lookup.load(write_onnx(pasts(1), 7))


@pytest.mark.parametrize("name", ["past_key_values.{}.decoder.{}", "past_{1}_self_{0}"])
def test_other_spellings_of_past_inputs_are_recognised(write_onnx, name):
    assert len(model_lookup.load(write_onnx(pasts(2, name))).layers) == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "no past_key_values inputs"),
        (pasts(2)[:-1], "only one of past key and value for layer 1"),
        ([*pasts(1), ("past_key_values.0.ssm_state", ["b", 6, 3])], "ssm_state: is a cache"),
        ([*pasts(1), ("past_conv.0", ["b", 6])], "has 2 dimensions; 3 are understood"),
        ([*pasts(1), ("past_conv.0", ["b", "channels", 3])], "does not state its heads"),
        ([("past_conv.0", ["b", 6, 3])], "no past_key_values inputs"),
        (pasts(1, shape=("batch", "heads", "past", 128)), "does not state its heads"),
        (pasts(1, shape=("batch", 8, 128)), "has 3 dimensions"),
        ([("past_key_values.4096.key", [1, 8, 4, 128])], "number is too large"),
        ([("past_key_values.4095.key", [1, 8, 4, 128])], "only one of past key and value"),
        (pasts(1, shape=("batch", 8, "past", 1 << 25)), "does not state its heads"),
    ],
)
def test_an_onnx_model_that_does_not_say_is_refused(write_onnx, inputs, message):
    with pytest.raises(InputError, match=message):
        model_lookup.load(write_onnx(inputs))


def test_overrides_do_not_apply_to_onnx(write_onnx):
    with pytest.raises(UsageError, match="--layers does not apply to an ONNX model"):
        model_lookup.load(write_onnx(pasts(1)), overrides={"layers": 2})


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\xff" * 100, "a number of over 64 bits"),
        (b"\x0b", "wire type 3"),
        (b"\x3a\xff\xff\xff\xff\x0f", "is truncated: 4294967295 bytes"),
        (b"\x3a", "is truncated"),
        (b"\x3d\x00", "is truncated"),
        (b"\x3a\x03\x5a\x01\xff", "is truncated"),
        (b"\x3a\x03\x5a\x09\xff", "is truncated: 9 bytes"),
        (b"\x3a\x01\x08\x01", "after the message that it belongs to"),
        (b"\x3a\x85\x80\x01\x5a\x81\x80\x01" + b"\0" * 16385, "one input in 16385 bytes"),
    ],
)
def test_damaged_onnx_is_refused(tmp_path, tail, message):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07" + tail)
    with pytest.raises(InputError, match=message):
        model_lookup.load(str(path))


def test_an_onnx_input_whose_name_is_not_utf8_is_refused(write_onnx):
    path = Path(write_onnx(pasts(1)))
    path.write_bytes(path.read_bytes().replace(b"values.0.key", b"values.0.\x80ey"))
    with pytest.raises(InputError, match="a name that is not UTF-8"):
        model_lookup.load(str(path))


def test_weights_inside_an_onnx_file_cost_no_memory(write_onnx):
    path = Path(write_onnx(pasts(2)))
    weights = 300 << 20  # field 9 of a graph in a second, merged graph field
    with path.open("ab") as file:
        file.write(b"\x3a" + varint(weights + 6) + b"\x4a" + varint(weights))
        file.truncate(file.tell() + weights)
    tracemalloc.start()
    assert len(model_lookup.load(str(path)).layers) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def varint(value):
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
