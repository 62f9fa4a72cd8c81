"""Encoders, which read a whole text, image or sound at once, and so keep no cache."""

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
    " grounding-dino groupvit groupvit_text_model gte hgnet_v2 hiera hubert ibert ijepa informer"
    " jina_embeddings_v3 lasr_ctc layoutlm layoutlmv2 layoutlmv3 layoutxlm levit lightglue lilt"
    " longformer luke lw_detr lxmert markuplm mask2former maskformer maskformer-swin metaclip_2"
    " metaclip_2_text_model mgp-str mimi mimi_decoder mlcd mm-grounding-dino mobilebert"
    " mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 modernbert modernvbert molmo2_adapter mpnet"
    " mra nemotron3_5_asr nemotron3_5_transcribe_word_timestamp nemotron3_diarization"
    " nemotron_asr_streaming neomme neucodec nomic_bert nystromformer omdet-turbo omniasr_ctc"
    " oneformer openai_privacy_filter owlv2 owlv2_text_model owlvit owlvit_text_model parakeet_ctc"
    " parakeet_rnnt parakeet_tdt patchtsmixer patchtst pe_video perceiver pixio pixtral poolformer"
    " pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_lcnet pp_lcnet_v3 pp_lcnet_v4"
    " pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det pp_ocrv5_server_rec"
    " pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec pp_ocrv6_tiny_rec"
    " prompt_depth_anything pvt pvt_v2 qwen2_5_omni_bigvgan qwen2_5_omni_dit"
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
