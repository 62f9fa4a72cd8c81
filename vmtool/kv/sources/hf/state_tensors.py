"""The state tensors of recurrent layers in Hugging Face configs, as vLLM's state shapes count them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.kv.geometry import StatePart, StateTensor
from vmtool.kv.sources.hf.attention_tensors import head_dim, heads, jet_config, kv_heads
from vmtool.kv.sources.hf.dtype_and_context import dtype_of

if TYPE_CHECKING:
    from vmtool.kv.sources.fields import Fields


def _ssm_dtype(fields: Fields) -> str | None:
    """Return the type of the SSM state: a field of its own, or the model's.

    So has vLLM it for all (``_mamba_state_dtype`` in ``mamba_utils.py``) but Nemotron-H, where an
    absent field means fp32 (``NemotronHForCausalLMConfig`` in ``models/config.py``).
    """
    for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        dtype = dtype_of(fields, key)
        if dtype is not None:
            fields.stated("ssm_dtype", dtype, key)
            return dtype
    if fields.architecture.startswith("nemotron_h") and not fields.has("mamba_ssm_cache_dtype"):
        fields.defaulted("ssm_dtype", "fp32", "vLLM's default where no state type is given")
        return "fp32"
    fields.defaulted("ssm_dtype", "model", "no state type is given: the model's own")
    return None


def gated_delta(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of a gated delta net: conv over q, k and v, and a matrix a value head."""
    keys, values = fields.integer("linear_k_heads"), fields.integer("linear_v_heads")
    dim_k, dim_v = fields.integer("linear_dim_k"), fields.integer("linear_dim_v")
    taps = fields.integer("conv_kernel") - 1
    return (
        StateTensor(
            "conv", (StatePart(keys, 2 * dim_k * taps), StatePart(values, dim_v * taps)), taps=taps
        ),
        StateTensor("recurrent", (StatePart(values, dim_v * dim_k),), _ssm_dtype(fields)),
    )


