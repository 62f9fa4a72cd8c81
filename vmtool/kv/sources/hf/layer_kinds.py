"""The kind of each layer of a Hugging Face config."""

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


def no_window(fields: Fields, layers: int) -> list[LayerKind]:
    """Every layer keeps everything; a window is not understood where nothing says which have it."""
    if fields.has("sliding_window"):
        fields.fail("sliding_window", "is set, but no field says which layers have it")
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


def unless_first_of_three(fields: Fields, layers: int) -> list[LayerKind]:
    """ModernBERT's decoder: the first of every three layers, or of the file's period, keeps all."""
    every = fields.optional("period") or 3
    return [LayerKind.WINDOW if i % every else LayerKind.FULL for i in range(layers)]


def smollm3(fields: Fields, layers: int) -> list[LayerKind]:
    """SmolLM3: with ``use_sliding_window``, the layers with rope have the window."""
    if not fields.flag("use_sliding_window") or not fields.has("sliding_window"):
        fields.raw("sliding_window")
        return [LayerKind.FULL] * layers
    rope = fields.integers("no_rope_layers", length=layers, high=1)
    if rope is None:
        every = fields.checked("no_rope_layer_interval", fields.raw("no_rope_layer_interval") or 4)
        rope = [int((i + 1) % every != 0) for i in range(layers)]
    return [LayerKind.WINDOW if value else LayerKind.FULL for value in rope]


def iquest_q1(fields: Fields, layers: int) -> list[LayerKind]:
    """IQuest-Q1: first layers, a block that is repeated, and last layers."""
    names: list[str] = []
    for key, absent in (
        ("first_layers_types", ["full_attention"]),
        ("hybrid_layers_types_block", ["full_attention"] + 3 * ["sliding_attention"]),
        ("last_layers_types", 3 * ["full_attention"]),
    ):
        listed = fields.items(key)
        part = absent if listed is None else [str(name) for name in listed]
        if key.startswith("hybrid"):
            times = fields.optional("num_hybrid_layers_block", low=0, high=layers)
            part = part * (21 if times is None else times)
        names += part
    used = fields.flag("use_sliding_window", default=True)
    if not fields.flag("use_hybrid_layers", default=True) or not used:
        fields.raw("sliding_window")
        return [LayerKind.FULL] * layers
    if len(names) != layers or not set(names) <= set(WINDOW_NAMES):
        fields.fail("hybrid_layers_types_block", f"gives {len(names)} layers, not {layers}")
    return [WINDOW_NAMES[name] for name in names]


def hrm_text(fields: Fields, layers: int) -> list[LayerKind]:
    """HRM: each stack runs several times, and each run keeps K and V of its own.

    ``num_hidden_layers`` counts the runs where ``num_layers_per_stack`` is given.
    """
    if fields.raw("num_layers_per_stack") is None:
        fields.fail(
            "num_layers_per_stack", "is missing: it says whether num_hidden_layers is one stack"
        )
    return [LayerKind.FULL] * layers


def cohere2_moe(fields: Fields, layers: int) -> list[LayerKind]:
    """Cohere 2 MoE: the dense layers before the others have a pattern of their own."""
    dense = fields.optional("first_k_dense_replace", low=0, high=layers) or 0
    prefix = fields.optional("prefix_dense_sliding_window_pattern") or 1
    before = [LayerKind.FULL if (i + 1) % prefix == 0 else LayerKind.WINDOW for i in range(dense)]
    return before + unless_last_of(4, LayerKind.WINDOW)(fields, layers - dense)


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


def phi4flash(fields: Fields, layers: int) -> list[LayerKind]:
    """Phi-4-mini-flash: Mamba and windows by turns, then a layer that keeps all, which others read.

    ``special_layers.phi4flash`` says which those are. Every second layer of theirs keeps
    nothing: it gates the output of the last Mamba.
    """
    if (fields.optional("mb_per_layer") or 2) != 2:
        fields.fail("mb_per_layer", "must be 2: every second layer is Mamba")
    half = layers // 2
    return [
        (LayerKind.MAMBA1 if i <= half else LayerKind.NONE)
        if i % 2 == 0
        else (LayerKind.WINDOW if i < half else LayerKind.FULL)
        for i in range(layers)
    ]


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
    key: str,
    most: LayerKind,
    rest: LayerKind = LayerKind.FULL,
    *,
    required: bool = False,
    absent: LayerKind = LayerKind.FULL,
) -> Plan:
    """A list *key* of indices says which layers attend, and are *rest* (LFM2, Bamba).

    Without it all are *absent*, unless it is *required*.
    """

    def plan(fields: Fields, layers: int) -> list[LayerKind]:
        chosen = fields.integers(key, high=layers - 1)
        if chosen is None:
            if required:
                fields.fail(key, "is missing: it says which layers attend")
            return [absent] * layers
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


