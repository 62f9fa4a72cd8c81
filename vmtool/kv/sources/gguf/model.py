"""A GGUF file as a geometry: its layers, as llama.cpp lays out their caches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import InputError, UsageError
from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    ModelGeometry,
    Span,
    StateTensor,
    Tensor,
    TensorRole,
    pair,
    whole_layer,
)
from vmtool.kv.sources.fields import FLAGS, MAX_LAYERS, MAX_TOKENS, Fields
from vmtool.kv.sources.gguf.architectures import (
    ARCHITECTURES,
    NOT_READ,
    WITHOUT_CACHE,
    Architecture,
    RecurrentState,
    key_names,
    refuse_unread,
)
from vmtool.kv.sources.gguf.file_format import read_metadata
from vmtool.kv.sources.hf import state_tensors
from vmtool.kv.sources.hf.deepseek_v4 import deepseek_v4_layers
from vmtool.kv.sources.model_files import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping


_STATE_KINDS = {
    RecurrentState.MAMBA1: LayerKind.MAMBA1,
    RecurrentState.MAMBA2: LayerKind.MAMBA2,
    RecurrentState.DELTA: LayerKind.GATED_DELTA,
    RecurrentState.KIMI: LayerKind.KIMI_DELTA,
    RecurrentState.LIGHTNING: LayerKind.LINEAR,
    RecurrentState.SHORT_CONV: LayerKind.SHORT_CONV,
    RecurrentState.RWKV: LayerKind.RWKV,
}


def load(path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of the GGUF file *path*.

    Raises:
        InputError: If the file is malformed, or its architecture or a field is not understood.
        UsageError: If an override does not apply.
    """
    return build(read_metadata(path), path, overrides)


