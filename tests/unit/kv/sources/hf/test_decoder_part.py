"""Encoders keep no cache, so they are refused with the reason."""

import pytest
from hf_configs import LLAMA, model

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
