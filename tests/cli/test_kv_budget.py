"""``vmtool kv-estimate --budget`` and ``--weights``: sizes, devices, this machine, files."""

import json
import shlex

import pytest

from vmtool.errors import UnavailableError
from vmtool.units import GIB


def first_paragraph(text):
    return " ".join(text.split("\n\n")[0].split())


def test_auto_reads_this_machine(estimate):
    whole = estimate("llama-3.1-8b --budget auto --json").document["budget"]
    half = estimate("llama-3.1-8b --budget 50% --json").document["budget"]
    assert whole["origin"] == "available to this process"
    assert half["origin"] == "50% of what is available to this process"
    assert 0 < half["total_bytes"] < whole["total_bytes"]


def test_a_budget_below_the_floor_holds_no_token_and_says_why(estimate):
    ran = estimate("llama-3.1-8b --budget 127MiB")
    assert ran.code == 0
    assert "no token fits in 127 MiB" in ran.stdout
    assert "134,217,728 B (128 MiB)" in ran.stdout


def test_weights_that_are_more_than_the_budget_are_refused(estimate):
    ran = estimate("llama-3.1-8b --budget 1GiB --weights 2GiB --json")
    assert (ran.code, ran.stdout) == (5, "")
    assert "the weights (2 GiB, as given) are more than the budget of 1 GiB" in ran.stderr


def test_the_weights_of_a_known_model_are_subtracted(vmtool):
    def budget(*arguments):
        ran = vmtool("kv-estimate", "llama-3.1-8b", "--json", "--budget", *arguments)
        return ran.document["budget"]

    found = budget("16GiB")
    assert found["weights_origin"] == "as published, 16-bit"
    assert found["weights_bytes"] > 14 * GIB
    assert found["kv_bytes"] == 16 * GIB - found["weights_bytes"]
    halved = budget("16GiB", "--tp", "2")
    assert halved["weights_bytes"] == -(-found["weights_bytes"] // 2)
    # An engine's own figure for its cache has no weights in it; a device has.
    as_vllm = ["--as", "vllm", "--context", "8k", "--json"]
    sizes = [
        vmtool("kv-estimate", "llama-3.1-8b", *as_vllm, "--budget", text).document["budget_bytes"]
        for text in ("16GiB", "100% of 40GiB")
    ]
    assert sizes == [16 * GIB, 40 * GIB - found["weights_bytes"]]


def test_the_weights_beside_a_config_are_subtracted(vmtool, tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 256}))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1024}}')
    ran = vmtool("kv-estimate", str(tmp_path), "--budget", "1GiB", "--json")
    found = ran.document["budget"]
    assert (found["weights_bytes"], found["weights_origin"]) == (1024, "of the files beside it")


@pytest.mark.parametrize(
    ("text", "total", "words"),
    [
        ("h100", 80 * GIB, "all of one"),
        ("90% of h100", 72 * GIB, "90% of"),
        ("4x16GiB", 16 * GIB, "as given"),
        ("2 x 50% of 16GiB", 8 * GIB, "50% of 16GiB"),
    ],
)
def test_a_budget_may_name_devices(estimate, text, total, words):
    budget = estimate(f"llama-3.1-8b --budget '{text}' --json").document["budget"]
    assert abs(budget["total_bytes"] - total) < total // 50
    assert words in budget["origin"]


def test_as_many_devices_divide_the_heads(estimate):
    body = estimate("llama-3.1-8b --budget 4x16GiB --json").document
    assert body["model"]["tp"] == 4
    assert body["sequence"]["slope_bytes"] == 131_072 // 4
    ran = estimate("llama-3.1-8b --budget 4x16GiB --tp 2")
    assert ran.code == 2
    assert "names 4 devices, but tp 2 x pp 1 are 2 ranks" in ran.stderr


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("none", "20 GiB for other memory is more than the budget of 16 GiB"),
        ("8GiB", "the weights (8 GiB, as given) and 20 GiB for other memory are more than the"),
        ("17GiB", "the weights (17 GiB, as given) are more than the budget of 16 GiB"),
    ],
)
def test_what_leaves_nothing_of_the_budget_is_named(estimate, weights, words):
    ran = estimate(f"llama-3.1-8b --budget 16GiB --reserve 20GiB --weights {weights}")
    assert (ran.code, words in ran.stderr) == (5, True)


