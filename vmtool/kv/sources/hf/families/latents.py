"""Architectures whose layers keep a latent for each token (MLA, DeepSeek-V4), and its tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vmtool.kv.geometry import (
    Extent,
    Layer,
    LayerKind,
    Span,
    StatePart,
    StateTensor,
    Tensor,
    TensorRole,
    pair,
)
from vmtool.kv.sources.fields import MAX_LAYERS, MAX_TOKENS
from vmtool.kv.sources.hf import layer_kinds, shared_and_repeated_layers
from vmtool.kv.sources.hf.attention_tensors import extent, head_dim, heads, kv_heads
from vmtool.kv.sources.hf.family import Family

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the one latent row of MLA: ``kv_lora_rank`` and the shared rope key."""
    del kind
    rank = fields.integer("kv_lora_rank")
    rope = fields.integer("qk_rope_head_dim", low=0)
    fields.derived("latent_dim", rank + rope, f"kv_lora_rank + qk_rope_head_dim = {rank} + {rope}")
    return (Tensor("latent", TensorRole.LATENT, 1, rank + rope, rope_dim=rope),)


def _latent_or_not(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row of MLA, or K and V where a DeepSeek-V2 file says ``use_mla: false``.

    Their heads are as wide as in Llama (vLLM's ``DeepseekAttention`` in ``models/deepseek_v2.py``).
    """
    if kind is LayerKind.MLA:
        return latent(fields, kind)
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"):
        if fields.raw(key):
            fields.fail(key, "is set, but use_mla is false")
    count, dim = kv_heads(fields), head_dim(fields)
    return pair(count, dim, dim, extent(fields, kind))


def _padded_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return K and V of MiniCPM3, which vLLM keeps for every head, with V padded to K's width.

    ``MiniCPM3Attention`` in ``models/minicpm3.py``: it makes K and V of the latent before it caches.
    """
    nope, rope = fields.integer("qk_nope_head_dim"), fields.integer("qk_rope_head_dim")
    count, dim = heads(fields), nope + rope
    fields.derived("kv_heads", count, "every query head has its own: kv_heads = heads")
    fields.derived("head_dim", dim, f"qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}")
    return pair(count, dim, dim, extent(fields, kind))


def _two_latents(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the two latents of a LongCat layer, which has two attention blocks."""
    (row,) = latent(fields, kind)
    return tuple(
        Tensor(name, row.role, row.heads, row.dim, row.extent, row.rope_dim)
        for name in ("latent_0", "latent_1")
    )


def _indexed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row and the indexer's key of DeepSeek sparse attention."""
    dim = fields.integer("index_head_dim")
    return (*latent(fields, kind), Tensor("index", TensorRole.INDEX, 1, dim))


def pooled_indexed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the latent row of GLM-5 Next, and the indexer's key, its gate and a mark.

    ``Glm5NextIndexer`` of transformers keeps them side by side in the model's type, and pools them when
    it selects.
    """
    row, index = _indexed_latent(fields, kind)
    if not fields.optional("index_kpool"):
        return row, index
    width = 2 * index.dim + 1
    fields.derived("index_dim", width, f"2 x index_head_dim + 1 = 2 x {index.dim} + 1")
    return row, replace(index, dim=width, own_type=True)


def _indexed_or_windowed_latent(fields: Fields, kind: LayerKind) -> tuple[Tensor, ...]:
    """Return the tensors of dots3 Note: a latent with an index, or one of a window without."""
    if kind is not LayerKind.WINDOW:
        return _indexed_latent(fields, kind)
    (row,) = latent(fields, kind)
    return (replace(row, extent=extent(fields, kind)),)


def _deepseek_v4(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V4: a window of latents in every layer, and one entry for every *ratio* tokens.

    Layers of ratio 4 pool overlapping pairs of groups and index the entries; the open groups wait
    in fp32 (vLLM's compressor state: rows of key and gate, two groups of two halves at ratio 4).
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    ratios = _ratios(fields)
    if len(ratios) < count:
        fields.fail("compress_ratios", f"has {len(ratios)} entries for {count} layers")
    fields.stated("layer_kinds", f"{count} ratios", "compress_ratios")
    if fields.integer("kv_heads") != 1:
        fields.fail("num_key_value_heads", "must be 1: K and V are one row for all heads")
    rope = fields.integer("qk_rope_head_dim", high=fields.integer("head_dim"))
    return deepseek_v4_layers(fields, ratios[:count], rope)


def _deepseek_v4_mtp(fields: Fields, count: int) -> tuple[Layer, ...] | None:
    """Return the *count* layers that only predict further tokens: their ratios follow the others'.

    DSpark has as many as it reads layers of the model, whatever *count* is. Source:
    ``deepseek_v4/nvidia/mtp.py`` of vLLM 0.33, whose layers go on counting, and
    ``deepseek_v4_dspark.py`` of SGLang 0.5.23.
    """
    read = fields.integers("dspark_target_layer_ids")
    if read:
        count = len(read)
        fields.stated("mtp_layers", count, "dspark_target_layer_ids")
    ratios = _ratios(fields)[fields.integer("layers", high=MAX_LAYERS) :]
    if len(ratios) < count:
        return None
    return deepseek_v4_layers(fields, ratios[:count], fields.integer("qk_rope_head_dim"))


def _deepseek_v41(fields: Fields) -> tuple[Layer, ...]:
    """DeepSeek-V4.1: a window of latents in every layer; some keep entries that later ones read too.

    Those of ``kv_source_layer_ids`` compress 1 or 2 tokens into an entry, and index the entries; each
    other one reads those of the last before it. Of 2 tokens, the open ones wait in fp32 (vLLM's
    compressor state: eight rows of key and gate).
    """
    count = fields.integer("layers", high=MAX_LAYERS)
    ratios = fields.integers("compress_ratios", high=2)
    sources = fields.integers("kv_source_layer_ids", high=count - 1)
    if ratios is None or sources is None:
        missing = "compress_ratios" if ratios is None else "kv_source_layer_ids"
        fields.fail(missing, "is missing: it says what each layer keeps")
    if len(ratios) < count:
        fields.fail("compress_ratios", f"has {len(ratios)} entries for {count} layers")
    if fields.integer("kv_heads") != 1:
        fields.fail("num_key_value_heads", "must be 1: K and V are one row for all heads")
    dim = fields.integer("head_dim")
    rope = fields.integer("qk_rope_head_dim", high=dim)
    index = fields.integer("index_head_dim")
    recent = _window(fields, dim, rope)
    made = []
    for i, ratio in enumerate(ratios[:count]):
        source = max((source for source in sources if source <= i), default=None)
        if ratio and source is None:
            fields.fail(
                f"compress_ratios[{i}]", f"is {ratio}, but no layer before it keeps entries"
            )
        if source != i:
            shares = source if ratio else None
            made.append(Layer(i, LayerKind.WINDOW, (recent,), shares=shares))
            continue
        if not ratio:
            fields.fail("kv_source_layer_ids", f"holds {i}, which compresses nothing")
        tensors = (
            recent,
            Tensor("latent", TensorRole.LATENT, 1, dim, Extent(ratio=ratio), rope),
            Tensor("index", TensorRole.INDEX, 1, index, Extent(ratio=ratio)),
        )
        states = (_open_groups("open", 8, 2 * dim),) if ratio > 1 else ()
        made.append(Layer(i, LayerKind.COMPRESSED, tensors, states))
    fields.stated("layer_kinds", f"{len(sources)} of {count} keep entries", "kv_source_layer_ids")
    return tuple(made)


def _deepseek_v41_mtp(fields: Fields, count: int) -> tuple[Layer, ...]:
    """Return the *count* layers that predict draft tokens (DSpark), which have a window alone."""
    recent = _window(fields, fields.integer("head_dim"), fields.integer("qk_rope_head_dim"))
    return tuple(Layer(i, LayerKind.WINDOW, (recent,)) for i in range(count))


def _window(fields: Fields, dim: int, rope: int) -> Tensor:
    extent = Extent(Span.WINDOW, fields.integer("window", high=MAX_TOKENS))
    return Tensor("window", TensorRole.LATENT, 1, dim, extent, rope)


def _ratios(fields: Fields) -> list[int]:
    found = fields.integers("compress_ratios")
    return _ratios_of_types(fields) if found is None else found


def deepseek_v4_layers(fields: Fields, ratios: list[int], rope: int) -> tuple[Layer, ...]:
    """Return the layers of DeepSeek-V4 with the given *ratios* and positions of *rope* elements."""
    dim = fields.integer("head_dim")
    recent = _window(fields, dim, rope)
    index = fields.integer("index_head_dim")
    made = {
        0: Layer(0, LayerKind.WINDOW, (recent,)),
        4: Layer(
            0,
            LayerKind.COMPRESSED,
            (
                recent,
                Tensor("latent", TensorRole.LATENT, 1, dim, Extent(ratio=4), rope),
                Tensor("index", TensorRole.INDEX, 1, index, Extent(ratio=4)),
            ),
            (_open_groups("open", 8, 4 * dim), _open_groups("open_index", 8, 4 * index)),
        ),
        128: Layer(
            0,
            LayerKind.COMPRESSED,
            (recent, Tensor("latent", TensorRole.LATENT, 1, dim, Extent(ratio=128), rope)),
            (_open_groups("open", 128, 2 * dim),),
        ),
    }
    for i, ratio in enumerate(ratios):
        if ratio not in made:
            fields.fail(f"compress_ratios[{i}]", f"is {ratio}; known ratios are 0, 4 and 128")
    return tuple(replace(made[ratio], index=i) for i, ratio in enumerate(ratios))


def _ratios_of_types(fields: Fields) -> list[int]:
    """Return the ratios that transformers' names of layers mean, with its ``compress_rates``."""
    rates = fields.nested("compress_rates")
    sparse = rates.optional("compressed_sparse_attention") if rates else None
    heavy = rates.optional("heavily_compressed_attention") if rates else None
    meaning = {
        "sliding_attention": 0,
        "compressed_sparse_attention": sparse or 4,
        "heavily_compressed_attention": heavy or 128,
    }
    ratios = []
    for i, name in enumerate(fields.items("layer_types") or []):
        if name not in meaning:
            fields.fail(f"layer_types[{i}]", f"{str(name)[:40]!r} is not understood")
        ratios.append(meaning[name])
    if not ratios:
        fields.fail("compress_ratios", "is missing: it says how each layer compresses")
    return ratios


def _open_groups(name: str, rows: int, width: int) -> StateTensor:
    return StateTensor(name, (StatePart(1, rows * width, replicates=True),), "fp32")


MLA_HARMLESS = frozenset(
    {"head_dim", "num_key_value_heads", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim"}
    | {"v_head_dim"}
)
_MLA = Family(
    plan=layer_kinds.all_of(LayerKind.MLA),
    attention=latent,
    meaning={"full_attention": LayerKind.MLA},
    harmless=MLA_HARMLESS,
)
SPARSE_MLA = Family(
    plan=layer_kinds.all_of(LayerKind.MLA),
    attention=_indexed_latent,
    meaning=dict.fromkeys(
        ("full_attention", "indexed_attention", "deepseek_sparse_attention"), LayerKind.MLA
    ),
    defaults={"index_head_dim": 128},
    finish=shared_and_repeated_layers.shared_indexes,
    harmless=MLA_HARMLESS
    | {"index_n_heads", "index_topk", "index_topk_freq", "index_topk_pattern"}
    | {"index_skip_topk_offset", "index_share_for_mtp_iteration"},
)
_DEEPSEEK_V4_HARMLESS = frozenset(
    {"compress_rope_theta", "index_n_heads", "index_topk", "o_lora_rank", "q_lora_rank"}
)
_MLA_MODELS = (
    "pangu_ultra_moe axk1 deepseek_v3 glm4_moe_lite kimi_k2 kimi_k25 mistral4 sarvam_mla youtu"
)
LATENTS: dict[str, Family] = {
    **dict.fromkeys(_MLA_MODELS.split(), _MLA),
    "deepseek_v2": Family(
        plan=layer_kinds.latent_unless_off,
        attention=_latent_or_not,
        meaning={"full_attention": LayerKind.MLA},
        harmless=MLA_HARMLESS,
    ),
    "minicpm3": Family(attention=_padded_latent, harmless=MLA_HARMLESS | {"kv_lora_rank"}),
    **dict.fromkeys(
        ("longcat_flash", "longcat_flash_ngram"),
        Family(
            plan=layer_kinds.all_of(LayerKind.MLA),
            attention=_two_latents,
            harmless=MLA_HARMLESS,
        ),
    ),
    **dict.fromkeys(
        ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "mistral_large4_text"),
        SPARSE_MLA,
    ),
    **dict.fromkeys(
        ("dots3_note", "dots3_note_text"),
        Family(
            plan=layer_kinds.unlisted,
            attention=_indexed_or_windowed_latent,
            meaning={**SPARSE_MLA.meaning, "sliding_attention": LayerKind.WINDOW},
            finish=shared_and_repeated_layers.shared_indexes,
            harmless=SPARSE_MLA.harmless,
        ),
    ),
    # SGLang's copies of its files have the second name.
    **dict.fromkeys(
        ("deepseek_v4", "deepseek_ref"),
        Family(
            build=_deepseek_v4,
            mtp=_deepseek_v4_mtp,
            harmless=_DEEPSEEK_V4_HARMLESS,
        ),
    ),
    **dict.fromkeys(
        ("deepseek_v41", "deepseek_v41_text"),
        Family(
            build=_deepseek_v41,
            mtp=_deepseek_v41_mtp,
            harmless=_DEEPSEEK_V4_HARMLESS
            | {"engram_compressed_vocab_size", "engram_head_dim", "index_source_layer_ids"},
            source="models/deepseek_v4_1/attention.py of vLLM 0.33",
        ),
    ),
}
