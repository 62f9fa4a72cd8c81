"""Which layer of a Hugging Face config is of which kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vmtool.kv.geometry import LayerKind
from vmtool.kv.sources.fields import MAX_TOKENS

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields

#: Returns the kind of every layer, given the fields and the number of layers.
Plan = Callable[["Fields", int], list[LayerKind]]

#: What entries of ``layer_types`` mean everywhere. What ``linear_attention`` or ``mamba`` is
#: depends on the architecture.
FULL_NAMES = {"full_attention": LayerKind.FULL, "attention": LayerKind.FULL}
WINDOW_NAMES = {**FULL_NAMES, "sliding_attention": LayerKind.WINDOW}


def all_full(fields: Fields, layers: int) -> list[LayerKind]:
    """Every layer keeps everything."""
    del fields
    return [LayerKind.FULL] * layers


def all_of(kind: LayerKind) -> Plan:
    """Every layer is of *kind*."""

    def plan(fields: Fields, layers: int) -> list[LayerKind]:
        del fields
        return [kind] * layers

    return plan


def latent_unless_off(fields: Fields, layers: int) -> list[LayerKind]:
    """Every layer keeps a latent, unless ``use_mla`` is false (DeepSeek-VL2-Tiny, DeepSeek-OCR)."""
    return [LayerKind.MLA if fields.flag("use_mla", default=True) else LayerKind.FULL] * layers


def window_if_set(fields: Fields, layers: int) -> list[LayerKind]:
    """Every layer has the window, if there is one (Mistral, StarCoder2, Phi-3)."""
    window = fields.optional("window", high=MAX_TOKENS)
    return [LayerKind.FULL if window is None else LayerKind.WINDOW] * layers


def window_above(fields: Fields, layers: int) -> list[LayerKind]:
    """Qwen2: with ``use_sliding_window``, layers from ``max_window_layers`` on have the window."""
    used = fields.flag("use_sliding_window")
    fields.raw("sliding_window")
    first = fields.optional("max_window_layers", low=0)
    if not used:
        return [LayerKind.FULL] * layers
    if fields.optional("window", high=MAX_TOKENS) is None or first is None:
        fields.fail("use_sliding_window", "is true, but the window or its first layer is missing")
    return [LayerKind.WINDOW if i >= first else LayerKind.FULL for i in range(layers)]


def unless_last_of(
    period: int, most: LayerKind, rest: LayerKind = LayerKind.FULL, *, last_is_rest: bool = False
) -> Plan:
    """The last layer of every *period* is *rest*, the others *most* (Gemma 3: five to one).

    The file's own period wins: ``sliding_window_pattern``, ``full_attention_interval``, and so on,
    under the value name ``period``.
    """

    def plan(fields: Fields, layers: int) -> list[LayerKind]:
        every = fields.optional("period")
        if every is None:
            fields.defaulted("period", period, f"one layer in {period} is {rest.value}")
            every = period
        kinds = [rest if (i + 1) % every == 0 else most for i in range(layers)]
        if last_is_rest and kinds:
            kinds[-1] = rest
        return kinds

    return plan


def exaone4(fields: Fields, layers: int) -> list[LayerKind]:
    """EXAONE 4: a period or a string such as ``LLLG``; without a window, all full."""
    if fields.optional("window", high=MAX_TOKENS) is None:
        fields.raw("sliding_window_pattern")
        return [LayerKind.FULL] * layers
    pattern = fields.raw("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            fields.fail("sliding_window_pattern", f"{pattern[:40]!r} may only hold L and G")
        fields.stated("period", pattern[:40], "sliding_window_pattern")
        kinds = [
            LayerKind.WINDOW if pattern[i % len(pattern)] == "L" else LayerKind.FULL
            for i in range(layers)
        ]
        kinds[-1] = LayerKind.FULL  # a string also makes the last layer global
        return kinds
    return unless_last_of(4, LayerKind.WINDOW)(fields, layers)


def flagged(key: str, one: LayerKind, zero: LayerKind) -> Plan:
    """A list *key* of ones and zeros says it layer by layer (MiMo-V2, MiniMax)."""

    def plan(fields: Fields, layers: int) -> list[LayerKind]:
        values = fields.integers(key, length=layers, high=1)
        if values is None:
            fields.fail(key, "is missing: it says which layers are which")
        return [one if value else zero for value in values]

    return plan


def llama4(fields: Fields, layers: int) -> list[LayerKind]:
    """Llama 4: layers with rope see a chunk, those without see everything."""
    if fields.optional("chunk", high=MAX_TOKENS) is None:
        fields.raw("no_rope_layers")
        return [LayerKind.FULL] * layers
    rope = fields.integers("no_rope_layers", high=1)
    if rope:
        if len(rope) != layers:
            fields.fail("no_rope_layers", f"has {len(rope)} entries for {layers} layers")
        return [LayerKind.CHUNK if value else LayerKind.FULL for value in rope]
    return unless_last_of(4, LayerKind.CHUNK)(fields, layers)


def offset_period(most: LayerKind) -> Plan:
    """Jamba: one layer in ``attn_layer_period``, from ``attn_layer_offset``, attends."""

    def plan(fields: Fields, layers: int) -> list[LayerKind]:
        period = fields.integer("attn_layer_period")
        offset = fields.integer("attn_layer_offset", low=0)
        if offset >= period:
            fields.fail("attn_layer_offset", f"is {offset}, not below the period {period}")
        return [LayerKind.FULL if i % period == offset else most for i in range(layers)]

    return plan


def listed(
    key: str, most: LayerKind, rest: LayerKind = LayerKind.FULL, *, required: bool = False
) -> Plan:
    """A list *key* of indices says which layers attend, and are *rest* (LFM2, Bamba)."""

    def plan(fields: Fields, layers: int) -> list[LayerKind]:
        chosen = fields.integers(key, high=layers - 1)
        if chosen is None:
            if required:
                fields.fail(key, "is missing: it says which layers attend")
            return [LayerKind.FULL] * layers
        kinds = [most] * layers
        for i in chosen:
            kinds[i] = rest
        return kinds

    return plan


_PATTERN = {"M": LayerKind.MAMBA2, "*": LayerKind.FULL, "-": LayerKind.NONE, "E": LayerKind.NONE}


def hybrid_pattern(fields: Fields, layers: int) -> list[LayerKind]:
    """Nemotron-H: ``M`` is Mamba-2, ``*`` attention, ``-`` an MLP and ``E`` a mixture of experts."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern is None:
        fields.fail("hybrid_override_pattern", "is missing: it says which layers are which")
    if len(pattern) != layers:
        fields.fail("hybrid_override_pattern", f"has {len(pattern)} letters for {layers} layers")
    for letter in pattern:
        if letter not in _PATTERN:
            fields.fail("hybrid_override_pattern", f"holds {letter!r}, which is not understood")
    return [_PATTERN[letter] for letter in pattern]


