"""Element formats: the bytes of a row, names, and what cannot be stored."""

import pytest

from vmtool.errors import UsageError
from vmtool.kv.element_formats import FORMATS, choose_formats, find_format
from vmtool.kv.geometry import StatePart, StateTensor, Tensor, TensorRole
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources.model_lookup import load

KEY = Tensor("k", TensorRole.KEY, 8, 128)
LATENT = Tensor("latent", TensorRole.LATENT, 1, 576, rope_dim=64)
INDEX = Tensor("index", TensorRole.INDEX, 1, 128)

# 8 heads of 128 elements, and one latent row of 512 + 64: ggml's type table (q8_0: a fp16 scale and
# 32 bytes, and so on), vLLM's kv_cache_interface.py (4-byte scales; dim/2 + dim/16; 656).
BYTES = {
    "fp32": (4096, 2304),
    "fp16": (2048, 1152),
    "bf16": (2048, 1152),
    "fp8": (1024, 576),
    "uint8": (1024, 576),
    "fp8_per_token_head": (1056, 580),
    "int8_per_token_head": (1056, 580),
    "int4_per_token_head": (544, 292),
    "nvfp4": (576, 324),
    "q8_0": (1088, 612),
    "q5_0": (704, 396),
    "q5_1": (768, 432),
    "q4_0": (576, 324),
    "mxfp4": (544, 306),
    "tq3_0": (448, 252),
    "q4_1": (640, 360),
    "iq4_nl": (576, 324),
}


@pytest.mark.parametrize("name", BYTES)
def test_a_row_takes_the_bytes_that_the_engines_give_it(name):
    found = find_format(name)
    assert (8 * found.bytes_per_row(KEY), found.bytes_per_row(LATENT)) == BYTES[name]


def test_every_format_is_in_the_table_above_or_is_for_latents_only():
    assert set(FORMATS) == {*BYTES, "fp8_ds_mla", "fp8_ds_v4"}


def test_fp8_ds_v4_is_584_bytes():
    # vLLM: 448 B of fp8, 8 B of scales and padding, 64 bf16 positions.
    latent = Tensor("latent", TensorRole.LATENT, 1, 512, rope_dim=64)
    assert find_format("fp8_ds_v4").bytes_per_row(latent) == 448 + 8 + 128


def test_fp8_ds_mla_is_656_bytes_and_for_latents_only():
    # vLLM: 512 B of fp8, four fp32 scales, 64 bf16 positions.
    assert find_format("fp8_ds_mla").bytes_per_row(LATENT) == 512 + 16 + 128
    with pytest.raises(UsageError, match="k rows of 128 elements: it is a format of latent"):
        find_format("fp8_ds_mla").bytes_per_row(KEY)


def test_sparse_attention_index_keys_take_132_bytes_in_every_cache():
    formats = choose_formats("bf16", key="q4_0", value="q4_0")
    assert formats.of(INDEX).bytes_per_row(INDEX) == 128 + 4


@pytest.mark.parametrize(
    ("dtype", "index", "token"),
    [
        ("fp8", "bf16", 60 * 1024 + 57 * 256),
        ("nvfp4", "bf16", 60 * 576 + 57 * 256),
        (None, "bf16", 60 * 2048 + 57 * 256),
    ],
)
def test_index_keys_beside_k_and_v_stay_in_the_models_type(dtype, index, token):
    formats = choose_formats("bf16", key=dtype, value=dtype)
    cost = SequenceCost.of(load("minimax-m3"), formats)
    assert cost.slope == token
    assert {t.format_name for _, t in cost.tensors() if t.name == "index_k"} == {index}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("F16", "fp16"),
        ("bfloat16", "bf16"),
        ("fp8-e4m3", "fp8"),
        ("int8", "int8_per_token_head"),
        ("int4", "int4_per_token_head"),
        (" Q8_0 ", "q8_0"),
        ("iq4-nl", "iq4_nl"),
        ("ds_mla", "fp8_ds_mla"),
    ],
)
def test_formats_have_other_spellings(spelling, name):
    assert find_format(spelling).name == name


def test_aliases_mean_one_format_each():
    names = [name for item in FORMATS.values() for name in (item.name, *item.aliases)]
    assert len(names) == len(set(names))


def test_an_unknown_format_names_the_closest():
    with pytest.raises(UsageError, match="unknown element format 'q8_1'") as caught:
        find_format("q8_1")
    assert "q8_0" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "dim", "group"), [("q8_0", 80, 32), ("q4_0", 100, 32), ("nvfp4", 72, 16)]
)
def test_a_row_that_groups_do_not_divide_is_refused_by_name(name, dim, group):
    with pytest.raises(
        UsageError, match=f"v rows of {dim} elements.*multiple of its group of {group}"
    ):
        find_format(name).bytes_per_row(Tensor("v", TensorRole.VALUE, 4, dim))


def test_int4_needs_an_even_row():
    with pytest.raises(UsageError, match="multiple of its group of 2"):
        find_format("int4").bytes_per_row(Tensor("k", TensorRole.KEY, 1, 65))


def test_k_and_v_can_differ_and_latents_follow_k():
    formats = choose_formats("fp16", key="q8_0", value="q4_0")
    value = Tensor("v", TensorRole.VALUE, 8, 128)
    assert [formats.of(tensor).name for tensor in (KEY, value, LATENT)] == ["q8_0", "q4_0", "q8_0"]


@pytest.mark.parametrize(
    ("stated", "used"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "bf16"), (None, "bf16")]
)
def test_without_a_name_the_cache_has_16_bits(stated, used):
    # vLLM's dtype "auto" serves fp32 checkpoints in the first type that the platform supports, which
    # is bf16 from compute capability 8.0 on (config/model.py, platforms/cuda.py).
    assert choose_formats(stated, key=None, value=None).key.name == used


def test_a_given_format_overrides_that_of_the_checkpoint():
    formats = choose_formats("fp16", key=None, value=None, cache_dtype="fp8")
    assert [formats.key.name, formats.value.name, formats.state.name] == ["fp8", "fp8", "fp16"]
    formats = choose_formats("fp16", key="bf16", value="bf16", cache_dtype="fp8")
    assert [formats.key.name, formats.value.name] == ["bf16", "bf16"]


def test_states_keep_their_own_type_or_the_models():
    part = StatePart(2, 10)
    formats = choose_formats("bf16", key="fp8", value="fp8")
    assert formats.state_bytes(StateTensor("ssm", (part,), "fp32")) == 80
    assert formats.state_bytes(StateTensor("conv", (part,))) == 40


def test_a_format_of_k_leaves_v_as_it_is():
    assert choose_formats("fp16", key="q8_0", value=None).value.name == "fp16"
    assert choose_formats("bf16", key=None, value="q8_0").key.name == "bf16"
    assert choose_formats("bf16", key="bf16", value=None, cache_dtype="fp8").value.name == "fp8"
