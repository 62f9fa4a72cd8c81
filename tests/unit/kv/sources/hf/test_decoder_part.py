"""The decoder is found among the parts of a config; encoders keep no cache, so they are refused."""

from __future__ import annotations

import pytest
from hf_configs import GEMMA3, LLAMA, kinds, model, shapes

from vmtool.errors import InputError

SIZES = {key: LLAMA[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")}


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "xlm-roberta"])
def test_a_bert_is_a_decoder_only_where_it_says_so(kind):
    for extra in ({}, {"is_decoder": False}):
        with pytest.raises(InputError, match=r"is_decoder: is not true, so .* is an encoder"):
            model({"model_type": kind, **SIZES, **extra})
    assert model({"model_type": kind, **SIZES, "is_decoder": True}).layers


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"image_size": 224}, "image_size: belongs to an image or audio model"),
        ({"patch_size": 16}, "patch_size"),
        ({"num_mel_bins": 80}, "num_mel_bins"),
        ({"architectures": ["NewForCTC"]}, "architectures: NewForCTC does not generate text"),
        ({"architectures": ["NewForMaskedLM"]}, "NewForMaskedLM"),
        ({"architectures": ["NewForImageClassification"]}, "NewForImageClassification"),
    ],
)
def test_a_new_type_of_another_task_is_refused(extra, message):
    config = {"model_type": "new", **SIZES}
    assert model({**config, "architectures": ["NewForCausalLM"]}).assumed
    with pytest.raises(InputError, match=message):
        model({**config, **extra})


#: Types, and parts of models, also of those that have no name yet.
WITHOUT_TEXT = (
    "decision_transformer distilbert t5gemma2_text wav2vec2 vit modernbert detr jina_embeddings_v3 table-transformer"
    " qwen3_vl_vision sam3_detr_decoder x_audio_encoder x_vision_model"
)


@pytest.mark.parametrize("kind", WITHOUT_TEXT.split())
def test_a_type_that_generates_no_text_is_refused(kind):
    with pytest.raises(InputError, match=f"{kind} does not generate text, so it keeps no cache"):
        model({"model_type": kind, **SIZES})


@pytest.mark.parametrize("kind", ["visionary", "encoderless_lm", "audio_lm"])
def test_a_new_name_with_such_a_word_in_it_is_not(kind):
    assert model({"model_type": kind, **SIZES}).assumed


def test_the_text_model_of_a_pair_of_encoders_is_refused():
    text = {"model_type": "clip_text_model", **SIZES}
    with pytest.raises(InputError, match="clip_text_model does not generate text"):
        model({"model_type": "clip", "text_config": text, "vision_config": dict(SIZES)})


def test_a_speech_model_that_writes_its_text_at_once_is_refused():
    text = {"model_type": "granite", **SIZES}
    with pytest.raises(InputError, match="granite_speech_nar_text does not generate text"):
        model({"model_type": "granite_speech_nar", "text_config": text})


def test_an_mlc_chat_config_is_opened_and_its_window_applied():
    inner = {k: v for k, v in LLAMA.items() if k not in ("model_type", "torch_dtype")}
    outer = {"model_type": "mistral", "model_config": inner, "quantization": "q4f16_1"}
    assert kinds(model({**outer, "sliding_window_size": 2048})) == "WWWW"
    assert kinds(model({**outer, "sliding_window_size": -1})) == "FFFF"


@pytest.mark.parametrize(("inner", "expected"), [(2048, "WWWW"), (-1, "FFFF")])
def test_an_mlc_window_may_also_be_inside(inner, expected):
    config = {k: v for k, v in LLAMA.items() if k not in ("model_type", "torch_dtype")}
    config["sliding_window_size"] = inner
    assert kinds(model({"model_type": "mistral", "model_config": config})) == expected


def test_an_mlc_config_without_a_window_has_mistrals_default():
    config = {k: v for k, v in LLAMA.items() if k not in ("model_type", "torch_dtype")}
    geometry = model({"model_type": "mistral", "model_config": config})
    assert geometry.layers[0].window == 4096


def test_a_wrapper_of_two_language_models_is_refused():
    other = {**LLAMA, "num_hidden_layers": 2}
    config = {"model_type": "new", "text_config": LLAMA, "llm_config": other}
    with pytest.raises(
        InputError, match="llm_config: is a second language model beside text_config"
    ):
        model(config)
    assert model({**config, "llm_config": LLAMA}).layers


def test_the_only_decoder_inside_is_taken_whatever_it_is_called():
    # VILA calls it llm_cfg.
    tower = {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27}
    config = {"model_type": "llava_llama", "llm_cfg": LLAMA, "vision_tower_cfg": tower}
    assert model(config).layers == model(LLAMA).layers
    with pytest.raises(InputError, match="other: is a second language model beside llm_cfg"):
        model({**config, "other": LLAMA})
    with pytest.raises(InputError, match="text_config: is missing: it is the decoder"):
        model({"model_type": "llava"})


def test_the_vision_tower_never_wins():
    vision = {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27}
    geometry = model(
        {
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "text_config": {**GEMMA3, "head_dim": None},
            "vision_config": {"head_dim": 72, **vision},
        }
    )
    assert len(geometry.layers) == 12
    assert shapes(geometry) == [(8, 128), (8, 128)]
    assert geometry.provenance["kv_heads"].detail == "text_config.num_key_value_heads"


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_decoder_is_found_under_each_name(key):
    assert len(model({"model_type": "internvl_chat", key: LLAMA}).layers) == 4


def test_a_thinker_holds_the_text_config():
    geometry = model(
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {**LLAMA, "model_type": "qwen2_5_omni_text"},
            },
        }
    )
    assert len(geometry.layers) == 4


def test_an_unknown_wrapper_is_its_decoder():
    wrapper = {"model_type": "new_vlm", "text_config": LLAMA, "vision_config": {"head_dim": 9}}
    assert model(wrapper).layers == model(LLAMA).layers
    assert not model(wrapper).assumed


@pytest.mark.parametrize(
    "extra",
    [{"sliding_window": 512}, {"cache": {"window_size": 512}}, {"is_encoder_decoder": True}],
)
def test_a_wrapper_that_says_something_of_its_own_about_a_cache_is_refused(extra):
    with pytest.raises(InputError, match=next(iter(extra))):
        model({"model_type": "new_vlm", "text_config": LLAMA, **extra})


def test_a_wrapper_that_contradicts_its_decoder_is_refused():
    with pytest.raises(InputError, match="num_key_value_heads: differs from the decoder"):
        model({"model_type": "llava", "num_key_value_heads": 4, "text_config": LLAMA})
