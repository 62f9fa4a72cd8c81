"""What llama.cpp logged, worked out again for the same context."""

import json
import sys
from pathlib import Path

import pytest

from vmtool.errors import UsageError
from vmtool.kv.element_formats import choose_formats
from vmtool.kv.engines.llamacpp import (
    LlamaCppSettings,
    as_llamacpp,
    llamacpp_buffers,
    log_line,
    mtp_buffers,
)
from vmtool.kv.estimate import Question
from vmtool.kv.estimate_result import FormatOrigin
from vmtool.kv.geometry import Extent, Layer, LayerKind, ModelGeometry, Span, Tensor, TensorRole
from vmtool.kv.sources import model_lookup
from vmtool.units import MIB

SCRIPTS = Path(__file__).parents[4] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from oracle import expected_lines  # noqa: E402 - a script, not a module of the package


def buffers(name, context, key="f16", value=None, **settings):
    geometry = model_lookup.load(name)
    formats = choose_formats(geometry.dtype, key=key, value=value or key)
    return llamacpp_buffers(geometry, formats, LlamaCppSettings(context, **settings))


@pytest.mark.parametrize(
    ("name", "context", "dtype", "settings", "sizes"),
    [
        # unsloth issue 10489: 262,144 cells of 8 layers, 1536 cells of 40.
        ("gemma-4-12b", 262_144, "q8_0", {}, [(262_144, 8, 2176), (1536, 40, 255)]),
        # Public logs; 1600 and 60 MiB fit 102,400 cells and a step of 1024 tokens.
        ("gemma-4-e4b", 102_400, "f16", {"ubatch": 1024}, [(102_400, 4, 1600), (1536, 20, 60)]),
        ("gemma-4-12b", 8192, "f16", {}, [(8192, 8, 128), (1536, 40, 480)]),
        ("gemma-4-e2b", 131_072, "f16", {}, [(131_072, 3, 768), (1024, 12, 12)]),
        # A public log; four sequences that share a buffer and steps of 2048 tokens give 6144.
        (
            "gemma-4-12b",
            8192,
            "f16",
            {"sequences": 4, "ubatch": 2048, "unified": True},
            [(8192, 8, 128), (6144, 40, 1920)],
        ),
        ("llama-3.2-1b", 4096, "f16", {}, [(4096, 16, 128)]),
        # A public log. The file names a window of 2047, which llama.cpp does not use.
        ("phi-3-mini-4k", 4096, "f16", {}, [(4096, 32, 1536)]),
        # It has no windows for Mistral's architecture: 32 layers of 4096 B a token.
        ("mistral-7b-v0.1", 8192, "f16", {}, [(8192, 32, 1024)]),
    ],
)
def test_sizes_that_were_logged(name, context, dtype, settings, sizes):
    found = buffers(name, context, dtype, **settings)
    assert [(item.cells, item.layers, item.nbytes / MIB) for item in found] == sizes


def test_the_line_that_llama_cpp_logs():
    settings = LlamaCppSettings(4096)
    (found,) = buffers("llama-3.2-1b", 4096, "q8_0", "q4_0")
    assert log_line(found, settings) == (
        "llama_kv_cache: size =   52.00 MiB (  4096 cells,  16 layers,  1/1 seqs),"
        " K (q8_0):   34.00 MiB, V (q4_0):   18.00 MiB"
    )


def test_a_latent_is_stored_once_as_k():
    # 61 layers of 576 elements, and no V since pull request 19067.
    (found,) = buffers("deepseek-v3", 1024)
    assert (found.first_bytes, found.second_bytes) == (61 * 576 * 2 * 1024, 0)


def test_the_context_is_padded_and_sequences_have_their_own_cells():
    (found,) = buffers("llama-3.2-1b", 1000, sequences=4)
    assert (found.cells, found.nbytes) == (1024, 4 * 1024 * 32_768)


def test_sequences_that_share_a_buffer_are_logged_as_one_stream():
    settings = LlamaCppSettings(1024, sequences=4, unified=True)
    (found,) = buffers("llama-3.2-1b", 1024, sequences=4, unified=True)
    assert found.nbytes == 1024 * 32_768
    assert " 4/1 seqs)" in log_line(found, settings)
    assert (settings.total_context, LlamaCppSettings(1024, sequences=4).total_context) == (
        1024,
        4096,
    )


def test_states_are_always_32_bit():
    *_, states = buffers("falcon-mamba-7b", 4096)
    # 64 layers, d_inner 8192, d_state 16, a convolution of 4: (4 - 1) * 8192 and 16 * 8192 elements.
    assert (states.what, states.layers) == ("recurrent", 64)
    assert (states.first_bytes, states.second_bytes) == (64 * 3 * 8192 * 4, 64 * 16 * 8192 * 4)
    assert log_line(states, LlamaCppSettings(4096)).startswith("llama_memory_recurrent: size =  ")


def test_a_latent_has_one_type():
    with pytest.raises(UsageError, match="a latent is both K and V"):
        buffers("deepseek-v3", 4096, "q8_0", "q4_0")


def mtp(name, **settings):
    formats = choose_formats(None, key="f16", value="f16")
    return mtp_buffers(
        model_lookup.load(name).with_draft(), formats, LlamaCppSettings(4096, **settings)
    )


def test_mtp_layers_have_a_cache_without_index_keys_and_states():
    # The library of v0.5.0 logged both for a context of type MTP.
    for name, mib in (("deepseek-v3.2", 4.5), ("qwen3.5-27b", 16)):
        (found,) = mtp(name)
        assert (found.layers, found.nbytes / MIB) == (1, mib)


