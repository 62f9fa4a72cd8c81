"""Models that read a whole text, image or sound at once, and so keep no cache."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

#: Encoders that are decoders too where ``is_decoder`` says so, and by default are not.
_DECODERS_IF_SET: Final = frozenset(
    [
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ]
)
#: Types of transformers that only encode.
_ENCODERS: Final = frozenset(
    [
        "albert",
        "align_text_model",
        "altclip_text_model",
        "bros",
        "canine",
        "chinese_clip_text_model",
        "clap_text_model",
        "clap",
        "clip",
        "clip_text_model",
        "clipseg_text_model",
        "convbert",
        "data2vec-audio",
        "data2vec-vision",
        "deberta",
        "deberta-v2",
        "deit",
        "dinov2",
        "dinov3_vit",
        "distilbert",
        "dpr",
        "ernie_m",
        "esm",
        "eurobert",
        "flava_text_model",
        "fnet",
        "funnel",
        "groupvit_text_model",
        "hubert",
        "ibert",
        "layoutlm",
        "layoutlmv2",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mobilebert",
        "modernbert",
        "mpnet",
        "mra",
        "nomic_bert",
        "nystromformer",
        "owlv2_text_model",
        "owlvit_text_model",
        "segformer",
        "siglip",
        "siglip2",
        "siglip2_text_model",
        "siglip_text_model",
        "splinter",
        "squeezebert",
        "swin",
        "unispeech",
        "unispeech-sat",
        "vit",
        "wav2vec2",
        "wav2vec2-bert",
        "wav2vec2-conformer",
        "wavlm",
        "x_clip_text_model",
        "yoso",
    ]
)
#: What a model of pictures or sound is described by, and no decoder of text.
_SENSES: Final = frozenset(
    [
        "conv_dim",
        "feat_extract_norm",
        "hop_length",
        "image_size",
        "n_mels",
        "num_channels",
        "num_conv_pos_embeddings",
        "num_feature_levels",
        "num_mel_bins",
        "patch_size",
        "sample_rate",
        "sampling_rate",
        "tubelet_size",
    ]
)
#: Classes that do something else than continue a text.
_TASKS: Final = re.compile(
    r"For(?:CTC|MaskedLM|\w*Classification|\w*Detection|\w*Segmentation|\w*QuestionAnswering"
    r"|MultipleChoice|NextSentencePrediction|DepthEstimation|XVector|MaskedImageModeling|Retrieval"
    r"|PreTraining)$|TextEncoder$|EmbeddingModel$"
)


def refuse_encoder(fields: Fields, *, is_known: bool) -> None:
    """Fail if the config is one of a model that keeps no cache.

    Args:
        fields: The config of what would be the decoder.
        is_known: Whether its type is one that vmtool knows; else the fields must say that it is a
            decoder of text.

    Raises:
        InputError: If it is an encoder, or looks like one.
    """
    kind = fields.architecture
    if kind in _DECODERS_IF_SET:
        inside = fields.outer is not None and fields.outer.peek("is_encoder_decoder")
        if fields.peek("is_decoder") is not True and not inside:
            fields.fail("is_decoder", f"is not true, so {kind} is an encoder, which keeps no cache")
    if is_known or fields.peek("is_decoder") is True:
        return
    if kind in _ENCODERS:
        fields.fail("model_type", f"{kind} is an encoder, which keeps no cache")
    listed = fields.peek("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if names and all(_TASKS.search(name) for name in names):
        fields.fail(
            "architectures", f"{names[0][:60]} does not generate text, so it keeps no cache"
        )
    found = next((key for key in fields.all_keys() if key in _SENSES and fields.peek(key)), None)
    if found is not None:
        fields.fail(found, "belongs to an image or audio model, whose cache is not understood")
