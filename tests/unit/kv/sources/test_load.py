"""Built-in models, flags and the hub: every other way to name a model."""

from __future__ import annotations

import io
import subprocess
import sys
import types

import pytest

from vmtool.errors import UnavailableError, UsageError
from vmtool.kv import sources
from vmtool.kv.geometry import LayerKind, Source
from vmtool.kv.sources import builtin
from vmtool.kv.weights import bytes_on_hub

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
}


def per_token(geometry, element_bytes=2):
    return sum(
        element_bytes * tensor.elements_per_token
        for layer in geometry.layers
        for tensor in layer.tensors
        if tensor.extent.grows
    )


# ---- built-in models ------------------------------------------------------------------------------


def test_there_are_at_least_forty_built_in_models_and_all_resolve():
    names = sources.builtin_names()
    assert len(names) >= 40
    assert list(names) == sorted(set(names))
    for name in names:
        assert sources.load(name).layers


def test_every_built_in_model_says_where_its_fields_were_read():
    assert all(builtin.origin_of(name) for name in sources.builtin_names())
    fact = sources.load("Gemma-4-31B").provenance["model"]
    assert (fact.value, fact.where) == ("gemma-4-31b", builtin.origin_of("gemma-4-31b"))


@pytest.mark.parametrize(
    ("name", "context", "dtype_bytes", "mebibytes"),
    [
        # dranger003/c4ai-command-r-v01, discussion 6: f16 caches of 2048 tokens.
        ("mixtral-8x7b", 2048, 2, 256),
        ("llama-3-8b", 2048, 2, 256),
        ("llama-3-70b", 2048, 2, 640),
        ("yi-34b", 2048, 2, 480),
        ("command-r", 2048, 2, 2560),
        # llama.cpp logs: f16.
        ("llama-3.2-1b", 4096, 2, 128),
        ("llama-3.2-3b", 1024, 2, 112),
        ("smollm-1.7b", 1024, 2, 192),
        # llama.cpp PR#21551: a 24B Mistral Small at 6656 cells.
        ("mistral-small-24b", 6656, 2, 1040),
        # llama.cpp log: the full layers of Gemma 4 12B at 8192 cells, and of E4B at 102400.
        ("gemma-4-12b", 8192, 2, 128),
        ("gemma-4-e4b", 102400, 2, 1600),
    ],
)
def test_a_built_in_model_costs_what_was_logged_for_it(name, context, dtype_bytes, mebibytes):
    assert per_token(sources.load(name), dtype_bytes) * context == mebibytes << 20


def test_built_in_models_agree_with_figures_in_bug_reports():
    # hf-mem#60: gpt-oss-120b, all 36 layers, 73,728 B; TensorRT-LLM#1400: llama-2-7b, 524,288 B.
    oss = sources.load("gpt-oss-120b")
    assert sum(2 * t.elements_per_token for layer in oss.layers for t in layer.tensors) == 73_728
    assert per_token(sources.load("llama-2-7b")) == 524_288
    # SGLang: Kimi-K2.5, 2,454,421 tokens in 160.63 "GB" (2^30), 61 x 576 x 2.
    assert per_token(sources.load("kimi-k2.5")) == 61 * 576 * 2


def test_sliding_layers_of_gemma_4_cost_what_llama_cpp_logs():
    # llama.cpp logs for the sliding cache: 12B 1920 MiB at 6144 cells, E4B 60 MiB at 1536,
    # E2B 12 MiB at 1024.
    for name, cells, mebibytes in (("12b", 6144, 1920), ("e4b", 1536, 60), ("e2b", 1024, 12)):
        layers = sources.load(f"gemma-4-{name}").layers
        sliding = [t for x in layers if x.kind is LayerKind.WINDOW for t in x.tensors]
        assert sum(2 * t.elements_per_token for t in sliding) * cells == mebibytes << 20


def test_a_built_in_name_ignores_case_and_says_that_it_is_built_in():
    geometry = sources.load("Llama-3.1-8B")
    assert geometry.name == "llama-3.1-8b"
    fact = geometry.provenance["kv_heads"]
    assert (fact.source, fact.where) == (Source.BUILTIN, "built-in llama-3.1-8b")


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [
        ("llama3.1-8b", "llama-3.1-8b"),
        ("Qwen3-8B-Instruct", "qwen3-8b"),
        ("gemma-3-27", "gemma-3-27b"),
    ],
)
def test_a_wrong_name_is_answered_with_close_ones(wrong, suggested):
    with pytest.raises(UsageError, match="neither a file nor a built-in model") as caught:
        sources.load(wrong)
    assert suggested in caught.value.hint


def test_a_name_like_no_other_is_answered_with_where_to_look():
    with pytest.raises(UsageError) as caught:
        sources.load("zzzzzzzz" * 1000)
    assert caught.value.hint == (
        "give a path, OWNER/NAME, or a name that `vmtool kv-estimate --list` shows"
    )


@pytest.mark.parametrize(
    "spec",
    ["owner/name", "https://huggingface.co/owner/name", "https://hf.co/owner/name/tree/main"],
)
def test_a_name_on_the_hub_and_its_address_are_fetched(fake_hub, spec):
    assert sources.load(spec).name == "owner/name"
    assert fake_hub == [("owner/name", "config.json")]