def bailing_hybrid(fields: Fields, layers: int) -> list[LayerKind]:
    """Ling with linear attention: the last layer of every group attends.

    The others are lightning attention in version 2.5 (vLLM's ``bailing_moe_linear.py``), which has the
    same ``model_type``, and Kimi delta attention in version 3.
    """
    size = fields.integer("layer_group_size")
    older = "BailingMoeV2_5ForCausalLM" in (fields.items("architectures") or [])
    rest = LayerKind.LINEAR if older else LayerKind.KIMI_DELTA
    return [LayerKind.MLA if (i + 1) % size == 0 else rest for i in range(layers)]


def window_if_used(fields: Fields, layers: int) -> list[LayerKind]:
    """Qwen3-MoE: with ``use_sliding_window``, every layer has the window."""
    fields.raw("sliding_window")
    if not fields.flag("use_sliding_window"):
        return [LayerKind.FULL] * layers
    return [LayerKind.WINDOW] * layers


def alternate_if_used(fields: Fields, layers: int) -> list[LayerKind]:
    """Qwen2-MoE: with ``use_sliding_window``, every other layer below ``max_window_layers``."""
    fields.raw("sliding_window")
    below = fields.optional("max_window_layers", low=0)
    if not fields.flag("use_sliding_window"):
        return [LayerKind.FULL] * layers
    limit = 28 if below is None else below
    return [LayerKind.WINDOW if i % 2 == 0 and i < limit else LayerKind.FULL for i in range(layers)]


def recurrent_gemma(fields: Fields, layers: int) -> list[LayerKind]:
    """RecurrentGemma: ``block_types``, over and over, says which layers attend to a window.

    Published files have it as ``_block_types``, and its config class assumes a list.
    """
    meaning = {"recurrent": LayerKind.GATED_LINEAR, "attention": LayerKind.WINDOW}
    key = "block_types" if fields.has("block_types") else "_block_types"
    pattern = fields.items(key) or []
    if not pattern:
        kinds = [LayerKind.GATED_LINEAR, LayerKind.GATED_LINEAR, LayerKind.WINDOW]
        fields.defaulted("layer_kinds", "recurrent, recurrent, attention", "in turn")
    else:
        kinds = named(fields, key, len(pattern), meaning)
        fields.stated("layer_kinds", ", ".join(map(str, pattern)), key)
    return [kinds[i % len(kinds)] for i in range(layers)]


def mllama(fields: Fields, layers: int) -> list[LayerKind]:
    """Llama 3.2 Vision: ``cross_attention_layers`` lists the layers that see only the image."""
    cross = fields.integers("cross_attention_layers", high=layers - 1)
    if cross is None:
        fields.fail("cross_attention_layers", "is missing: it says which layers see the image")
    kinds = [LayerKind.FULL] * layers
    for i in cross:
        kinds[i] = LayerKind.CROSS
    return kinds


def unlisted(fields: Fields, layers: int) -> list[LayerKind]:
    """Fail: this architecture must say layer by layer what it is."""
    fields.fail("layer_types", f"is missing: it says which of the {layers} layers attend")


def named(fields: Fields, key: str, layers: int, meaning: dict[str, LayerKind]) -> list[LayerKind]:
    """Return the kinds that the list *key* names.

    Raises:
        InputError: If an entry is not understood in this architecture.
    """
    kinds = []
    entries = fields.items(key) or []
    # Entries past the layers belong to the extra layers that predict further tokens.
    if len(entries) == layers + (fields.optional("mtp_layers", low=0) or 0):
        entries = entries[:layers]
    if len(entries) != layers:
        fields.items(key, length=layers)
    for i, name in enumerate(entries):
        kind = meaning.get(name) if isinstance(name, str) else None
        if kind is None:
            known = ", ".join(meaning)
            fields.fail(
                f"{key}[{i}]",
                f"{str(name)[:40]!r} is not understood in {fields.architecture}; known: {known}",
            )
        kinds.append(kind)
    return kinds
