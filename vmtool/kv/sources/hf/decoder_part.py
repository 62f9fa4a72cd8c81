"""The part of a config that is the decoder, and the refusal of encoders, which keep no cache."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from vmtool.kv.sources.hf.architecture_lookup import (
    ARCHITECTURES,
    STANDARD,
    family_of,
)
from vmtool.kv.sources.hf.family import NAMES
from vmtool.kv.sources.hf.unread_fields import is_named_part, refuse_of_wrapper

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


#: Models of an encoder and a decoder that have a config each, and where the decoder's is.
DECODER_KEYS = {
    **dict.fromkeys(
        (
            "encoder-decoder",
            "speech-encoder-decoder",
            "vision-encoder-decoder",
            "t5gemma",
            "t5gemma2",
        ),
        "decoder",
    ),
    **dict.fromkeys(("canary", "dia"), "decoder_config"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "decoder"),
}
#: Keys under which a model of several parts keeps its decoder, the outermost first.
INNER_KEYS: Final = (
    "thinker_config",
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "lm_config",
    "vlm_config",
)
#: Decoders that are another one than their config says, by the model around them.
_INNER_TYPES: Final = {
    "granite_speech_nar": "granite_speech_nar_text",
    "kimi_k3": "kimi_k3",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
}
#: Decoders of models whose config may leave their type out, as transformers' config classes do.
_DEFAULT_INNER_TYPES: Final = {
    **dict.fromkeys(
        ("aria", "janus", "llava", "llava_next", "llava_next_video", "video_llava", "vipllava"),
        "llama",
    ),
    "aya_vision": "cohere2",
    "deepseek_v41": "deepseek_v41_text",
    "deepseek_vl_v2": "deepseek_v2",
    "gemma3": "gemma3_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen2_audio": "qwen2",
}
#: Wrappers that repeat a deciding field of their decoder for a purpose of their own.
_WRAPPER_HARMLESS: Final = {
    "bagel": frozenset({"latent_patch_size", "max_latent_size"}),
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), frozenset({"window_size"})),
    "musicflamingo": frozenset({"head_dim"}),
    "pi0": frozenset({"chunk_size"}),
}
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
#: Types of transformers 5.24 for which it has no class that generates text.
_WITHOUT_TEXT: Final = (
    "aimv2 aimv2_text_model albert align align_text_model altclip altclip_text_model"
    " audio-spectrogram-transformer autoformer beit bit bridgetower bridgetower_text_model bros"
    " canine chinese_clip chinese_clip_text_model chmv2 clap clap_text_model clip clip_text_model"
    " clipseg clipseg_text_model conditional_detr convbert convnext convnextv2 cvt d_fine dab-detr"
    " dac data2vec-audio data2vec-vision decision_transformer deberta deberta-v2 deformable_detr"
    " deimv2 deit depth_anything depth_pro detr dinat dinov2 dinov2_with_registers dinov3_convnext"
    " distilbert donut-swin dpr dpt edgetam edgetam_video efficientloftr efficientnet encodec eomt"
    " eomt_dinov3 ernie_m esm esmc esmfold2 eurobert fastspeech2_conformer"
    " fastspeech2_conformer_hifigan flava flava_image_codebook flava_image_model"
    " flava_multimodal_model flava_text_model fnet focalnet funnel glpn granite_speech5_ctc"
    " granite_speech_nar_text grounding-dino groupvit groupvit_text_model gte hgnet_v2 hiera"
    " hubert ibert ijepa informer jina_embeddings_v3 lasr_ctc layoutlm layoutlmv2 layoutlmv3"
    " layoutxlm levit lightglue lilt longformer luke lw_detr lxmert markuplm mask2former"
    " maskformer maskformer-swin metaclip_2 metaclip_2_text_model mgp-str mimi mimi_decoder mlcd"
    " mm-grounding-dino mobilebert mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 modernbert"
    " modernvbert molmo2_adapter mpnet mra nemotron3_5_asr nemotron3_5_transcribe_word_timestamp"
    " nemotron3_diarization nemotron_asr_streaming neomme neucodec nomic_bert nystromformer"
    " omdet-turbo omniasr_ctc oneformer openai_privacy_filter owlv2 owlv2_text_model owlvit"
    " owlvit_text_model parakeet_ctc parakeet_rnnt parakeet_tdt patchtsmixer patchtst pe_video"
    " perceiver pixio pixtral poolformer pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_lcnet"
    " pp_lcnet_v3 pp_lcnet_v4 pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det"
    " pp_ocrv5_server_rec pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec"
    " pp_ocrv6_tiny_rec prompt_depth_anything pvt pvt_v2 qwen2_5_omni_bigvgan qwen2_5_omni_dit"
    " qwen2_5_omni_token2wav radio regnet resnet rf_detr rf_detr_dinov2 rt_detr rt_detr_resnet"
    " rt_detr_v2 sam sam2 sam2_hiera_det_model sam2_video sam3 sam3_lite_text"
    " sam3_lite_text_text_model sam3_tracker sam3_tracker_video sam3_video sam_hq sapiens2"
    " sapiens2_head segformer seggpt sew sew-d siglip siglip2 siglip2_text_model siglip_text_model"
    " slanet slanext speecht5_hifigan splinter squeezebert superglue superpoint swiftformer swin"
    " swin2sr swinv2 t5gemma2_text table-transformer tapas textnet time_series_transformer timesfm"
    " timesfm2_5 timesformer timm_backbone timm_wrapper tipsv2 tipsv2_dpt tipsv2_text_model tvp"
    " ultrabert ultravbert unispeech unispeech-sat univnet upernet uvdoc uvdoc_backbone"
    " vibevoice_diffusion videomae videomt videoprism videoprism_text_model vilt"
    " vision-text-dual-encoder visual_bert vit vit_mae vit_msn vitdet vitmatte vitpose"
    " vitpose_backbone vivit vjepa2 wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm wavtokenizer"
    " x_clip_text_model xclip xclip_text_model xcodec xcodec2 yolos yoso zoedepth"
)
_ENCODERS: Final = frozenset(_WITHOUT_TEXT.split())
#: What parts of a model are called that are not its decoder.
_PARTS: Final = (  # a string, as that of _TASKS: few configs need them compiled
    r"_(?:vision|audio|encoder|qformer|sam|vit|vqgan|vqmodel|(?:mask|detr)_decoder|perceiver|perciever"
    r"|tokenizer)(?:_\w+)?$"
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
_TASKS: Final = (
    r"For(?:CTC|MaskedLM|\w*Classification|\w*Detection|\w*Segmentation|\w*QuestionAnswering"
    r"|MultipleChoice|NextSentencePrediction|DepthEstimation|XVector|MaskedImageModeling|Retrieval"
    r"|PreTraining)$|TextEncoder$|EmbeddingModel$"
)


def decoder_of(outer: Fields) -> tuple[Fields, str]:
    """Return the fields of the part that generates text, and its ``model_type``.

    A wrapper is resolved as its decoder if it says nothing of its own about a cache.
    """
    if outer.has("model_config"):
        return _decoder_of_mlc(outer, _model_type(outer))
    fields = outer
    kind = outer.text("model_type")
    for _ in range(len(INNER_KEYS)):  # a thinker holds a text_config; nothing nests deeper
        keys = (DECODER_KEYS[kind],) if kind in DECODER_KEYS else INNER_KEYS
        inner = next((key for key in keys if fields.has(key)), None) or _only_decoder(fields, kind)
        if inner is None:
            if kind in _DEFAULT_INNER_TYPES:
                fields.fail(
                    keys[-1] if len(keys) == 1 else "text_config", "is missing: it is the decoder"
                )
            break
        nested = fields.nested(inner, whole=True)
        if nested is None:
            break
        for key in keys:
            if fields.has(key) and fields.peek(key) != fields.peek(inner):
                fields.fail(
                    key, f"is a second language model beside {inner}; give the config of one"
                )
        refuse_of_wrapper(fields, nested, _WRAPPER_HARMLESS.get(kind or "", frozenset()) | {inner})
        nested.outer = fields
        fields, kind = nested, _inner_type(kind, nested)
    return fields, kind or _model_type(fields)


def _only_decoder(fields: Fields, kind: str | None) -> str | None:
    """Return the key of the one object that is the config of a known decoder, whatever it is called.

    A config that is known itself or states layers is no wrapper.
    """
    if kind is None or family_of(kind) is not STANDARD or any(map(fields.has, NAMES["layers"])):
        return None
    found = [
        key for key in fields.all_keys() if _is_known(fields.peek(key)) and not is_named_part(key)
    ]
    if len(found) > 1:
        fields.fail(
            found[1], f"is a second language model beside {found[0]}; give the config of one"
        )
    return found[0] if found else None


def _is_known(value: Any) -> bool:
    kind = value.get("model_type") if isinstance(value, dict) else None
    return isinstance(kind, str) and family_of(kind) is not STANDARD


def _inner_type(wrapper: str | None, nested: Fields) -> str | None:
    """Return the ``model_type`` of the decoder *nested* of *wrapper*; ``None`` if nothing says it."""
    if wrapper in _INNER_TYPES:
        nested.text("model_type")
        return _INNER_TYPES[wrapper]
    kind = nested.text("model_type")
    if kind is None and wrapper is not None:
        kind = _DEFAULT_INNER_TYPES.get(wrapper)
    return kind


def _decoder_of_mlc(outer: Fields, kind: str) -> tuple[Fields, str]:
    """Return the ``model_config`` of an mlc-chat-config.json with the outer window applied."""
    config = outer.raw("model_config")
    if not isinstance(config, dict):
        outer.fail("model_config", "must be an object")
    merged = dict(config)
    for key in ("sliding_window_size", "attention_sink_size", "context_window_size"):
        value = outer.raw(key)
        if value is not None:
            merged[key] = value
        if merged.get(key) == -1:  # MLC's "none"
            merged[key] = None
    if merged.get("sliding_window_size") is None and "sliding_window_size" in merged:
        merged["sliding_window"] = None
    fields = outer.wrap(merged, "model_config.")
    fields.outer = outer
    return fields, kind


def _model_type(fields: Fields) -> str:
    text = fields.text("model_type")
    if text is not None:
        return text
    names = fields.items("architectures") or []
    known = next((name for name in names if isinstance(name, str) and name in ARCHITECTURES), None)
    if known is not None:
        return ARCHITECTURES[known]
    if names:
        fields.fail("architectures", f"{str(names[0])[:60]!r} is not understood")
    return fields.fail("model_type", "is missing, so the architecture is unknown")


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
    if kind in _ENCODERS or re.search(_PARTS, kind):
        fields.fail("model_type", f"{kind} does not generate text, so it keeps no cache")
    listed = fields.peek("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if names and all(re.search(_TASKS, name) for name in names):
        fields.fail(
            "architectures", f"{names[0][:60]} does not generate text, so it keeps no cache"
        )
    found = next((key for key in fields.all_keys() if key in _SENSES and fields.peek(key)), None)
    if found is not None:
        fields.fail(found, "belongs to an image or audio model, whose cache is not understood")
