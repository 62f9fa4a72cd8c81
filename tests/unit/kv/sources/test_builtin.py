"""The built-in models: their names, their entries, and what each costs, worked out apart."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vmtool.errors import UsageError
from vmtool.kv.geometry import LayerKind, Source, Span
from vmtool.kv.sources import builtin, model_lookup

ROOT = Path(__file__).parents[4]

#: Name, layers that keep every token, KV heads, widths of K and V, and the bytes of a token at
#: 16 bits, without the keys of an index. The fields are those of the source that the entry names.
COSTS = [
    line.split()
    for line in (Path(__file__).parent / "built_in_costs.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("row", COSTS, ids=[row[0] for row in COSTS])
def test_a_built_in_model_costs_what_was_worked_out_for_it(row):
    name, *figures = row
    layers, heads, k, v, expected = map(int, figures)
    assert layers * heads * (k + v) * 2 == expected
    kept = [
        sum(
            2 * tensor.elements_per_token
            for tensor in layer.tensors
            if tensor.extent.span is Span.ALL and not tensor.name.startswith("index")
        )
        for layer in model_lookup.load(name).layers
    ]
    assert (sum(map(bool, kept)), sum(kept)) == (layers, expected)


def test_a_name_of_the_hub_may_have_a_context_of_its_own():
    names = ("THUDM/glm-4-9b-chat-1m", "THUDM/chatglm3-6b", "THUDM/chatglm3-6b-128k")
    assert [model_lookup.load(name).context_tokens for name in names] == [1048576, 8192, 131072]


def test_nemotron_51b_has_fewer_kv_heads_in_some_layers():
    layers = model_lookup.load("llama-3.1-nemotron-51b").layers
    elements = [sum(tensor.elements_per_token for tensor in layer.tensors) for layer in layers]
    assert sorted(elements) == [0] * 26 + [256] * 3 + [512] * 6 + [1024] + [2048] * 44
    assert elements[:8] == [2048, 1024, 2048, 2048, 2048, 512, 512, 256]


def test_granite_switch_keeps_one_kv_head_more_than_granite():
    layers = model_lookup.load("granite-switch-4.1-3b").layers
    elements = [sum(tensor.elements_per_token for tensor in layer.tensors) for layer in layers]
    assert elements == [2 * 1 * 64, *40 * [2 * 8 * 64]]


def test_each_entry_has_a_name_of_its_own_and_so_has_each_model_of_the_hub():
    folder = Path(builtin.__file__).with_name("models")
    lines = [line for path in folder.glob("*.txt") for line in path.read_text("utf-8").splitlines()]
    short = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert sorted(short) == list(builtin.names())
    words = [word.partition("=")[0] for line in lines for word in line.split()]
    on_hub = [word.lower() for word in words if "/" in word]
    assert len(set(on_hub)) == len(on_hub) == len(builtin.hub_names())
    # One model may have two owners, but a name alone means one entry.
    entries = {}
    for name in builtin.hub_names():
        layers = model_lookup.load(name).layers
        assert entries.setdefault(name.lower().rpartition("/")[2], layers) == layers


def test_every_name_of_the_hub_resolves_to_the_layers_of_its_entry():
    for name in builtin.hub_names():
        model = model_lookup.load(name)
        assert model.name == name
        assert model_lookup.load(name.rpartition("/")[2].lower()).layers == model.layers


def test_an_entry_tells_which_models_of_the_hub_it_stands_for():
    assert builtin.on_hub("qwen3-14b")[:2] == ("Qwen/Qwen3-14B", "Qwen/Qwen3-14B-Base")
    assert builtin.on_hub("paligemma2-10b") == ()
    assert sum(len(builtin.on_hub(name)) for name in builtin.names()) == len(builtin.hub_names())


def test_a_model_of_the_hub_that_is_built_in_needs_no_network():
    assert model_lookup.remote_name("Qwen/Qwen3-8B") is None
    assert model_lookup.load("qwen/qwen3-8b-base").layers == model_lookup.load("qwen3-8b").layers
    assert model_lookup.remote_name("Qwen/Qwen3-8B-of-mine") == "Qwen/Qwen3-8B-of-mine"


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "/",
        "@hub",
        "qwen",
        "Qwen/",
        "/qwen3-8b",
        "qwen3-8b ",
        "qwen3-8b\n",
        "qwen3-8b qwen3",
    ],
)
def test_a_part_of_a_name_is_no_name(name):
    assert not builtin.known(name)


@pytest.mark.parametrize("word", ["llama", "bf16", "32", "Qwen/Qwen3-8B-Base=32768"])
def test_no_other_word_of_an_entry_is_a_name(word):
    assert not builtin.known(word)


def test_a_base_model_keeps_its_own_context():
    assert model_lookup.load("qwen2.5-7b").context_tokens == 32768
    assert model_lookup.load("Qwen/Qwen2.5-7B").context_tokens == 131072


def test_weights_are_two_bytes_a_parameter_or_the_published_size():
    assert builtin.published_bytes("llama-3.1-8b") == 2 * 8_030_261_248
    assert builtin.published_bytes("meta-llama/Llama-3.1-8B-Instruct") == 2 * 8_030_261_248
    assert builtin.published_bytes("gpt-oss-20b") == 13_800_000_000


def test_a_quantised_model_of_the_hub_has_weights_of_its_own_and_the_layers_of_its_entry():
    assert builtin.published_bytes("Qwen/Qwen3-8B-FP8") == 9_453_000_000
    assert builtin.published_bytes("qwen3-30b-a3b-thinking-2507-fp8") == 31_200_000_000
    assert builtin.weights_origin("Qwen/Qwen3-8B-FP8") == "as published"
    assert builtin.weights_origin("Qwen/Qwen3-8B") == "as published, 16-bit"
    model = model_lookup.load("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8")
    assert model.context_tokens == 262144
    assert model.layers == model_lookup.load("qwen3-30b-a3b").layers


def test_quantised_weights_take_a_quarter_to_three_quarters_of_those_of_16_bits():
    found = {
        hub: builtin.published_bytes(hub) / builtin.published_bytes(name)
        for name in builtin.names()
        for hub in builtin.on_hub(name)
        if builtin.published_bytes(hub) != builtin.published_bytes(name)
    }
    assert len(found) > 100
    assert {hub: share for hub, share in found.items() if not 0.25 < share < 0.75} == {}


def test_weights_that_nobody_published_are_said_to_be_computed():
    assert builtin.weights_origin("llama-3.1-8b") == "as published, 16-bit"
    assert builtin.weights_origin("gpt-oss-20b") == "as published"
    assert builtin.weights_origin("nemotron-4-340b") == "computed from its config, 16-bit"
    for name in ("devstral-2-123b", "devstral-small-2-24b"):
        assert builtin.weights_origin(name) == "computed from its config"


@pytest.mark.parametrize(
    ("name", "tokens", "windows", "states"),
    [
        # Layers x tokens x K and V x heads x width x 2 bytes. And layers x width x a state of 4
        # bytes and 3 steps of the convolution, of 2 bytes each.
        ("phi-tiny-moe", 2047, 32 * 2047 * 2 * 4 * 128 * 2, 0),
        ("phi-mini-moe", 2047, 32 * 2047 * 2 * 8 * 128 * 2, 0),
        ("voxtral-mini-4b-realtime", 9000, 26 * 8192 * 2 * 8 * 128 * 2, 0),
        # Mamba 2: 128 heads x 64 x a state of 128, and 3 steps of 8192 + 2 x 8 x 128 channels.
        ("mamba-codestral-7b", 9000, 0, 64 * (128 * 64 * 128 + 3 * (8192 + 2 * 8 * 128)) * 2),
        # Windows of latents, and of the three sources that pool two tokens, an entry, the key of an
        # index with its scale for each two tokens, and 8 open rows of key and gate in fp32; of the
        # fourth, both for each token.
        (
            "deepseek-v4.1-flash",
            9000,
            40 * 128 * 512 * 2 + (3 * 4500 + 9000) * (512 * 2 + 132),
            3 * 8 * 2 * 512 * 4,
        ),
        # Windows, the layer that keeps all, and nine states of Mamba 1 in 16 bits.
        ("phi-4-mini-flash", 9000, (8 * 512 + 9000) * 2 * 20 * 64 * 2, 9 * 5120 * (16 + 3) * 2),
        ("recurrentgemma-2b", 2048, 8 * 2048 * 2 * 1 * 256 * 2, 18 * 2560 * (4 + 3 * 2)),
        ("recurrentgemma-9b", 2048, 12 * 2048 * 2 * 1 * 256 * 2, 26 * 4096 * (4 + 3 * 2)),
    ],
)
def test_a_model_of_windows_and_states_costs_what_these_take(
    cost_of, name, tokens, windows, states
):
    assert cost_of(model_lookup.load(name)).bytes_for(tokens) == windows + states


def test_a_part_of_a_name_of_the_hub_is_answered_with_that_name():
    with pytest.raises(UsageError) as caught:
        model_lookup.load("Qwen2.5-Coder-7B-Inst")
    assert "Qwen/Qwen2.5-Coder-7B-Instruct" in caught.value.hint


def test_the_page_counts_what_is_built_in():
    page = (ROOT / "docs" / "built-in-models.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `?([\w.]+)`? \| (\d+ \| \d+) \|$", page, re.MULTILINE))
    together = f"{len(builtin.names())} | {len(builtin.hub_names())}"
    counted = {"together": together}
    for path in Path(builtin.__file__).with_name("models").glob("*.txt"):
        lines = path.read_text("utf-8").splitlines()
        entries = sum(not line.startswith(" ") for line in lines)
        counted[path.name] = f"{entries} | {sum('/' in w for line in lines for w in line.split())}"
    assert rows == counted


def test_the_page_names_the_models_whose_weights_are_not_known():
    page = (ROOT / "docs" / "built-in-models.md").read_text("utf-8")
    text = page.partition("built in without the size of the checkpoint")[2].partition("\n\n")[0]
    unknown = [name for name in builtin.names() if builtin.published_bytes(name) is None]
    assert re.findall(r"`([^`]+)`", text) == unknown


#: The encoder of PaliGemma's images: 27 layers of attention, MLP and two norms, all with biases, a
#: patch of 14 x 14 x 3, 256 positions and a norm.
SIGLIP = (
    27 * (4 * (1152 + 1) * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152)
    + (14 * 14 * 3 + 1) * 1152
    + (256 + 2) * 1152
)
#: Whisper's encoder in Voxtral: two convolutions, 1500 positions, 32 layers in which only K has no
#: bias, and a norm.
WHISPER = (
    (3 * 128 + 1) * 1280
    + (3 * 1280 + 1) * 1280
    + (1500 + 2) * 1280
    + 32 * (4 * 1280 * 1280 + 3 * 1280 + 2 * 1280 * 5120 + 5120 + 1280 + 4 * 1280)
)


def t5gemma(layers, hidden, heads, kv_heads, width=256):
    """Cross attention, its two norms and those after attention and MLP, and another final norm."""
    cross = 2 * hidden * width * (heads + kv_heads)
    return layers * (cross + 2 * hidden + 2 * 2 * hidden) + hidden


#: Layers, hidden size, heads, KV heads, their width, width of the MLP, vocabulary, whether the
#: embedding is shared, and the parameters besides: biases of Q, K and V, norms of Q and K.
WIDTHS = {
    "llama-2-7b": (32, 4096, 32, 32, 128, 11008, 32000, 2, 0),
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128256, 2, 0),
    "llama-3.1-minitron-4b-depth": (16, 4096, 32, 8, 128, 14336, 128256, 2, 0),
    "llama-3.1-70b": (80, 8192, 64, 8, 128, 28672, 128256, 2, 0),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, 1, 0),
    "mistral-nemo-12b": (40, 5120, 32, 8, 128, 14336, 131072, 2, 0),
    "deepseek-llm-7b": (30, 4096, 32, 32, 128, 11008, 102400, 2, 0),
    "deepseek-llm-67b": (95, 8192, 64, 8, 128, 22016, 102400, 2, 0),
    "phi-4": (40, 5120, 40, 10, 128, 17920, 100352, 2, 0),
    "smollm2-135m": (30, 576, 9, 3, 64, 1536, 49152, 1, 0),
    "granite-3.3-8b": (40, 4096, 32, 8, 128, 12800, 49159, 1, 0),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 18944, 152064, 2, 28 * (28 + 2 * 4) * 128),
    "qwen2.5-72b": (80, 8192, 64, 8, 128, 29568, 152064, 2, 80 * (64 + 2 * 8) * 128),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936, 2, 36 * 2 * 128),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151936, 1, 28 * 2 * 128),
    "chatglm3-6b": (28, 4096, 32, 2, 128, 13696, 65024, 2, 28 * (32 + 2 * 2) * 128 + 32),
    "chatglm2-6b": (28, 4096, 32, 2, 128, 13696, 65024, 2, 28 * (32 + 2 * 2) * 128),
    "glm-4-9b-chat-1m": (40, 4096, 32, 4, 128, 13696, 151552, 2, 40 * (32 + 2 * 4) * 128),
    "gemma-2-2b": (26, 2304, 8, 4, 256, 9216, 256000, 1, 26 * 2 * 2304),
    "vaultgemma-1b": (26, 1152, 4, 4, 256, 6912, 256000, 1, 0),
    # Encoder and decoder have an embedding each, and 26 or 42 layers.
    "t5gemma-2b-2b": (52, 2304, 8, 4, 256, 9216, 256000, 2, t5gemma(26, 2304, 8, 4)),
    "t5gemma-9b-9b": (84, 3584, 16, 8, 256, 14336, 256000, 2, t5gemma(42, 3584, 16, 8)),
    "t5gemma-s-s": (16, 512, 8, 8, 64, 1024, 256000, 2, t5gemma(8, 512, 8, 8, 64)),
    "t5gemma-b-b": (24, 768, 12, 12, 64, 2048, 256000, 2, t5gemma(12, 768, 12, 12, 64)),
    "t5gemma-l-l": (48, 1024, 16, 16, 64, 2816, 256000, 2, t5gemma(24, 1024, 16, 16, 64)),
    "t5gemma-ml-ml": (52, 1152, 4, 4, 256, 6912, 256000, 2, t5gemma(26, 1152, 4, 4)),
    "t5gemma-xl-xl": (48, 2048, 32, 32, 64, 5120, 256000, 2, t5gemma(24, 2048, 32, 32, 64)),
    "nemotron-labs-diffusion-8b": (34, 4096, 32, 8, 128, 14336, 131072, 2, 0),
    "nemotron-labs-diffusion-14b": (40, 5120, 32, 8, 128, 16384, 131072, 2, 0),
    "paligemma-3b": (18, 2048, 8, 1, 256, 16384, 257216, 1, 1153 * 2048 + SIGLIP),
    "paligemma2-3b": (26, 2304, 8, 4, 256, 9216, 257216, 1, (26 * 2 + 1153) * 2304 + SIGLIP),
    "paligemma2-10b": (42, 3584, 16, 8, 256, 14336, 257216, 1, (42 * 2 + 1153) * 3584 + SIGLIP),
    "voxtral-mini-3b": (30, 3072, 32, 8, 128, 8192, 131072, 2, WHISPER + (5120 + 3072) * 3072),
    "voxtral-small-24b": (40, 5120, 32, 8, 128, 32768, 131072, 2, WHISPER + 2 * 5120 * 5120),
    "paligemma2-28b": (46, 4608, 32, 16, 128, 36864, 257216, 1, (46 * 2 + 1153) * 4608 + SIGLIP),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_the_published_number_of_parameters_is_what_the_config_comes_to(name):
    layers, hidden, heads, kv_heads, width, mlp, vocabulary, embeddings, besides = WIDTHS[name]
    attention = 2 * hidden * width * (heads + kv_heads)
    norms = 2 * hidden
    counted = layers * (attention + 3 * hidden * mlp + norms) + hidden
    counted += embeddings * vocabulary * hidden + besides
    assert builtin.published_bytes(name) == 2 * counted


def per_token(geometry, element_bytes=2):
    return sum(
        element_bytes * tensor.elements_per_token
        for layer in geometry.layers
        for tensor in layer.tensors
        if tensor.extent.grows
    )


def test_there_are_at_least_forty_built_in_models_and_all_resolve():
    names = model_lookup.builtin_names()
    assert len(names) >= 40
    assert list(names) == sorted(set(names))
    for name in names:
        assert model_lookup.load(name).layers


def test_every_built_in_model_says_where_its_fields_were_read():
    assert all(builtin.origin_of(name) for name in model_lookup.builtin_names())
    fact = model_lookup.load("Gemma-4-31B").provenance["model"]
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
    assert per_token(model_lookup.load(name), dtype_bytes) * context == mebibytes << 20


def test_built_in_models_agree_with_figures_in_bug_reports():
    # hf-mem#60: gpt-oss-120b, all 36 layers, 73,728 B; TensorRT-LLM#1400: llama-2-7b, 524,288 B.
    oss = model_lookup.load("gpt-oss-120b")
    assert sum(2 * t.elements_per_token for layer in oss.layers for t in layer.tensors) == 73_728
    assert per_token(model_lookup.load("llama-2-7b")) == 524_288
    # SGLang: Kimi-K2.5, 2,454,421 tokens in 160.63 "GB" (2^30), 61 x 576 x 2.
    assert per_token(model_lookup.load("kimi-k2.5")) == 61 * 576 * 2


def test_sliding_layers_of_gemma_4_cost_what_llama_cpp_logs():
    # llama.cpp logs for the sliding cache: 12B 1920 MiB at 6144 cells, E4B 60 MiB at 1536,
    # E2B 12 MiB at 1024.
    for name, cells, mebibytes in (("12b", 6144, 1920), ("e4b", 1536, 60), ("e2b", 1024, 12)):
        layers = model_lookup.load(f"gemma-4-{name}").layers
        sliding = [t for x in layers if x.kind is LayerKind.WINDOW for t in x.tensors]
        assert sum(2 * t.elements_per_token for t in sliding) * cells == mebibytes << 20


def test_a_built_in_name_ignores_case_and_says_that_it_is_built_in():
    geometry = model_lookup.load("Llama-3.1-8B")
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
        model_lookup.load(wrong)
    assert suggested in caught.value.hint


def test_an_address_elsewhere_is_answered_with_what_addresses_are_read():
    with pytest.raises(UsageError) as caught:
        model_lookup.load("https://example.com/minimax")
    assert caught.value.hint == "give OWNER/NAME, or its address on https://huggingface.co"


def test_a_name_like_no_other_is_answered_with_where_to_look():
    with pytest.raises(UsageError) as caught:
        model_lookup.load("zzzzzzzz" * 1000)
    assert caught.value.hint == (
        "give a path, OWNER/NAME, or a name that `vmtool kv-estimate --list` shows"
    )


def test_a_built_in_model_loads_no_reader():
    code = (
        "import sys; before = set(sys.modules);"
        "from vmtool.kv.sources import model_lookup; model_lookup.load('qwen3-8b');"
        "heavy = {'json', 'asyncio', 'difflib', 'pathlib', 'numpy', 'onnx', 'huggingface_hub'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