@pytest.mark.parametrize("option", ["--weights 5GB", "--reserve 1GiB", "--overhead 10%"])
def test_what_is_subtracted_from_a_budget_is_refused_without_one(estimate, option):
    ran = estimate(f"llama-3.1-8b {option}")
    assert (ran.code, f"{option.split()[0]} needs --budget" in ran.stderr) == (2, True)
    assert estimate(f"llama-3.1-8b {option} --compare budget=24GiB,h100").code == 0


def test_figures_of_a_rank_are_called_so(estimate):
    text = first_paragraph(estimate("llama-3.1-8b --context 8k --tp 2").stdout)
    assert text == (
        "llama-3.1-8b: 65,536 B a token per rank (bf16); a sequence of 8,192 tokens takes 512 MiB per"
        " rank; each further GiB holds 16,384 tokens."
    )


def test_a_device_that_cannot_be_opened_is_answered_with_other_budgets(estimate, monkeypatch):
    def device(ordinal):
        raise UnavailableError("no driver", hint="use --backing host")

    monkeypatch.setattr("vmtool.memory.cuda.devices.device", device)
    ran = estimate("llama-3.1-8b --budget cuda:0")
    assert (ran.code, "name of a device, such as 80GB or h100\n" in ran.stderr) == (4, True)


def test_without_a_budget_only_the_cost_is_shown(estimate):
    text = first_paragraph(estimate("llama-3.1-8b --context 8k").stdout)
    assert text == (
        "llama-3.1-8b: 131,072 B a token (bf16); a sequence of 8,192 tokens takes 1 GiB; each further GiB holds"
        " 8,192 tokens."
    )
    body = estimate("llama-3.1-8b --json").document
    assert body["budget"] is None
    assert body["policies"]["per-tensor"]["max_tokens"] is None


@pytest.mark.parametrize(("many", "fit"), [(8, "fit in"), (9, "do not fit in")])
def test_whether_so_many_sequences_fit_is_answered_first(estimate, many, fit):
    ran = estimate(f"llama-3.1-8b --budget 8GiB --context 8k --sequences {many}")
    assert first_paragraph(ran.stdout) == (
        f"llama-3.1-8b: {many} sequences of 8,192 tokens {fit} 8 GiB of KV memory: they need"
        f" {many} GiB, and 8 sequences fit."
    )


def test_a_stage_may_have_more_layers_than_another(estimate):
    body = estimate("llama-3.1-8b --pp-layers 8,24 --json").document
    assert (body["model"]["pp"], body["sequence"]["slope_bytes"]) == (2, 24 * 4096)
    ran = estimate("llama-3.1-8b --pp-layers 8,20")
    assert ran.code == 2


def test_states_may_have_a_format_of_their_own(estimate):
    both = [
        estimate(f"qwen3.5-27b --json {flags}").document["sequence"]["fixed_bytes"]
        for flags in ("", "--state-dtype bf16")
    ]
    # 48 x 48 heads x 128 x 128 elements of 4 bytes, and of 2.
    assert both[0] - both[1] == 48 * 48 * 128 * 128 * 2


def test_strict_refuses_an_architecture_that_is_assumed(estimate, tmp_path):
    config = {"model_type": "newarch", "num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "hidden_size": 256, "num_key_value_heads": 2}))
    ran = estimate(f"{shlex.quote(str(path))} --json")
    assert (ran.code, ran.document["model"]["assumed"]) == (0, True)
    assert estimate(f"{shlex.quote(str(path))} --strict").code == 5


def test_a_model_of_windows_holds_a_sequence_of_any_length(estimate):
    assert "a sequence of any length" in estimate("starcoder2-15b --budget 4GiB").stdout


def test_more_overhead_than_all_is_refused(estimate):
    ran = estimate("qwen3-8b --budget 80GiB --overhead 120%")
    assert (ran.code, "--overhead 120%: it must be at most 100%" in ran.stderr) == (2, True)


@pytest.mark.parametrize("more", [(), ("--sweep", "context=8k..16k")])
def test_an_answer_without_the_weights_says_so_unless_that_was_asked_for(vmtool, more):
    line = ("kv-estimate", "mistral-small-4-119b", "--budget", "16GiB", *more)
    assert (
        "no weights are subtracted from the budget: their size is not known" in vmtool(*line).stderr
    )
    assert not vmtool(*line, "--weights", "none").stderr
    assert not vmtool("kv-estimate", "qwen3-8b", "--budget", "24GiB", *more).stderr