def test_mtp_layers_that_it_does_not_run_are_refused():
    with pytest.raises(UsageError, match="does not run the MTP layers of deepseek_v4"):
        mtp("deepseek-v4-flash")


def test_the_layer_that_chooses_an_adapter_is_a_layer_of_the_cache():
    # src/models/granite-switch.cpp: one KV head in the layer that routes, 8 in each of the 40 others.
    (main,) = buffers("granite-switch-4.1-3b", 4096)
    assert (main.layers, main.nbytes) == (41, (40 * 8 + 1) * 64 * 2 * 2 * 4096)


@pytest.mark.parametrize("name", ["deepseek-v4.1-flash", "diffusiongemma-26b-a4b", "kimi-audio-7b"])
def test_models_that_it_does_not_run_are_refused(name):
    with pytest.raises(UsageError, match=r"--as llama\.cpp: it does not run"):
        buffers(name, 4096)


def test_the_draft_is_kept_in_16_bits_whatever_the_model_is():
    geometry = model_lookup.load("glm-4.5-air").with_draft()
    formats = choose_formats(geometry.dtype, key="q8_0", value="q8_0")
    question = Question(geometry, formats, FormatOrigin.GIVEN, context=4096)
    assert [item.first_type for item in as_llamacpp(question).buffers] == ["q8_0", "f16"]


def test_formats_that_it_lacks_are_refused():
    with pytest.raises(UsageError, match="it has no KV type fp8"):
        buffers("llama-3.2-1b", 4096, "fp8")


def test_ranks_are_refused():
    geometry = model_lookup.load("llama-3.1-8b").shard(tp=2)
    with pytest.raises(UsageError, match="does not divide heads among ranks"):
        llamacpp_buffers(
            geometry, choose_formats("fp16", key=None, value=None), LlamaCppSettings(4096)
        )


def test_what_an_encoder_was_given_is_not_left_out():
    with pytest.raises(UsageError, match="layers with cross attention are not modelled"):
        buffers("whisper-large-v3", 4096)


def test_index_keys_have_a_cache_of_their_own_in_the_type_of_k():
    main, index = buffers("deepseek-v3.2", 4096, "q8_0")
    assert (main.what, main.layers, main.first_bytes) == ("cache", 61, 61 * 4096 * 612)
    assert (index.what, index.layers, index.first_bytes) == ("index cache", 61, 61 * 4096 * 136)
    assert main.second_bytes == index.second_bytes == 0


def test_a_recurrent_line_counts_every_layer_and_the_snapshots():
    # A public log of Qwen3.6-27B: 299.25 MiB (2 cells, 64 layers), R 11.25, S 288.00 (pull request
    # 23792); another has three times the size with two snapshots.
    settings = LlamaCppSettings(4096, sequences=2)
    found = buffers("qwen3.5-27b", 4096, sequences=2)[-1]
    assert log_line(found, settings) == (
        "llama_memory_recurrent: size =  299.25 MiB (     2 cells,  64 layers,  2 seqs  0 rs_seq),"
        " R (f32):   11.25 MiB, S (f32):  288.00 MiB, P (f32):    0.00 MiB"
    )
    assert buffers("qwen3.5-27b", 4096, sequences=2, rollback=2)[-1].nbytes == 3 * found.nbytes


def test_without_flash_attention_v_is_as_wide_as_the_widest():
    full, window = buffers("gemma-4-26b-a4b", 4096, flash_attention=False)
    # 2 heads of 512 in full layers, 8 of 256 in the others: V of 2048 elements in both.
    assert (full.first_bytes / MIB, full.second_bytes / MIB) == (40, 80)
    assert (window.first_bytes, window.second_bytes) == (window.nbytes / 2, window.nbytes / 2)
    with pytest.raises(UsageError, match="V as q8_0 needs flash attention"):
        buffers("llama-3.1-8b", 4096, "q8_0", flash_attention=False)


def test_swa_full_keeps_every_token_in_layers_with_a_window():
    assert [item.cells for item in buffers("gemma-3-4b", 8192, swa_full=True)] == [8192, 8192]


LOGGED = [
    json.loads(line)
    for line in Path(__file__).with_name("llamacpp.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", LOGGED, ids=[row["name"] for row in LOGGED])
def test_the_lines_that_llama_cpp_logged_for_a_file_with_this_metadata(row):
    """llama.cpp v0.5.0, each file loaded without its tensors by ``scripts/oracle.py``.

    In place of lines there is the reason why it makes no context.
    """
    assert row["logged"]
    for name, logged in row["logged"].items():
        expected = logged if isinstance(logged, list) else None
        assert expected_lines(row, name) == expected, name


def test_layers_of_cross_attention_are_not_left_out():
    # As in Llama 3.2 Vision: such layers keep an image and nothing of the text.
    image = Extent(Span.FIXED, 6404)
    pair = (Tensor("k", TensorRole.KEY, 8, 128), Tensor("v", TensorRole.VALUE, 8, 128))
    cross = (
        Tensor("cross_k", TensorRole.KEY, 8, 128, image),
        Tensor("cross_v", TensorRole.VALUE, 8, 128, image),
    )
    layers = (Layer(0, LayerKind.FULL, pair), Layer(1, LayerKind.CROSS, cross))
    formats = choose_formats("fp16", key=None, value=None)
    with pytest.raises(UsageError, match="layers with cross attention are not modelled"):
        llamacpp_buffers(
            ModelGeometry("t", "mllama_text_model", layers), formats, LlamaCppSettings(4096)
        )
