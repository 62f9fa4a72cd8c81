"""``vmtool kv-estimate``: what it prints, what it writes, and how it refuses."""

import contextlib
import io
import json
import re
import shlex
import sys
import types
import urllib.error
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from printed import printed

from vmtool.cli.app import run
from vmtool.report.kv_estimate import to_text
from vmtool.units import GIB, MIB

NUMBER = re.compile(r"\d[\d,.]*\d|\d")


# ---- the answer ----------------------------------------------------------------------------------


def test_the_first_line_says_how_many_tokens_fit(estimate):
    ran = estimate("llama-3.1-8b --budget 16GiB")
    assert (ran.code, ran.stderr) == (0, "")
    first, *rest = ran.stdout.split("\n\n")
    assert " ".join(first.split()) == (
        "llama-3.1-8b: 16 GiB of KV memory holds 131,072 tokens in one sequence, or 1 sequence of"
        " 131,072 tokens."
    )
    assert "16.00 GiB (17.18 GB), as given" in rest[0]
    assert "0 B + 131,072 B x tokens" in rest[0]


def test_draft_tokens_without_a_known_draft_are_never_silent(estimate):
    ran = estimate("llama-3.1-8b --draft-tokens 2")
    assert "llama-3.1-8b states no MTP layers" in " ".join(ran.stderr.split())
    assert estimate("deepseek-v4-flash --draft-tokens 2").stderr == ""


def test_the_document_has_exact_integers(estimate):
    ran = estimate("qwen3.5-27b --budget 20GiB --context 32k --json")
    body = ran.document
    assert (body["schema"], body["version"]) == ("vmtool.kv-estimate", 2)
    assert body["command"][:3] == ["vmtool", "kv-estimate", "qwen3.5-27b"]
    assert body["budget"]["kv_bytes"] == 20 * GIB
    # 48 states of 3,207,168 B, and 16 layers of 4096 B a token.
    assert body["sequence"]["fixed_bytes"] == 48 * 3_207_168
    assert (body["sequence"]["slope_bytes"], body["sequence"]["slope_tokens"]) == (65_536, 1)
    assert body["sequence"]["at_context_bytes"] == 48 * 3_207_168 + 32_768 * 65_536
    per_tensor = body["policies"]["per-tensor"]
    assert per_tensor["floor_bytes"] == (16 * 2 + 48 * 3) * 2 * MIB
    assert per_tensor["max_sequences"]["limit"] == "budget"
    assert _no_floats(body)


def _no_floats(value):
    if isinstance(value, dict):
        return all(_no_floats(item) for item in value.values())
    if isinstance(value, list):
        return all(_no_floats(item) for item in value)
    return not isinstance(value, float)


def test_granules_that_are_asked_for_join_the_table(estimate):
    body = estimate("phi-2 --budget 1GiB --granule 20MiB --granule 4KiB --json").document
    assert body["granule_bytes"] == 20 * MIB
    key = body["tensors"][0]
    assert {4096, 65_536, 2 * MIB, 20 * MIB} <= {fit["granule_bytes"] for fit in key["granules"]}
    small = next(fit for fit in key["granules"] if fit["granule_bytes"] == 4096)
    assert (small["tokens"], small["granules_per_token"]) == (0, 2)


def test_a_token_larger_than_a_granule_is_reported_in_granules(estimate):
    assert (
        "0: 2 granules a token" in estimate("phi-2 --budget 1GiB --granule 4KiB --packing").stdout
    )


def test_an_impossible_policy_is_named_and_the_others_are_shown(estimate):
    text = estimate("phi-2 --budget 1GiB --granule 4KiB --packing").stdout
    assert "floor-per-page: a token of k is 5 KiB" in text
    assert re.search(r"^token-major ", text, re.MULTILINE)


def test_flags_alone_are_a_model(estimate):
    ran = estimate("--layers 32 --kv-heads 8 --head-dim 128 --budget 1GiB")
    assert ran.stdout.startswith("flags: 1 GiB of KV memory holds 8,192 tokens")