def kimi_linear(fields: Fields, layers: int) -> list[LayerKind]:
    """Kimi Linear: ``linear_attn_config`` lists both kinds, counting layers from 1."""
    config = fields.nested("linear_attn_config")
    if config is None:
        fields.fail("linear_attn_config", "is missing: it says which layers are which")
    kinds: list[LayerKind | None] = [None] * layers
    for key, kind in (("full_attn_layers", LayerKind.MLA), ("kda_layers", LayerKind.KIMI_DELTA)):
        for number in config.integers(key, low=1, high=layers) or []:
            if kinds[number - 1] is not None:
                config.fail(key, f"names layer {number} again")
            kinds[number - 1] = kind
    if None in kinds:
        config.fail("kda_layers", f"leaves out layer {kinds.index(None) + 1}")
    return [kind for kind in kinds if kind is not None]


def recurrent_gemma(fields: Fields, layers: int) -> list[LayerKind]:
    """RecurrentGemma: ``block_types``, over and over, says which layers attend to a window."""
    meaning = {"recurrent": LayerKind.GATED_LINEAR, "attention": LayerKind.WINDOW}
    pattern = fields.items("block_types")
    if not pattern:
        fields.fail("block_types", "is missing: it says which layers attend")
    kinds = named(fields, "block_types", len(pattern), meaning)
    return [kinds[i % len(kinds)] for i in range(layers)]


def unlisted(fields: Fields, layers: int) -> list[LayerKind]:
    """Fail: this architecture must say layer by layer what it is."""
    fields.fail("layer_types", f"is missing: it says which of the {layers} layers attend")


def named(fields: Fields, key: str, layers: int, meaning: dict[str, LayerKind]) -> list[LayerKind]:
    """Return the kinds that the list *key* names.

    Raises:
        InputError: If an entry is not understood in this architecture.
    """
    kinds = []
    for i, name in enumerate(fields.items(key, length=layers) or []):
        kind = meaning.get(name) if isinstance(name, str) else None
        if kind is None:
            known = ", ".join(meaning)
            fields.fail(
                f"{key}[{i}]",
                f"{str(name)[:40]!r} is not understood in {fields.architecture}; known: {known}",
            )
        kinds.append(kind)
    return kinds
