"""Architectures whose decoder also keeps K and V of an encoder's input, once per sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, Span, Tensor
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS
from vmtool.kv.sources.hf import layer_kinds
from vmtool.kv.sources.hf.attention_tensors import grouped
from vmtool.kv.sources.hf.family import Family

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def encoder_cross(fields: Fields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """A decoder beside an encoder also keeps K and V of all that this was given, once per sequence.

    That is Whisper's number of frames, and in a model of text the longest input.
    """
    count = fields.optional("frames", high=MAX_TOKENS)
    if count is None:
        count = fields.integer("context", high=MAX_TOKENS)
        fields.derived("frames", count, "as many as the decoder has positions")
    frames = Extent(Span.FIXED, count)
    wide = fields.optional("cross_num_key_value_heads"), fields.optional("cross_head_dim")

    def cross(tensor: Tensor) -> Tensor:
        heads_, dim = wide[0] or tensor.heads, wide[1] or tensor.dim
        return replace(tensor, name=f"cross_{tensor.name}", heads=heads_, dim=dim, extent=frames)

    return tuple(
        replace(layer, tensors=layer.tensors + tuple(cross(t) for t in layer.tensors))
        for layer in layers
    )


def _t5(fields: Fields) -> tuple[Layer, ...]:
    """T5: as many decoder layers as the encoder has, unless ``num_decoder_layers`` says otherwise."""
    count = fields.optional("layers", high=MAX_LAYERS)
    if count is None:
        count = fields.integer("encoder_layers", high=MAX_LAYERS)
        fields.derived("layers", count, "the decoder has as many as the encoder")
    tensors = grouped(fields, LayerKind.FULL)
    return encoder_cross(fields, tuple(Layer(i, LayerKind.FULL, tensors) for i in range(count)))


_HARMLESS = frozenset({"is_encoder_decoder"})
_BART_NAMES = {
    "layers": ("decoder_layers", "num_decoder_layers"),
    "heads": ("decoder_attention_heads", "num_decoder_attention_heads"),
    "kv_heads": ("decoder_num_key_value_heads",),
    "hidden": ("d_model", "hidden_size"),
    "frames": ("max_position_embeddings",),
}
# The longest input that they were made for, where the config does not say.
_BART = Family(
    finish=encoder_cross,
    names=_BART_NAMES,
    defaults={"frames": 1024, "context": 1024},
    mha_by_default=True,
    harmless=_HARMLESS
    | {"add_cross_attention", "attention_type", "attention_window", "conv_channels"}
    | {"conv_depthwise_kernel_size", "conv_kernel_sizes", "num_conv_layers"}
    | {"num_conv_pos_embedding_groups", "num_conv_pos_embeddings", "num_hidden_layers"}
    | {"speech_encoder_attention_heads", "t2u_decoder_attention_heads"}
    | {"t2u_encoder_attention_heads"},
)
_BART_MODELS = (
    "bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100 marian mbart mvp nllb-moe"
    " pegasus pegasus_x plbart pp_formulanet_text prophetnet seamless_m4t seamless_m4t_v2"
)
_SPEECH_MODELS = "speech_to_text speecht5"
_T5 = Family(
    build=_t5,
    names={
        "layers": ("num_decoder_layers",),
        "encoder_layers": ("num_layers",),
        "heads": ("num_heads",),
        "head_dim": ("d_kv",),
        "context": ("n_positions",),
        "frames": ("n_positions",),
    },
    defaults={"head_dim": 64, "frames": 512},
    mha_by_default=True,
    harmless=_HARMLESS
    | {"num_sparse_encoder_layers", "num_sparse_decoder_layers"}
    | {"encoder_attention_type", "local_radius", "global_block_size"},
)

ENCODER_DECODER: dict[str, Family] = {
    "whisper": Family(
        finish=encoder_cross,
        names={
            "layers": ("decoder_layers",),
            "heads": ("decoder_attention_heads",),
            "hidden": ("d_model",),
            "context": ("max_target_positions",),
            "frames": ("max_source_positions",),
        },
        defaults={"frames": 1500, "context": 448},
        mha_by_default=True,
        harmless=_HARMLESS | {"num_hidden_layers"},
    ),
    **dict.fromkeys(_BART_MODELS.split(), _BART),
    # What they hear is longer than what they write.
    **dict.fromkeys(
        _SPEECH_MODELS.split(),
        Family(
            finish=encoder_cross,
            names={
                **_BART_NAMES,
                "context": ("max_target_positions", "max_text_positions"),
                "frames": ("max_source_positions", "max_speech_positions"),
            },
            mha_by_default=True,
            harmless=_BART.harmless | {"conv_dim", "conv_kernel", "conv_stride", "conv_bias"},
        ),
    ),
    # Half of their layers have a window; their cross attention has none.
    **dict.fromkeys(
        ("t5_gemma_module", "t5gemma2_decoder"),
        Family(
            plan=layer_kinds.unlisted,
            meaning=layer_kinds.WINDOW_NAMES,
            defaults={"head_dim": 256},
            harmless=frozenset({"cross_attention_hidden_size"}),
        ),
    ),
    "canary_decoder": Family(mha_by_default=True),
    "cohere_asr": Family(
        finish=encoder_cross,
        names={"frames": ("max_position_embeddings",)},
        defaults={"frames": 1024},
        mha_by_default=True,
        harmless=_HARMLESS,
    ),
    "dia_decoder": Family(
        harmless=frozenset(
            {"cross_head_dim", "cross_hidden_size", "cross_num_attention_heads"}
            | {"cross_num_key_value_heads"}
        ),
    ),
    # Alone it reads no image; `vision-encoder-decoder` puts an encoder beside it.
    "trocr": Family(
        names={
            "layers": ("decoder_layers",),
            "heads": ("decoder_attention_heads",),
            "hidden": ("d_model",),
        },
        mha_by_default=True,
    ),
    **dict.fromkeys(
        ["longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5"], _T5
    ),
    "pix2struct_text_model": Family(
        finish=encoder_cross,
        names={"heads": ("num_heads",), "head_dim": ("d_kv",), "frames": ("max_patches",)},
        defaults={"head_dim": 64, "frames": 2048},
        mha_by_default=True,
    ),
    **dict.fromkeys(
        ("moonshine", "moonshine_streaming"),
        Family(
            finish=encoder_cross,
            names={
                "layers": ("decoder_num_hidden_layers", "num_hidden_layers"),
                "heads": ("decoder_num_attention_heads", "num_attention_heads"),
                "kv_heads": ("decoder_num_key_value_heads", "num_key_value_heads"),
                "frames": ("max_position_embeddings",),
            },
            defaults={"frames": 512},
            mha_by_default=True,
            # Keys and values are padded after they have been put into the cache.
            harmless=_HARMLESS | {"pad_head_dim_to_multiple_of"},
        ),
    ),
}
