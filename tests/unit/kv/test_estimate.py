"""Tokens on granules: how many fit, the tail, what tiles, and the block to choose."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmtool
from vmtool.errors import UsageError
from vmtool.kv.element_formats import choose_formats
from vmtool.kv.estimate import estimate, fit, fullest_rank, suggest_block, tiles
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources import model_lookup
from vmtool.units import GIB, MIB

KIB4, KIB64, MIB2 = 4096, 65536, 2 << 20

# Bytes of a token in one tensor, then tokens and tail on 4 KiB, 64 KiB and 2 MiB, then the tokens and
# granules that tile 2 MiB. Worked out by hand for Llama-3-8B, DeepSeek's latent, Phi-2 and MiMo.
WORKED = {
    "llama-3-8b bf16": (2048, (2, 0), (32, 0), (1024, 0), (1024, 1)),
    "llama-3-8b q8_0": (1088, (3, 832), (60, 256), (1927, 576), (32_768, 17)),
    "llama-3-8b q4_0, nvfp4": (576, (7, 64), (113, 448), (3640, 512), (32_768, 9)),
    "llama-3-8b int8": (1056, (3, 928), (62, 64), (1985, 992), (65_536, 33)),
    "latent bf16": (1152, (3, 640), (56, 1024), (1820, 512), (16_384, 9)),
    "latent fp8_ds_mla": (656, (6, 160), (99, 592), (3196, 576), (131_072, 41)),
    "latent q8_0": (612, (6, 424), (107, 52), (3426, 440), (524_288, 153)),
    "phi-2": (5120, (0, 4096), (12, 4096), (409, 3072), (2048, 5)),
    "mimo k": (1536, (2, 1024), (42, 1024), (1365, 512), (4096, 3)),
    "mimo v": (1024, (4, 0), (64, 0), (2048, 0), (2048, 1)),
}
# Tails as they are published, rounded.
PARTS = [(1088, KIB4, 0.203), (1152, KIB64, 0.0156), (656, KIB64, 0.0090), (5120, MIB2, 0.0015)]


@pytest.mark.parametrize("name", WORKED)
def test_worked_granule_numbers(name):
    token, *on_granules, tile = WORKED[name]
    found = [fit(token, granule) for granule in (KIB4, KIB64, MIB2)]
    assert [(item.tokens, item.tail_bytes) for item in found] == on_granules
    assert (found[-1].tile_tokens, found[-1].tile_granules) == tile


@pytest.mark.parametrize(("token", "granule", "part"), PARTS)
def test_the_tail_as_a_part_of_the_granule(token, granule, part):
    assert fit(token, granule).tail_bytes / granule == pytest.approx(part, abs=0.0005)


def test_a_token_larger_than_the_granule_says_how_many_granules_it_takes():
    found = fit(5120, KIB4)
    assert (found.tokens, found.granules_per_token) == (0, 2)


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 32))
def test_tokens_and_tail_make_up_the_granule(token, granule):
    found = fit(token, granule)
    assert found.tokens * token + found.tail_bytes == granule
    assert 0 <= found.tail_bytes < token
    assert found.tile_tokens * token == found.tile_granules * granule
    assert (found.granules_per_token - 1) * granule < token <= found.granules_per_token * granule


@pytest.mark.parametrize(("token", "granule"), [(0, 4096), (-1, 4096), (4096, 0)])
def test_sizes_must_be_positive(token, granule):
    with pytest.raises(UsageError, match="not positive"):
        fit(token, granule)


def test_a_block_of_784_tokens_becomes_1024():
    # kvcached's test log: 784 -> 1024 tokens, so that 4096 B * 1024 = 4 MiB, two granules.
    assert not tiles(784, 4096, MIB2)
    assert suggest_block(784, 4096, MIB2) == 1024


def test_a_block_that_tiles_is_kept():
    assert tiles(16, 2048, MIB2)
    assert suggest_block(16, 2048, MIB2) == 16
    assert suggest_block(2048, 2048, MIB2) == 2048


# Random sizes seldom divide a granule, and those that do are the ones that engines have.
TOKENS = st.integers(1, 5000) | st.integers(0, 12).map(lambda power: 1 << power)


@given(st.integers(1, 3000), TOKENS, st.sampled_from([KIB4, KIB64]))
def test_the_suggested_block_is_the_smallest_that_tiles(block, token, granule):
    found = suggest_block(block, token, granule)
    assert found >= block
    assert tiles(found, token, granule)
    assert not any(tiles(n, token, granule) for n in range(block, min(found, block + 2000)))


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("length", [1024, 8192])
def test_the_stage_of_a_pipeline_is_the_one_with_most_bytes_at_the_length(pp, length):
    for name in model_lookup.builtin_names():
        model = model_lookup.load(name)
        formats = choose_formats(model.dtype, key=None, value=None)
        try:
            rank = fullest_rank(model, formats, length, pp=pp)
        except UsageError:  # a stage would read another's K and V
            assert any(layer.shares is not None for layer in model.layers), name
            continue
        count, more = divmod(len(model.layers), pp)
        ends = [0]
        for stage in range(pp):  # the remainder goes to the stages before the last
            ends.append(ends[-1] + count + (pp - 1 - more <= stage < pp - 1))
        most = max(
            SequenceCost.of(replace(model, layers=model.layers[a:b]), formats).bytes_for(length)
            for a, b in pairwise(ends)
        )
        assert SequenceCost.of(rank, formats).bytes_for(length) == most, name


def test_a_short_sequence_fills_the_stage_of_windows():
    answer = estimate("gemma-4-26b-a4b", pp=4, context=1024)
    assert answer.sequence.at_context_bytes == 60 * MIB


@pytest.mark.parametrize("model", ["gemma-4-26b-a4b", "command-r7b", "gemma-2-9b"])
def test_what_a_pipeline_holds_does_not_depend_on_the_stage_that_is_shown(model):
    short, long = (estimate(model, 10 * GIB, pp=3, context=n) for n in (1024, None))
    assert short.answer.max_tokens.fits == long.answer.max_tokens.fits


@pytest.mark.parametrize(
    "wrong", [{"budget": -1}, {"budget": 0}, {"context": 0}, {"sequences": 0}, {"weights": -1}]
)
def test_a_question_out_of_range_is_refused(wrong):
    name = next(iter(wrong))
    with pytest.raises(UsageError, match=f"{name}.* (must be at least 1|cannot be negative)"):
        estimate("llama-3.1-8b", **{"budget": GIB, **wrong})


def test_the_library_example_of_the_page_runs(capsys):
    page = (Path(__file__).parents[3] / "docs" / "kv-estimate.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)  # noqa: S102 - the page is ours
    # 32 layers of 8 KV heads of 128, K and V in 1 byte, on two ranks; 16 GiB of such tokens.
    assert capsys.readouterr().out.split() == ["32768", "524288", "64"]
    assert isinstance(names["result"], vmtool.EstimateResult)