def test_a_config_in_the_cache_is_not_fetched_again(fake_hub, monkeypatch, write_config):
    path = write_config({**LLAMA, "num_hidden_layers": 3})
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: path)
    assert len(sources.load("owner/name").layers) == 3
    assert fake_hub == []


def test_a_hub_that_does_not_answer_is_told_at_once(fake_hub, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.ModuleType("huggingface_hub"))
    monkeypatch.setattr("urllib.request.urlopen", _no_answer)
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None, raising=False)
    monkeypatch.setattr(hub, "hf_hub_download", None, raising=False)
    with pytest.raises(UnavailableError, match="the hub does not answer"):
        sources.from_hub("owner/name")


def _no_answer(*_, **__):
    raise OSError("Network is unreachable")


def test_quantisation_may_be_described_beside_the_config(tmp_path, write_config):
    # ModelOpt before 0.31; vLLM's get_config reads it where config.json says nothing itself.
    path = write_config({**LLAMA})
    write_config({"quantization": {"kv_cache_quant_algo": "FP8"}}, "hf_quant_config.json")
    for spec in (path, str(tmp_path)):
        geometry = sources.load(spec)
        assert geometry.cache_dtype == "fp8"
        fact = geometry.provenance["cache_dtype"]
        assert fact.where.endswith("hf_quant_config.json")
        assert fact.detail == "quantization.kv_cache_quant_algo"
    assert sources.load(write_config(LLAMA, "other.json")).cache_dtype is None
    own = {"quantization_config": {"quant_method": "fp8"}}
    assert sources.load(write_config({**LLAMA, **own})).cache_dtype is None


def test_a_built_in_model_loads_no_reader():
    code = (
        "import sys; before = set(sys.modules);"
        "from vmtool.kv import sources; sources.load('qwen3-8b');"
        "heavy = {'json', 'asyncio', 'difflib', 'pathlib', 'numpy', 'onnx', 'huggingface_hub'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- flags ----------------------------------------------------------------------------------------


def test_flags_alone_describe_a_model():
    geometry = sources.from_flags(layers=3, kv_heads=8, head_dim=192, head_dim_v=128)
    assert len(geometry.layers) == 3
    assert [(t.heads, t.dim) for t in geometry.layers[0].tensors] == [(8, 192), (8, 128)]
    assert geometry.provenance["head_dim_v"].where == "--head-dim-v"
    same = sources.from_flags(layers=1, kv_heads=1, head_dim=64)
    assert same.layers[0].tensors[1].dim == 64
    assert same.provenance["head_dim_v"].source is Source.DERIVED


@pytest.mark.parametrize(
    ("name", "value"), [("layers", 0), ("layers", 5000), ("kv_heads", -1), ("head_dim", 1 << 25)]
)
def test_a_flag_out_of_range_is_refused(name, value):
    values = {"layers": 1, "kv_heads": 1, "head_dim": 64, name: value}
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} = {value}"):
        sources.from_flags(**values)


def test_an_unknown_override_is_refused(write_config):
    with pytest.raises(UsageError, match="'colour' is not a value"):
        sources.load(write_config(LLAMA), overrides={"colour": 1})


# ---- the hub --------------------------------------------------------------------------------------


@pytest.fixture
def fake_hub(monkeypatch, write_config):
    calls = []

    def download(repository, filename, **_):
        calls.append((repository, filename))
        if repository == "owner/missing":
            raise OSError("404")
        return write_config(LLAMA)

    module = types.ModuleType("huggingface_hub")
    module.hf_hub_download = download
    module.try_to_load_from_cache = lambda *_: None
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    bytes_on_hub.cache_clear()
    return calls


def test_only_the_config_is_fetched_from_the_hub(fake_hub):
    geometry = sources.from_hub("owner/name")
    assert fake_hub == [("owner/name", "config.json")]
    assert (geometry.name, len(geometry.layers)) == ("owner/name", 2)
    assert geometry.provenance["layers"].where == "owner/name/config.json"


def test_the_weights_on_the_hub_are_what_their_index_says(fake_hub, monkeypatch, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 1234}, "weight_map": {}}')
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: str(index))
    assert bytes_on_hub("owner/name") == 1234
    assert fake_hub == []


def test_a_single_file_of_weights_on_the_hub_counts_as_large_as_it_is(fake_hub, monkeypatch):
    hub = sys.modules["huggingface_hub"]
    assert bytes_on_hub("owner/missing") is None  # this stand-in does not know the size of a file
    size = types.SimpleNamespace(size=77)
    monkeypatch.setattr(hub, "hf_hub_url", lambda *names: "/".join(names), raising=False)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *_, **__: size, raising=False)
    assert bytes_on_hub("owner/other") == 77


def test_a_failed_download_is_unavailable(fake_hub):
    with pytest.raises(UnavailableError, match="of owner/missing could not be fetched: 404"):
        sources.from_hub("owner/missing")


@pytest.mark.parametrize("name", ["name", "a/b/c", "../etc/passwd", "a b/c", "https://x/y/z"])
def test_what_is_not_owner_and_name_is_refused(fake_hub, name):
    with pytest.raises(UsageError, match="owner/name"):
        sources.from_hub(name)
    assert fake_hub == []


def test_without_the_optional_package_the_hub_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnavailableError) as caught:
        sources.from_hub("owner/name")
    assert "pip install 'vmtool[hub]'" in caught.value.hint