def test_flags_override_a_model(estimate):
    body = estimate("llama-3.1-8b --layers 16 --budget 1GiB --json --explain").document
    assert body["sequence"]["slope_bytes"] == 65_536
    assert body["provenance"]["layers"] == {
        "value": 16,
        "source": "flag",
        "where": "--layers",
        "detail": "",
    }


def test_a_config_file_is_a_model(estimate, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "hidden_size": 512,
                "max_position_embeddings": 4096,
            }
        )
    )
    body = estimate(f"{shlex.quote(str(tmp_path))} --budget 1GiB --json").document
    assert body["sequence"]["slope_bytes"] == 2 * 2 * 2 * 64 * 2


@pytest.fixture
def fp8_checkpoint(tmp_path):
    """Return the quoted path of a config whose checkpoint asks for an fp8 cache."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return shlex.quote(str(tmp_path))


def test_an_fp8_checkpoint_has_an_fp8_cache_unless_a_format_is_named(estimate, fp8_checkpoint):
    # 32 layers x K and V x 8 heads x 128 elements of one byte, and of two in bf16.
    body = estimate(f"{fp8_checkpoint} --budget 1GiB --json").document
    assert (body["format_k"], body["format_v"]) == ("fp8", "fp8")
    assert body["format_origin"] == "checkpoint"
    assert body["sequence"]["slope_bytes"] == 32 * 2 * 8 * 128
    body = estimate(f"{fp8_checkpoint} --dtype bf16 --budget 1GiB --json").document
    assert (body["format_origin"], body["sequence"]["slope_bytes"]) == ("given", 131_072)


def test_llama_cpp_ignores_the_format_of_the_checkpoint(estimate, fp8_checkpoint):
    assert "K (f16)" in estimate(f"{fp8_checkpoint} --as llama.cpp --budget 1GiB").stdout


def test_a_model_of_no_stated_type_says_that_its_format_is_assumed(estimate):
    body = estimate("gpt-oss-20b --budget 1GiB --json").document
    assert body["format_k"] == "bf16"
    assert body["format_origin"] == "assumed"


def test_a_length_that_nothing_states_is_called_vmtools_own(estimate):
    said = "for 8,192 tokens, as no context is stated"
    assert said in " ".join(estimate("bloom-7b1 --budget 1GiB").stdout.split())
    fact = estimate("bloom-7b1 --budget 1GiB --json --explain").document["provenance"]["context"]
    assert (fact["value"], fact["source"], fact["where"]) == (8192, "default", "vmtool")
    for stated in ("bloom-7b1 --context 4096", "phi-2"):
        ran = estimate(f"{stated} --budget 1GiB --json --explain")
        assert ran.document["provenance"].get("context", {}).get("where") != "vmtool"
        assert said not in " ".join(estimate(f"{stated} --budget 1GiB").stdout.split())


def test_k_and_v_have_formats_of_their_own(estimate):
    body = estimate("llama-3.1-8b --dtype-k q8_0 --dtype-v q4_0 --budget 1GiB --json").document
    assert (body["format_k"], body["format_v"]) == ("q8_0", "q4_0")
    assert body["sequence"]["slope_bytes"] == 32 * (1088 + 576)


def test_ranks_divide_heads_and_weights(estimate, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 4294967297}}')
    body = estimate(
        f"llama-3.1-8b --tp 4 --budget 8GiB --weights {shlex.quote(str(index))} --reserve 1GiB --json"
    ).document
    assert body["sequence"]["slope_bytes"] == 131_072 // 4
    assert body["budget"]["weights_bytes"] == GIB + 1
    assert body["budget"]["kv_bytes"] == 8 * GIB - GIB - 1 - GIB


def test_explain_says_where_each_value_came_from(estimate):
    text = estimate("llama-3.1-8b --budget 1GiB --explain").stdout
    assert (
        "The values of llama come from built-in llama-3.1-8b, unless a row says otherwise" in text
    )
    assert re.search(r"kv_heads +8 +num_key_value_heads\n", text)


def test_sequences_share_the_budget(estimate):
    body = estimate("llama-3.1-8b --budget 16GiB --sequences 8 --json").document
    assert body["policies"]["per-tensor"]["max_tokens_each"]["fits"] == 131_072 // 8


def test_in_flight_tokens_widen_a_window(estimate):
    def fixed(line):
        return estimate(f"gpt-oss-20b --budget 1GiB --json {line}").document["sequence"][
            "fixed_bytes"
        ]

    assert fixed("") == 12 * 128 * 2048
    assert fixed("--in-flight 512") == 12 * (127 + 512) * 2048


def first_paragraph(text):
    return " ".join(text.split("\n\n")[0].split())


def test_a_model_with_windows_holds_less_while_it_reads_a_prompt(estimate):
    # The windows of 25 layers take 1023 + 8192 tokens of 8192 B then: 1.758 GiB a sequence.
    line = "gemma-4-26b-a4b --budget 4.25GiB --context 32768"
    assert first_paragraph(estimate(line).stdout) == (
        "gemma-4-26b-a4b: 4.25 GiB of KV memory holds 211,968 tokens in one sequence, or 5 sequences"
        " of 32,768 tokens, while decoding; 130,048 tokens or 1 sequence while each prefills 8,192"
        " tokens at once."
    )
    assert first_paragraph(estimate(f"{line} --in-flight 8192").stdout) == (
        "gemma-4-26b-a4b: 4.25 GiB of KV memory holds 130,048 tokens in one sequence, or 1 sequence"
        " of 32,768 tokens while each prefills 8,192 tokens at once."
    )
    prefill = estimate(f"{line} --json").document["prefill"]
    assert prefill["in_flight_tokens"] == 8192
    assert prefill["max_tokens"]["fits"] == 130_048
    assert prefill["max_sequences"]["fits"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "llama-3.1-8b --budget 16GiB",
        "llama-3.1-8b --budget 16GiB --in-flight 8192",
        "gemma-4-26b-a4b --budget 4.25GiB --context 1000",  # less than the window
    ],
)
def test_a_prompt_that_takes_no_more_is_not_mentioned(estimate, line):
    assert "prefill" not in estimate(line).stdout
    assert estimate(f"{line} --json").document["prefill"] is None


def test_the_help_states_the_tokens_in_flight(vmtool):
    text = " ".join(vmtool("kv-estimate", "-h").stdout.split())
    assert "by default 0, as in decoding, but 8192 with --as vllm or trtllm, and 512 with" in text


def test_cross_attention_is_not_counted_for_each_token(estimate):
    # 20 heads of 64 in 16 bits, K and V: 5120 B for a token and for each of 1500 positions.
    text = " ".join(estimate("whisper-large-v3 --budget 8GiB --packing").stdout.split())
    assert (
        "32 x full attention: 5,120 B a kept token, 7,680,000 B of cross attention over 1,500"
        " positions"
    ) in text
    assert "cross_k 32 x cross attention 2,560" in text
    body = estimate("whisper-large-v3 --budget 8GiB --json").document
    (layer,) = body["layers"]
    assert (layer["bytes_per_token"], layer["cross_attention_bytes"]) == (5120, 7_680_000)


def test_a_stride_that_limits_is_reported(estimate):
    said = "head-major: no sequence is longer than its stride of"
    text = estimate("gemma-4-26b-a4b --budget 16GiB --packing").stdout
    assert f"{said} 262,144 tokens (--context)" in text
    text = estimate("falcon-mamba-7b --budget 16GiB --context 8192 --packing").stdout
    assert f"{said} 8,192 tokens (--context)" in text
    assert "stride" not in estimate("llama-3.1-8b --budget 8GiB --packing").stdout
    text = estimate("gemma-4-26b-a4b --budget 16GiB --policy head-major").stdout
    assert "262,144 tokens; limited by the stride, not by the budget" in text


def test_a_format_that_vllm_changes_is_reported(estimate):
    text = " ".join(estimate("deepseek-v3.2 --budget 80GiB --dtype fp8").stdout.split())
    assert "vLLM's FLASHMLA_SPARSE keeps it as --dtype fp8_ds_mla" in text
    for line in ("deepseek-v3.2", "deepseek-v3 --dtype fp8", "deepseek-v3.2 --dtype fp8_ds_mla"):
        assert "vLLM" not in estimate(f"{line} --budget 80GiB").stdout


def test_the_list_has_every_built_in_model(estimate):
    names = estimate("--list").stdout.split()
    assert len(names) >= 40
    assert {"llama-3.1-8b", "deepseek-v3", "gemma-3-27b"} <= set(names)
    assert estimate("--list --json").document["models"] == names


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no MODEL"),
        ("--layers 4 --kv-heads 2", "--head-dim must be given too"),
        ("llama-3.1-8", "did you mean llama-3.1-8b"),
        ("llama3.1-8b", "did you mean llama-3.1-8b"),
        ("llama-3.1-8b --dtype q8_1", "did you mean q8_0"),
        ("llama-3.1-8b --policy per-tensors", "did you mean per-tensor"),
        ("llama-3.1-8b --as vlm", "did you mean vllm"),
        ("llama-3.1-8b --as tensorrt", "hint: use one of vllm, llama.cpp, sglang, trtllm\n"),
        ("whisper-large-v3 --as sglang", "cross attention are not modelled"),
        (
            "llama-3.1-8b --sweep context=1k..2k --as vllm",
            "--sweep and --as cannot be used together",
        ),
        ("llama-3.1-8b --weights 8B", "for 8 billion parameters"),
        ("llama-3.1-8b --budget 0xh100", "at least one device"),
        ("llama-3.1-8b --as sglang --unified", "--unified needs"),
        ("whisper-large-v3 --as llama.cpp", "cross attention are not modelled"),
        ("llama-3.1-8b --compare dtypes=bf16", "did you mean dtype"),
        ("llama-3.1-8b --compare dtype=", "no values"),
        ("llama-3.1-8b --compare dtype=bf16 --compare dtype=", "no values"),
        ("llama-3.1-8b --compare granule=0", "from 1 B to 1 TiB"),
        ("llama-3.1-8b --compare granule=2XB", "unknown unit"),
        ("llama-3.1-8b --compare dtype=bf16 --sweep context=1..2", "not both"),
        ("llama-3.1-8b --csv x.csv", "--csv needs"),
        ("llama-3.1-8b --as vllm --explain", "--explain and --as cannot be used together"),
        ("llama-3.1-8b --compare tp=1,2 --packing", "--packing and --compare cannot be used"),
        ("llama-3.1-8b --tp 64", "tp = 64 does not divide the 32 attention heads of llama-3.1-8b"),
        ("llama-3.1-8b --sweep 1k..8k", "write context=1k..128k"),
        ("llama-3.1-8b --sweep context=8k..1k", "must start at 1 token or more, rise"),
        ("llama-3.1-8b --sweep context=1k..8k:0", "must start at 1 token or more, rise"),
        ("llama-3.1-8b --sweep context=1..1m:1", "more than 1000 rows"),
        ("llama-3.1-8b --budget 0", "must be more than 0"),
        ("llama-3.1-8b --budget -1", "is not a size"),
        ("llama-3.1-8b --budget 150%", "at most 100%"),
        ("llama-3.1-8b --budget x%", "not a percentage"),
        ("llama-3.1-8b --budget 2x4x80GB", "gives the number of devices twice"),
        ("llama-3.1-8b --pp 2 --pp-layers 16;16", "'16;16' is not a count"),
        ("llama-3.1-8b --budget 1GiB --as vllm@1", "write a version such as vllm@0.33"),
        ("llama-3.1-8b --budget 1GiB --as vllm@0.99", "vllm is modelled up to 0.33"),
        ("llama-3.1-8b --budget cuda:x", "unknown backing"),
        ("llama-3.1-8b --budget 99999999999TiB", "more than 64 bits"),
        ("llama-3.1-8b --budget 9999999999999999999999GiB", "is too large for a size"),
        ("llama-3.1-8b --context 99999999999999999999999", "is too large for a count"),
        ("llama-3.1-8b --context 0", "not positive"),
        ("llama-3.1-8b --context 1e9", "is not a count"),
        ("llama-3.1-8b --context 99999999999999999999", "must be at most 2^48"),
        ("llama-3.1-8b --granule 2TiB", "from 1 B to 1 TiB"),
        ("llama-3.1-8b --waste 0", "from 0.1%"),
        ("llama-3.1-8b --waste 100%", "below 100%"),
        ("llama-3.1-8b --waste x", "not a percentage"),
        ("llama-3.1-8b --weights nothing", "is not a size"),
        ("llama-3.1-8b --tp 3", "kv_heads = 8 cannot be divided among tp = 3"),
        ("llama-3.1-8b --pp 33", "only 32 layers"),
        ("llama-3.1-8b --dtype nvfp4 --head-dim 40", "not a multiple of its group of 16"),
        ("phi-2 --granule 2TiB", "a granule of 2 TiB: it must be from 1 B to 1 TiB"),
        ("phi-2 --granule 4KiB --policy floor-per-page", "more than a granule of 4 KiB"),
        ("llama-3.1-8b --hub a/b", "not both"),
    ],
)
def test_wrong_usage_exits_2(estimate, line, words):
    ran = estimate(line if "--budget" in line else f"{line} --budget 1GiB")
    assert (ran.code, ran.stdout) == (2, "")
    assert words in ran.stderr


@pytest.mark.parametrize("name", ["cuda:x", "cuda:", "cuda:-1"])
def test_no_device_is_opened_for_a_name_that_is_refused(estimate, name):
    ran = estimate(f"gpt2 --budget {name}")
    assert ran.code == 2
    assert "unknown backing" in ran.stderr
    assert "opening" not in ran.stderr


def test_a_missing_device_exits_4(estimate):
    ran = estimate("gpt2 --budget cuda:99999")
    assert (ran.code, ran.stdout) == (4, "")


def test_the_budget_of_a_device_is_what_it_has_free(run_on_standin):
    ran = run_on_standin(["kv-estimate", "gpt2", "--budget", "cuda:0", "--json"], memory="3GiB")
    ran.assert_clean()
    budget = json.loads(ran.stdout)["budget"]
    assert budget["origin"] == "free on cuda:0, vmtool stand-in GPU 0 (no hardware)"
    assert 2 * GIB < budget["total_bytes"] <= 3 * GIB


def test_a_refusal_leaves_the_file_of_an_earlier_result_alone(estimate, tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("earlier")
    ran = estimate(f"phi-2 --granule 4KiB --policy floor-per-page -o {shlex.quote(str(path))}")
    assert (ran.code, path.read_text()) == (2, "earlier")


def test_a_csv_that_cannot_be_written_is_reported(estimate, tmp_path):
    path = shlex.quote(str(tmp_path / "no" / "where.csv"))
    ran = estimate(f"gpt2 --budget 1GiB --sweep context=1k..2k --csv {path}")
    assert ran.code == 2
    assert "cannot write" in ran.stderr


OPTIONS = st.sampled_from(
    [
        "--dtype",
        "--dtype-v",
        "--budget",
        "--weights",
        "--reserve",
        "--context",
        "--sequences",
        "--in-flight",
        "--granule",
        "--policy",
        "--block",
        "--waste",
        "--compare",
        "--sweep",
        "--as",
        "--state-blocks",
        "--layers",
        "--tp",
        "--dcp",
    ]
)
WORDS = st.one_of(
    st.text(max_size=12),
    st.from_regex(r"(context|dtype|granule|model|policy)=[0-9a-z.,:%]{0,12}", fullmatch=True),
    st.from_regex(r"-?[0-9]{1,22}[.0-9]{0,3}(k|m|GiB|TiB|%|)", fullmatch=True),
    st.sampled_from(
        [
            "auto",
            "cuda:0",
            "vllm",
            "llama.cpp",
            "sglang",
            "paged",
            "head-major",
            "nvfp4",
            "q4_0",
            "fp8_ds_mla",
        ]
    ),
)


@given(st.lists(st.tuples(OPTIONS, WORDS), max_size=3), st.sampled_from(["gpt2", "qwen3.5-27b"]))
def test_any_arguments_end_in_an_answer_or_an_error_message(options, model):
    out, err = io.StringIO(), io.StringIO()
    arguments = [part for option in options for part in option]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["kv-estimate", model, *arguments])
    assert code in (0, 2, 4, 5)
    assert bool(out.getvalue()) == (code == 0)
    assert "Traceback" not in err.getvalue()


@pytest.fixture(params=["\x1b[31mred", "\x9b31m", "a\nb", "\udcff"])
def oddly_named(request, tmp_path):
    """Return a config file whose name would command a terminal, break a line or be no Unicode."""
    path = tmp_path / f"{request.param}.json"
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
    try:
        path.write_text(json.dumps({**config, "hidden_size": 256}))
    except (OSError, UnicodeError):
        pytest.skip("this system has no such file names")
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--explain",),
        ("--json", "--explain"),
        ("--compare", "dtype=bf16,fp8"),
        ("--sweep", "context=1k..4k"),
        ("--sweep", "context=1k..4k", "--csv", "-"),
        ("--as", "vllm"),
        ("--tp", "3"),
    ],
)
def test_the_name_of_a_file_cannot_command_the_terminal(vmtool, oddly_named, options):
    ran = vmtool("kv-estimate", oddly_named, "--budget", "1GiB", *options)
    assert ran.code == (2 if "--tp" in options else 0)
    lines = (ran.stdout + ran.stderr).split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("b.json") for line in lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--state-blocks align", "needs --as vllm"),
        ("--state-blocks nonsense", "needs --as vllm"),
        ("--as llama.cpp --state-blocks all", "needs --as vllm"),
        ("--unified", "needs --as llama.cpp"),
        ("--as vllm --unified", "needs --as llama.cpp"),
        ("--as vllm --policy nonsense", "unknown policy"),
        ("--sweep context=1..8 --csv - --json", "cannot be used with --json or --output"),
        ("--sweep context=1..8 --csv - -o x.txt", "cannot be used with --json or --output"),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(estimate, line, message):
    ran = estimate(f"llama-3.1-8b --budget 1GiB {line}")
    assert (ran.code, ran.stdout) == (2, "")
    assert message in ran.stderr


# ---- shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["llama-3.1-8b", "mimo-v2-flash --tp 4", "qwen3.5-27b", "phi-2"])
def test_no_number_is_cut_at_any_width(line, monkeypatch):
    seen = []
    monkeypatch.setattr("vmtool.cli.output.Output.emit", lambda _, result, *__: seen.append(result))
    arguments = [*shlex.split(line), "--budget", "400GiB", "--packing", "--explain"]
    assert run(["kv-estimate", *arguments]) == 0
    report = partial(to_text, seen[0], packing=True)
    wide = printed(report, 240)
    for width in (40, 80, 120):
        narrow = printed(report, width)
        assert max(len(text) for text in narrow) <= width
        assert set(NUMBER.findall(" ".join(wide))) <= set(NUMBER.findall(" ".join(narrow)))


def test_help_opens_with_a_sentence_and_two_examples_that_work(vmtool, estimate):
    text = vmtool("kv-estimate", "-h").stdout
    examples = [line.strip() for line in text.splitlines() if line.strip().startswith("vmtool ")]
    assert len(examples) == 2
    for example in examples:
        assert vmtool(*shlex.split(example)[1:]).code == 0


def test_a_built_in_model_loads_neither_psutil_nor_numpy_nor_json(vmtool_child):
    ran = vmtool_child(
        "kv-estimate",
        "llama-3.1-8b",
        "--budget",
        "16GiB",
        before=(
            "import atexit, sys\n"
            "names = {'psutil', 'cuda', 'numpy', 'json'}\n"
            "atexit.register(lambda: print('loaded', sorted(names & set(sys.modules)), file=sys.stderr))"
        ),
    )
    assert ran.stderr.strip() == "loaded []"


def test_without_a_network_the_hub_fails_as_the_page_shows(vmtool, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "kv-estimate.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n\$ vmtool (.*?)```", page, re.DOTALL)
    command, _, output = block.partition("\n")
    module = types.ModuleType("huggingface_hub")
    module.try_to_load_from_cache = lambda *_: None
    module.hf_hub_download = None
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)

    def no_answer(*_, **__):
        raise urllib.error.URLError(OSError(101, "Network is unreachable"))

    monkeypatch.setattr("urllib.request.urlopen", no_answer)
    ran = vmtool(*command.split())
    assert (ran.code, ran.stdout, ran.stderr) == (4, "", output)
