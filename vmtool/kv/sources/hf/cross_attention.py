"""What a decoder keeps of an encoder's input: K and V for cross attention, once per sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Extent, Layer, LayerKind, Span, Tensor
from vmtool.kv.sources.fields import MAX_TOKENS
from vmtool.kv.sources.hf.attention import grouped

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


def mllama(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Llama 3.2 Vision: its cross layers keep K and V of one image's patches."""
    tensors = grouped(fields, kind)
    if kind is not LayerKind.CROSS:
        return tensors
    vision = fields.outer.nested("vision_config", whole=True) if fields.outer else None
    if vision is None:
        fields.fail("cross_attention_layers", "needs vision_config, which gives the patches")
    size, patch, tiles = (
        vision.checked(key, vision.raw(key))
        for key in ("image_size", "patch_size", "max_num_tiles")
    )
    patches = tiles * ((size // patch) ** 2 + 1)
    fields.derived("cross_tokens", patches, "one image: tiles x ((image / patch)^2 + 1)")
    held = Extent(Span.FIXED, patches)
    return tuple(replace(t, name=f"cross_{t.name}", extent=held) for t in tensors)


def mllama_plan(fields: Fields, layers: int) -> list[LayerKind]:
    """Llama 3.2 Vision: ``cross_attention_layers`` lists the layers that see only the image."""
    cross = fields.integers("cross_attention_layers", high=layers - 1)
    if cross is None:
        fields.fail("cross_attention_layers", "is missing: it says which layers see the image")
    kinds = [LayerKind.FULL] * layers
    for i in cross:
        kinds[i] = LayerKind.CROSS
    return kinds