def build(metadata: dict[str, Any], path: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry that *metadata*, read from *path*, describes."""
    fields = Fields(metadata, path, overrides=overrides)
    architecture = fields.text("general.architecture")
    if architecture is None:
        hint = "if the model is split into several files, give the first"
        fields.fail("general.architecture", "is missing", hint=hint)
    if architecture in WITHOUT_CACHE:
        fields.fail(
            "general.architecture", f"is {architecture}, for which llama.cpp makes no cache"
        )
    if architecture in NOT_READ:
        fields.fail(
            "general.architecture",
            f"is {architecture}, whose caches vmtool does not read from a GGUF file",
            hint="give the model's config.json",
        )
    known = ARCHITECTURES.get(architecture)
    fields.architecture = architecture
    fields.origin = f"src/models/{architecture}.cpp of llama.cpp v0.5.0"
    fields.defaulted("architecture", architecture, "")
    fields.names = key_names(architecture)
    try:
        builder = _LayerBuilder(fields, architecture, known or Architecture())
        layers = builder.layers()
        refuse_unread(fields, architecture)
    except InputError as error:
        if known is not None:
            raise
        message = f"{architecture[:60]!r} is an unknown architecture"
        raise InputError(
            path, f"{message}, and its keys are not standard: {error}", field="general.architecture"
        ) from error
    for name in set(overrides) - fields.applied:
        raise UsageError(f"{FLAGS[name]} does not apply to {architecture}: it reads no such value")
    context = fields.optional("context", high=MAX_TOKENS)
    fields.defaulted("dtype", "fp16", "llama.cpp keeps f16 by default")
    return ModelGeometry(
        name_of(path),
        architecture,
        layers,
        context,
        "fp16",
        fields.facts,
        file_format="gguf",
        assumed=known is None,
        mtp_layers=builder.mtp_layers(layers),
        query_heads=fields.query_heads if any(layer.tensors for layer in layers) else None,
    )


class _LayerBuilder:
    """Puts the layers of one file together."""

    def __init__(self, fields: Fields, name: str, architecture: Architecture) -> None:
        self._fields = fields
        self._start = f"{name}."
        self._architecture = architecture
        extra = fields.optional("extra_layers", low=0, high=MAX_LAYERS) or 0
        stated = fields.optional("decoder_layers", high=MAX_LAYERS)  # a T5 file has an encoder too
        fields.raw(fields.names["layers"][0])
        if stated is None:
            stated = fields.integer("layers", high=MAX_LAYERS)
        if extra >= stated:
            fields.fail(
                fields.names["extra_layers"][0], f"is {extra}, but there are {stated} blocks"
            )
        self._count = stated - extra
        self._extra = extra
        if extra:
            fields.derived("layers", self._count, f"block_count - nextn = {stated} - {extra}")

    def layers(self) -> tuple[Layer, ...]:
        """Return every layer, in order."""
        if self._architecture.state is RecurrentState.SHORT_CONV:  # though no layer may have one
            self._fields.raw(self._fields.names["short_conv"][0])
        if self._architecture.state is RecurrentState.RWKV or self._without_attention():
            self._fields.raw(self._fields.names["kv_heads"][0])
            kind = _STATE_KINDS[self._architecture.state]
            states = self._states()
            return tuple(Layer(i, kind, states=states) for i in range(self._count))
        if self._fields.given("compress_ratios"):
            return self._compressed()
        kv_heads, windowed = self._kv_heads(), self._windowed()
        own = self._own_layers()
        indexed = self._indexed()
        dense = self._fields.optional("dense_layers", low=0) or 0
        recurrent = self._recurrent(kv_heads)
        layers = []
        for i in range(self._count):
            if i >= own:
                layers.append(Layer(i, LayerKind.SHARED, shares=self._source(i, own, windowed)))
            elif recurrent[i]:
                layers.append(self._stateful(i))
            else:
                kept = indexed[i] and i >= dense if self._architecture.sparse else indexed[i]
                layers.append(self._attending(i, kv_heads[i], windowed[i], indexed=kept))
        return tuple(layers)

    def mtp_layers(self, layers: tuple[Layer, ...]) -> tuple[Layer, ...] | None:
        """Return the layers that only predict further tokens; ``None`` if it is unknown what they keep.

        They are like the others that keep every token, or, where the list of windows goes on with
        them, those that have one.
        """
        whole = whole_layer(layers)
        windowed = next((layer for layer in layers if layer.kind is LayerKind.WINDOW), None)
        pattern = self._fields.peek(f"{self._start}attention.sliding_window_pattern")
        listed = pattern[self._count :] if isinstance(pattern, list) else []
        if len(listed) != self._extra:
            listed = [False] * self._extra
        made = [windowed if has_window else whole for has_window in listed]
        found = tuple(layer for layer in made if layer is not None)
        return found if len(found) == self._extra else None

    def _recurrent(self, kv_heads: list[int]) -> list[bool]:
        """Return which layers do not attend: as the file lists them, by an interval, or by heads."""
        fields = self._fields
        listed = self._flags("attention.recurrent_layers")
        default = self._architecture.interval
        every = fields.optional("interval") if default is not None else None
        if listed is not None:
            return listed
        if default is None:
            return [count == 0 for count in kv_heads]
        every = every or default
        return [count == 0 or (i + 1) % every != 0 for i, count in enumerate(kv_heads)]

    def _indexed(self) -> list[bool]:
        """Return which latent layers have an index of their own."""
        return self._flags("attention.indexer.types") or [True] * self._count

    def _flags(self, name: str) -> list[bool] | None:
        key = f"{self._start}{name}"
        values = self._fields.raw(key)
        if values is None:
            return None
        if (
            not isinstance(values, list)
            or len(values) < self._count
            or any(value not in (0, 1) for value in values)
        ):
            self._fields.fail(key, f"must say 0 or 1 for each of {self._count} layers")
        return [bool(value) for value in values[: self._count]]

    def _compressed(self) -> tuple[Layer, ...]:
        """Return the layers of DeepSeek-V4, whose window and compressed rows are caches of K alone."""
        fields = self._fields
        ratios = fields.integers(fields.names["compress_ratios"][0])
        if ratios is None or len(ratios) < self._count:
            key = fields.names["compress_ratios"][0]
            fields.fail(key, f"must have an entry for each of {self._count} layers")
        for name in ("head_dim_v", "kv_heads"):
            fields.raw(fields.names[name][0])
        fields.names = {**fields.names, "index_head_dim": fields.names["index_dim"]}
        rope = fields.integer("rope_dim", high=fields.integer("head_dim"))
        return deepseek_v4_layers(fields, ratios[: self._count], rope)

    def _without_attention(self) -> bool:
        """Return whether this is a pure Mamba file, whose attention keys are zero or absent."""
        heads = self._fields.raw(f"{self._start}attention.head_count")
        pure = self._start in ("mamba.", "mamba2.") and heads in (None, 0)
        if pure:
            self._fields.raw(f"{self._start}attention.head_count_kv")
        return pure

    def _kv_heads(self) -> list[int]:
        """Return the KV heads of each layer; 0 is a layer without attention."""
        fields = self._fields
        key = fields.names["kv_heads"][0]
        if fields.raw(key) is None and "kv_heads" not in fields.overridden:
            key = f"{self._start}attention.head_count"
        if "kv_heads" not in fields.overridden and isinstance(fields.raw(key), list):
            values = fields.integers(key)
            if values is None or len(values) < self._count:
                fields.fail(key, f"has too few entries for {self._count} layers")
            fields.stated("kv_heads", "per layer", key)
            return values[: self._count]
        fields.names = {**fields.names, "kv_heads": (key,)}
        return [fields.integer("kv_heads", low=0)] * self._count

    def _windowed(self) -> list[bool]:
        """Return which layers keep only a window or chunk."""
        fields, architecture = self._fields, self._architecture
        key = f"{self._start}attention.sliding_window_pattern"
        pattern = fields.raw(key)
        window = fields.optional("window", low=0, high=MAX_TOKENS)
        needed = architecture.window_layers
        if (
            architecture.window_off
            or window == 0
            or (window is None and architecture.window is None)
            or (needed is not None and needed != self._count)
        ):
            return [False] * self._count
        if architecture.period is None and not architecture.listed:
            fields.fail(fields.names["window"][0], "is set, but llama.cpp does not use it here")
        if isinstance(pattern, list):
            return self._pattern_list(key, pattern)
        period = architecture.period if pattern is None else fields.checked(key, pattern)
        if period is None:
            fields.fail(key, "is missing, but there is a sliding window")
        fields.defaulted("period", period, f"one layer in {period} keeps everything")
        if architecture.dense_first:
            return [i % period != 0 for i in range(self._count)]
        return [(i + 1) % period != 0 for i in range(self._count)]

    def _pattern_list(self, key: str, pattern: list[Any]) -> list[bool]:
        if len(pattern) < self._count or any(value not in (0, 1) for value in pattern):
            self._fields.fail(key, f"must say 0 or 1 for each of {self._count} layers")
        self._fields.stated("layer_kinds", "per layer", key)
        return [bool(value) for value in pattern[: self._count]]

    def _own_layers(self) -> int:
        """Return how many layers, from the first, have KV of their own."""
        shared = self._fields.optional("shared_layers", low=0, high=MAX_LAYERS)
        if shared is not None:
            if shared >= self._count:
                key = self._fields.names["shared_layers"][0]
                self._fields.fail(key, f"is {shared}, but there are {self._count} layers")
            return self._count - shared
        own = self._architecture.own_layers
        if own is not None and own < self._count:
            self._fields.defaulted("own_layers", own, "the first layers; the others share theirs")
            return own
        return self._count

    def _source(self, index: int, own: int, windowed: list[bool]) -> int:
        """Return the last layer with its own KV that is of the same kind as layer *index*."""
        for i in reversed(range(own)):
            if windowed[i] == windowed[index]:
                return i
        key = self._fields.names["shared_layers"][0]
        return self._fields.fail(key, f"leaves layer {index} no layer to share with")

    def _attending(self, index: int, kv_heads: int, windowed: bool, *, indexed: bool) -> Layer:
        fields = self._fields
        if fields.optional("mla_dim") is not None:
            return Layer(index, LayerKind.MLA, self._latent(indexed=indexed))
        fields.raw(fields.names["kv_lora_rank"][0])  # files before MLA support keep K and V whole
        dim_k, dim_v = self._head_dims(windowed=windowed)
        if not windowed:
            kind = LayerKind.PARALLEL if self._architecture.parallel else LayerKind.FULL
            states = self._states() if self._architecture.parallel else ()
            tensors = pair(kv_heads, dim_k, dim_v)
            if self._architecture.sparse and indexed:
                key = Tensor("index_k", TensorRole.KEY, 1, fields.integer("index_dim"))
                tensors += (replace(key, replicated=True),)
            return Layer(index, kind, tensors, states)
        size = fields.optional("window", high=MAX_TOKENS) or self._architecture.window or 0
        span, kind = (
            (Span.CHUNK, LayerKind.CHUNK)
            if self._architecture.chunk
            else (Span.WINDOW, LayerKind.WINDOW)
        )
        return Layer(index, kind, pair(kv_heads, dim_k, dim_v, Extent(span, size)))

    def _head_dims(self, *, windowed: bool) -> tuple[int, int]:
        fields = self._fields
        dim_k, dim_v = fields.optional("head_dim"), fields.optional("head_dim_v")
        if dim_k is None or dim_v is None:
            derived = self._derived_dim()
            dim_k, dim_v = dim_k or derived, dim_v or derived
        if windowed:
            dim_k = fields.optional("window_dim_k") or dim_k
            dim_v = fields.optional("window_dim_v") or dim_v
        return dim_k, dim_v

    def _derived_dim(self) -> int:
        """Return the width of a head where the file does not say: hidden size / heads."""
        fields = self._fields
        key = f"{self._start}attention.head_count"
        heads = fields.checked(key, fields.raw(key))
        hidden = fields.integer("hidden")
        if hidden % heads:
            fields.fail(key, f"is {heads}, which does not divide embedding_length {hidden}")
        fields.derived("head_dim", hidden // heads, f"hidden / heads = {hidden} / {heads}")
        return hidden // heads

    def _latent(self, *, indexed: bool) -> tuple[Tensor, ...]:
        fields = self._fields
        dim, rank = fields.integer("head_dim"), fields.integer("kv_lora_rank")
        fields.raw(fields.names["head_dim_v"][0])
        if dim <= rank:
            key = fields.names["head_dim"][0]
            fields.fail(key, f"is {dim}, not more than the kv_lora_rank {rank} it includes")
        row = Tensor("latent", TensorRole.LATENT, 1, dim, rope_dim=dim - rank)
        index = fields.optional("index_dim")
        if index is None or not indexed:
            return (row,)
        return row, Tensor("index", TensorRole.INDEX, 1, index)

    def _stateful(self, index: int) -> Layer:
        """Return a layer without attention: with a state, or with nothing at all."""
        widths = self._fields.raw(f"{self._start}feed_forward_length")
        mlp_only = isinstance(widths, list) and index < len(widths) and widths[index] != 0
        if self._architecture.state is RecurrentState.NONE or (
            self._architecture.state is RecurrentState.MAMBA2 and mlp_only
        ):
            return Layer(index, LayerKind.NONE)
        return Layer(index, _STATE_KINDS[self._architecture.state], states=self._states())

    def _states(self) -> tuple[StateTensor, ...]:
        """Return the states that llama.cpp keeps: as engines do elsewhere, but always in fp32."""
        fields = self._fields
        kind = self._architecture.state
        if kind in (RecurrentState.MAMBA2, RecurrentState.DELTA):
            inner, heads = fields.integer("ssm_inner"), fields.integer("ssm_heads")
            if inner % heads:
                fields.fail(fields.names["ssm_heads"][0], f"does not divide inner_size {inner}")
            fields.defaults = {
                **fields.defaults,
                "ssm_head_dim": inner // heads,
                "linear_dim_v": inner // heads,
            }
        elif kind is RecurrentState.MAMBA1:
            fields.raw(fields.names["ssm_heads"][0])
            fields.raw(fields.names["ssm_groups"][0])
        elif kind is RecurrentState.SHORT_CONV:
            fields.names = {**fields.names, "conv_kernel": fields.names["short_conv"]}
        elif kind is RecurrentState.RWKV:
            fields.names = {**fields.names, "head_dim": fields.names["wkv_head"]}
        states = _STATE_BUILDERS[kind](fields)
        fields.defaulted("ssm_dtype", "fp32", "llama.cpp's format for states")
        return tuple(
            replace(made, name="ssm" if made.name == "recurrent" else made.name, dtype="fp32")
            for made in states
            if made.elements
        )


_STATE_BUILDERS: Final = {
    RecurrentState.MAMBA1: state_tensors.mamba1,
    RecurrentState.MAMBA2: state_tensors.mamba2,
    RecurrentState.DELTA: state_tensors.gated_delta,
    RecurrentState.KIMI: state_tensors.kimi_delta,
    RecurrentState.LIGHTNING: state_tensors.lightning,
    RecurrentState.SHORT_CONV: state_tensors.short_conv,
    RecurrentState.RWKV: state_tensors.rwkv,
}