def jet(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of a Jet block, as ``JetNemotronConfig`` of SGLang has them."""
    config = jet_config(fields, "jet")
    count, dim = config.integer("num_heads"), config.integer("head_dim")
    taps = config.integer("conv_size") - 1
    factor = config.raw("expand_v")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 16:
        config.fail("expand_v", f"is {str(factor)[:40]}; it must be a number above 0")
    values = int(dim * factor)
    return (
        StateTensor("conv", (StatePart(count, (2 * dim + values) * taps),), taps=taps),
        StateTensor("recurrent", (StatePart(count, values * dim),), _ssm_dtype(fields)),
    )


def mamba1(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of Mamba-1: each inner channel has a conv tail and ``d_state`` values."""
    inner = fields.optional("ssm_inner")
    if inner is None:
        expand, hidden = fields.integer("ssm_expand"), fields.integer("hidden")
        inner = expand * hidden
        fields.derived("ssm_inner", inner, f"expand x hidden = {expand} x {hidden}")
    taps = fields.integer("conv_kernel") - 1
    return (
        StateTensor("conv", (StatePart(inner, taps),), taps=taps),
        StateTensor("ssm", (StatePart(inner, fields.integer("ssm_state")),), _ssm_dtype(fields)),
    )


def mamba2(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of Mamba-2: conv over x, B and C, and a matrix for each head."""
    count = fields.integer("ssm_heads")
    dim = _mamba2_head_dim(fields, count)
    groups, state = fields.integer("ssm_groups"), fields.integer("ssm_state")
    taps = fields.integer("conv_kernel") - 1
    return (
        StateTensor(
            "conv",
            (StatePart(count, dim * taps), StatePart(groups, 2 * state * taps, replicates=True)),
            taps=taps,
        ),
        StateTensor("ssm", (StatePart(count, dim * state),), _ssm_dtype(fields)),
    )


def _mamba2_head_dim(fields: Fields, count: int) -> int:
    """Return the width of a Mamba-2 head; ``"auto"`` and null mean expand x hidden / heads."""
    key = fields.names["ssm_head_dim"][0]
    if fields.raw(key) != "auto":
        dim = fields.optional("ssm_head_dim")
        if dim is not None:
            return dim
    expand, hidden = fields.integer("ssm_expand"), fields.integer("hidden")
    if expand * hidden % count:
        fields.fail(key, f"is not given, and {expand} x {hidden} / {count} is not a whole number")
    dim = expand * hidden // count
    fields.derived("ssm_head_dim", dim, f"expand x hidden / heads = {expand} x {hidden} / {count}")
    return dim


def falcon_h1(fields: Fields) -> tuple[StateTensor, ...]:
    """Return Mamba-2 states whose inner width is ``mamba_d_ssm`` where that is given."""
    states = mamba2(fields)
    inner = fields.optional("ssm_inner")
    count, dim = fields.integer("ssm_heads"), fields.integer("ssm_head_dim")
    if inner is not None and inner != count * dim:
        fields.fail("mamba_d_ssm", f"is {inner}, but heads x head width is {count} x {dim}")
    return states


def gated_linear(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of RecurrentGemma: a conv tail, and a value in fp32 for each channel.

    ``RecurrentGemmaRecurrentBlock._setup_cache`` of transformers.
    """
    hidden, taps = fields.integer("hidden"), fields.integer("conv_kernel") - 1
    width = fields.optional("lru_width") or hidden
    return (
        StateTensor("conv", (StatePart(hidden, taps),), taps=taps),
        StateTensor("recurrent", (StatePart(width, 1),), "fp32"),
    )


def short_conv(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the state of an LFM2 short convolution: ``conv_L_cache`` - 1 past inputs.

    vLLM keeps kernel - 1; LFM2 calls the kernel ``conv_L_cache``.
    """
    width = fields.optional("conv_dim") or fields.integer("hidden")
    taps = fields.integer("conv_kernel") - 1
    return (StateTensor("conv", (StatePart(width, taps),), taps=taps),)


def lightning(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the state of MiniMax's lightning attention: a square matrix for each query head."""
    count, dim = heads(fields), head_dim(fields)
    return (StateTensor("recurrent", (StatePart(count, dim * dim),)),)


def kimi_delta(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of Kimi delta attention; vLLM keeps the recurrent one in fp32 always."""
    config = fields.nested("linear_attn_config")
    if config is not None:
        config.names = {
            "linear_heads": ("num_heads",),
            "linear_dim": ("head_dim",),
            "conv_kernel": ("short_conv_kernel_size",),
        }
    place = config or fields  # transformers 5 writes them beside the other fields
    count, dim = place.integer("linear_heads"), place.integer("linear_dim")
    taps = place.integer("conv_kernel") - 1
    return (
        StateTensor("conv", (StatePart(count, 3 * dim * taps),), taps=taps),
        StateTensor("recurrent", (StatePart(count, dim * dim),), "fp32"),
    )


def rwkv(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of RWKV-5 and RWKV-6: two shifted inputs and a matrix for each head."""
    hidden, dim = fields.integer("hidden"), fields.integer("head_dim")
    inner = fields.optional("inner") or hidden
    if inner % dim:
        fields.fail(fields.names["head_dim"][0], f"is {dim}, which does not divide {inner}")
    shifted = fields.optional("shift_count") or 2
    return (
        StateTensor("shift", (StatePart(1, shifted * hidden, replicates=True),)),
        StateTensor("recurrent", (StatePart(inner // dim, dim * dim),), "fp32"),
    )


def rwkv4(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of RWKV-4: two shifted inputs, and three values for each channel."""
    hidden = fields.integer("hidden")
    inner = fields.optional("inner") or hidden
    return (
        StateTensor("shift", (StatePart(1, 2 * hidden, replicates=True),)),
        StateTensor("recurrent", (StatePart(inner, 3),), "fp32"),
    )


def xlstm(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of xLSTM: for each head a matrix, a vector and a maximum.

    ``xLSTMCache`` of transformers; widths are rounded up as ``xLSTMConfig`` has it.
    """
    hidden, count = fields.integer("hidden"), heads(fields)
    unit = fields.checked(
        "mlstm_round_up_to_multiple_of", fields.raw("mlstm_round_up_to_multiple_of") or 64
    )

    def width(key: str, default: float) -> int:
        factor = fields.raw(key)
        factor = default if factor is None else factor
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 16:
            fields.fail(key, f"is {str(factor)[:40]}; it must be a number above 0")
        return -(-int(hidden * factor) // unit) * unit

    keys, values = width("qk_dim_factor", 0.5), width("v_dim_factor", 1.0)
    dim_k, dim_v = keys // count, values // count
    dtype = dtype_of(fields, "inference_state_dtype") or "fp32"
    return (StateTensor("recurrent", (StatePart(count, dim_k * dim_v + dim_k + 1),), dtype),)


def inkling(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of a full layer of Inkling: past inputs of K, V, attention and MLP.

    Four short convolutions of transformers' ``modeling_inkling.py``, in fp32.
    """
    return _inkling(fields, kv_heads(fields), head_dim(fields))


def inkling_window(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of a layer of Inkling with a window, which has heads of its own."""
    if not fields.given("swa_kv_heads"):
        return inkling(fields)
    return _inkling(fields, fields.integer("swa_kv_heads"), fields.integer("swa_head_dim"))


def _inkling(fields: Fields, count: int, dim: int) -> tuple[StateTensor, ...]:
    taps, hidden = fields.integer("conv_kernel") - 1, fields.integer("hidden")
    parts = (
        StatePart(count, 2 * dim * taps, replicates=True),
        StatePart(1, 2 * hidden * taps, replicates=True),
    )
    return (StateTensor("conv", parts, "fp32"),)


def zaya(fields: Fields) -> tuple[StateTensor, ...]:
    """Return the states of ZAYA's compressed attention: past Q and K, and a delayed half of V.

    ``ZayaCCA`` of transformers: two convolutions, one after the other.
    """
    query, count, dim = heads(fields), kv_heads(fields), head_dim(fields)
    taps = fields.integer("cca_time0") - 1 + fields.integer("cca_time1") - 1
    return (
        StateTensor("conv", (StatePart(query, dim * taps), StatePart(count, dim * taps))),
        StateTensor("recurrent", (StatePart(count, dim // 2),)),
    )
