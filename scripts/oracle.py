#!/usr/bin/env python3
"""Compare what engines themselves cache with what vmtool counts for the same model.

    oracle.py record FILE [TYPE...]    run each model type of transformers without weights
    oracle.py check FILE               compare the rows of FILE with vmtool; exit 3 if any differs
    oracle.py vllm [MODEL...]          compare what vLLM's planner makes of the built-in models
    oracle.py llamacpp FOLDER FILE [NAME...]
                                       record in FILE what llama.cpp logs for the metadata of each row,
                                       and compare; FOLDER has its libraries (see _llama.py)

``record`` needs torch and transformers, which vmtool does not: use an environment of its own. Models
are built on torch's ``meta`` device from the default config of their type, so that a model of any
size takes no memory, and run for a few tokens; the sizes are those of the cache that comes back.
``tests/unit/kv/sources/transformers.jsonl`` was recorded with transformers 5.24. ``vllm`` needs an
environment with the vLLM wheel and no GPU; models with states are left out, as the planner takes theirs from
the model itself. ``tests/unit/kv/engines/llamacpp.jsonl`` was recorded with llama.cpp v0.5.0; files are loaded
without memory for their weights.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from _llama import Loader

from vmtool.errors import UsageError, VmtoolError
from vmtool.kv.element_formats import INDEX_FORMAT, choose_formats
from vmtool.kv.engines.llamacpp import LlamaCppSettings, llamacpp_buffers, log_line, mtp_buffers
from vmtool.kv.engines.vllm import VllmSettings, default_block, vllm_pool
from vmtool.kv.geometry import ModelGeometry, Span, TensorRole
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources import builtin, model_lookup
from vmtool.kv.sources.gguf.model import build as build_gguf
from vmtool.kv.sources.hf.config_to_layers import resolve

TOKENS = 7
FRAMES = 64
MAPPINGS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
)
#: What every config has and no cache depends on.
NOISE = re.compile(
    r"_name_or_path|architectures|id2label|label2id|problem_type|return_dict|transformers_version"
    r"|output_.*|chunk_size_feed_forward|initializer_.*|.*dropout|.*_token_id|.*_prob|rms_norm_eps"
    r"|layer_norm_eps.*|.*_bias|vocab_size|rope_(theta|scaling|parameters|type)|.*loss.*|suppress_tokens|begin_suppress.*"
)
CONVOLUTIONS = ("conv", "shift")


def cached(geometry: ModelGeometry) -> dict[str, Any]:
    """Return the elements that vmtool counts, in the form of a row."""
    row = empty()
    for layer in geometry.layers:
        for tensor in layer.tensors:
            count, extent = tensor.elements_per_token, tensor.extent
            if extent.span is Span.FIXED:
                row["cross"] += count
            elif extent.span in (Span.WINDOW, Span.CHUNK):
                row["windows"][str(extent.size)] += count
            elif tensor.role is TensorRole.INDEX:
                row["index_per_token"] += count
            else:
                row["per_token"] += count
        for state in layer.states:
            row["conv" if state.name in CONVOLUTIONS else "recurrent"] += state.elements
    return {**row, "windows": dict(row["windows"])}


def compare(row: dict[str, Any]) -> tuple[str, str]:
    """Return how vmtool's count of *row* compares, and details: agrees, refused or differs."""
    try:
        geometry = resolve(row["config"], "config.json", row["model_type"])
    except VmtoolError as error:
        return "refused", str(error)
    ours, theirs = cached(geometry), row["expected"]
    differing = {key: (ours[key], theirs[key]) for key in theirs if ours[key] != theirs[key]}
    if not differing:
        return "agrees", ""
    return "differs", f"(vmtool, transformers) {differing}"


def empty() -> dict[str, Any]:
    """Return a row without anything."""
    numbers = ("per_token", "index_per_token", "cross", "conv", "recurrent")
    return {**dict.fromkeys(numbers, 0), "windows": Counter()}


def check(path: Path) -> int:
    """Compare each row, print those that differ, and return the exit code."""
    counts: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        verdict, details = compare(row)
        counts[verdict] += 1
        if verdict in ("refused", "differs"):
            print(f"{row['model_type']}: {verdict}: {details}")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 3 if counts["differs"] else 0


# ---- vLLM -------------------------------------------------------------------------------------

BUDGET, LENGTHS = 64 << 30, (8192, 100_000)


def plan(names: list[str]) -> int:
    """Compare blocks and concurrency of the planner with vmtool's for the built-in models."""
    try:
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        planning = importlib.import_module("vllm.v1.core.kv_cache_planning")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        layouts = importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout
        torch = importlib.import_module("torch")
    except ImportError as error:
        print(f"not done: {error}")
        return 0
    counts: Counter[str] = Counter()
    for name in names or builtin.names():
        geometry = model_lookup.load(name)
        formats = choose_formats(geometry.dtype, key="bf16", value="bf16")
        specs = layer_specs(geometry, interface, torch.bfloat16)
        if specs is None:
            counts["left out"] += 1
            continue
        for length in LENGTHS:
            # What backends without a preference get where shapes differ (``resolve_kv_cache_layout``).
            config = vllm_config(length, layouts.LBHNC)
            groups = planning.get_kv_cache_groups(config, specs)
            made = planning.get_kv_cache_config_from_groups(config, groups, BUDGET)
            found = made.num_blocks, utils.get_max_concurrency_for_kv_cache_config(config, made)
            settings = VllmSettings(length, default_block(geometry))
            pool = vllm_pool(SequenceCost.of(geometry, formats), BUDGET, settings)
            agrees = pool.num_blocks == found[0] and abs(pool.concurrency - found[1]) < 1e-6
            counts["agree" if agrees else "differ"] += 1
            if not agrees:
                print(f"{name} {length}: {pool.num_blocks, float(pool.concurrency)}, vLLM {found}")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 3 if counts["differ"] else 0


def layer_specs(geometry: ModelGeometry, interface: Any, dtype: Any) -> dict[str, Any] | None:
    """Return what vLLM plans for each layer, or ``None`` if a layer has more than K, V and index keys."""
    specs = {}
    block = default_block(geometry)
    for layer in geometry.layers:
        if layer.states or any(
            t.extent.ratio > 1 or t.extent.span is Span.FIXED for t in layer.tensors
        ):
            return None
        for index in (t for t in layer.tensors if t.name.startswith("index")):
            # Index keys beside latents are bytes with their scales.
            packed = index.role is TensorRole.INDEX
            specs[f"layer.{layer.index}.index"] = interface.MLAAttentionSpec(
                block,
                num_kv_heads=index.heads,
                head_size=INDEX_FORMAT.bytes_per_row(index) // 2 if packed else index.dim,
                dtype=dtype,
                cache_role=interface.SparseCacheRole.INDEXER,
            )
        tensors = [t for t in layer.tensors if not t.name.startswith("index")]
        if not tensors:
            continue
        first, last = tensors[0], tensors[-1]
        if len(tensors) > (1 if first.role is TensorRole.LATENT else 2):
            return None
        shape = {"num_kv_heads": first.heads, "head_size": first.dim, "dtype": dtype}
        if first.role is TensorRole.LATENT:
            made = interface.MLAAttentionSpec(block, **shape)
        elif first.extent.span is Span.WINDOW:
            size = first.extent.size
            made = interface.SlidingWindowSpec(
                block, **shape, head_size_v=last.dim, sliding_window=size
            )
        elif first.extent.span is Span.CHUNK:
            size = first.extent.size
            made = interface.ChunkedLocalAttentionSpec(
                block, **shape, head_size_v=last.dim, attention_chunk_size=size
            )
        else:
            made = interface.FullAttentionSpec(block, **shape, head_size_v=last.dim)
        specs[f"layer.{layer.index}"] = made
    return specs


def vllm_config(length: int, layout: Any) -> Any:
    """Return what the planner reads of a configuration; every other value is a mock."""
    config = MagicMock(speculative_config=None, kv_transfer_config=None)
    config.model_config.max_model_len = length
    config.max_in_flight_tokens = 8192
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.cache_config.block_size = 16
    config.cache_config.get_resolved_kv_cache_layout.return_value = layout
    config.cache_config.num_gpu_blocks_override = None
    config.cache_config.mamba_cache_mode = "none"
    config.cache_config.hisparse_config = config.attention_config.hisparse_config = None
    config.hisparse_config = None
    for ranks in ("decode_context", "prefill_context", "tensor"):
        setattr(config.parallel_config, f"{ranks}_parallel_size", 1)
    return config


# ---- llama.cpp ----------------------------------------------------------------------------------

_Q8_0, _Q4_0 = 8, 2
_TYPES = {1: "fp16", _Q8_0: "q8_0", _Q4_0: "q4_0"}
#: With what each file is loaded: names of struct llama_context_params and their values.
SETTINGS: dict[str, dict[str, int]] = {
    "c4096": {"n_ctx": 4096},
    "c10000-np4": {"n_ctx": 10_000, "n_seq_max": 4},
    "c8192-np4-unified": {"n_ctx": 8192, "n_seq_max": 4, "unified": True},
    "c32768-np2-q8-q4-ub1024": {
        "n_ctx": 32_768,
        "n_seq_max": 2,
        "n_ubatch": 1024,
        "type_k": _Q8_0,
        "type_v": _Q4_0,
    },
    "c65536-q8": {"n_ctx": 65_536, "type_k": _Q8_0, "type_v": _Q8_0},
    "c8192-np2-swa-full": {"n_ctx": 8192, "n_seq_max": 2, "swa_full": True},
    "c4096-fa-off": {"n_ctx": 4096, "flash_attn_type": 0},
    "c4096-np2-rs3": {"n_ctx": 4096, "n_seq_max": 2, "n_rs_seq": 3},
    "c8192-np2-mtp": {"n_ctx": 8192, "n_seq_max": 2, "ctx_type": 1},
}


def expected_lines(row: dict[str, Any], name: str) -> list[str] | None:
    """Return what vmtool says that llama.cpp logs for *row*; ``None`` if it says that there is no cache."""
    values = SETTINGS[name]
    sequences, unified = values.get("n_seq_max", 1), bool(values.get("unified"))
    settings = LlamaCppSettings(
        values["n_ctx"] // (1 if unified else sequences),
        sequences,
        values.get("n_ubatch", 512),
        unified=unified,
        swa_full=bool(values.get("swa_full")),
        flash_attention=values.get("flash_attn_type") != 0,
        rollback=values.get("n_rs_seq", 0),
    )
    key, value = (_TYPES[values.get(f"type_{which}", 1)] for which in "kv")
    geometry = build_gguf(dict(row["metadata"]), "model.gguf", {})
    formats = choose_formats("fp16", key=key, value=value)
    try:
        if "ctx_type" in values:
            found = mtp_buffers(geometry.with_draft(), formats, settings)
        else:
            found = llamacpp_buffers(geometry, formats, settings)
    except UsageError:
        return None
    return [log_line(buffer, settings) for buffer in found]


def log_rows(folder: Path, path: Path, wanted: set[str]) -> int:
    """Load a file with the metadata of each row of *path*, keep there what is logged, and compare."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    counts: Counter[str] = Counter()
    for row in rows:
        if wanted and row["name"] not in wanted:
            continue
        row["logged"] = logged(folder, row["metadata"])
        for name, theirs in row["logged"].items():
            ours = expected_lines(row, name)
            agrees = ours == theirs if isinstance(theirs, list) else ours is None
            counts["agree" if agrees else "differ"] += 1
            if not agrees:
                print(f"{row['name']} {name}:\n  vmtool    {ours}\n  llama.cpp {theirs}")
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 3 if counts["differ"] else 0


def logged(folder: Path, metadata: dict[str, Any]) -> dict[str, list[str] | str]:
    """Return the lines that llama.cpp logs with each of `SETTINGS`, or why it makes no cache.

    It is called in a process of its own, as an assertion of it would end this one.
    """
    if sys.platform == "win32":
        raise OSError("llama.cpp's library is loaded on Linux only")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        found: dict[str, list[str] | str] = {}
        with tempfile.TemporaryDirectory() as where, open(writer, "w", encoding="utf-8") as stream:
            loader = Loader(folder)
            model = loader.load(metadata, Path(where, "model.gguf"))
            for name, values in SETTINGS.items():
                if "ctx_type" in values and not any("nextn" in key for key in metadata):
                    continue
                lines, reason = loader.caches(model, **{"swa_full": False, **values})
                found[name] = lines or reason
            json.dump(found, stream)
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    result: dict[str, list[str] | str] = json.loads(text or "{}")
    return result


# ---- transformers -----------------------------------------------------------------------------


def record(path: Path, wanted: set[str]) -> int:
    """Write a row for each model type that runs without weights, and name those that do not."""
    # What a mask or a router holds decides no shape of a cache: every number is taken for 0, and every
    # expert for chosen.
    from torch import distributions, library  # noqa: PLC0415 - only this part needs torch

    numbers = library.Library("aten", "IMPL", "Meta")  # as long as it is referred to
    numbers.impl("_local_scalar_dense", lambda _: 0)
    distributions.Distribution.set_default_validate_args(False)
    fake: Any = importlib.import_module("torch.fx.experimental._config")
    fake.meta_nonzero_assume_all_nonzero = True
    with path.open("w", encoding="utf-8") as file:
        for model_type, class_name in sorted(classes().items()):
            if wanted and model_type not in wanted:
                continue
            try:
                config, expected = measure(model_type, class_name)
            except Exception as error:  # noqa: BLE001 - each type fails in its own way
                print(f"{model_type}: not recorded: {type(error).__name__}: {str(error)[:120]}")
                continue
            row = {"model_type": model_type, "config": trimmed(config), "expected": expected}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    return 0


def classes() -> dict[str, str]:
    """Return the class that generates text, by model type."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    found: dict[str, str] = {}
    for mapping in MAPPINGS:
        for model_type, name in getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").items():
            found.setdefault(model_type, name)
    return found


def measure(model_type: str, class_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the default config of *model_type*, and the elements of the cache that it makes."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    config = transformers.CONFIG_MAPPING[model_type]()
    for part in (config, config.get_text_config(decoder=True)):
        with contextlib.suppress(Exception):  # some refuse, and need not be told
            part.use_cache = True
        if hasattr(part, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
            part.is_decoder = True
    # Where a wrapper wants pictures or sound, its decoder alone has the same cache.
    inner = config.get_text_config(decoder=True)
    output: Any = None
    model: Any = None
    for part, name in ((config, class_name), (inner, classes().get(inner.model_type, ""))):
        try:
            model, output = run(torch, transformers, part, name)
        except Exception:
            if part is inner or inner is config or not classes().get(inner.model_type):
                raise
        else:
            break
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        cache = output.cache_params
    row = empty()
    for i, layer in enumerate(getattr(cache, "self_attention_cache", cache).layers):
        add_layer(row, layer, past_columns(torch, model, i))
    for state in getattr(cache, "linear_cache", []):  # MiniMax
        row["recurrent"] += 0 if isinstance(state, list) else state.numel()
    if hasattr(cache, "cross_attention_cache"):
        cross = empty()
        for layer in cache.cross_attention_cache.layers:
            add_layer(cross, layer, 0)
        cross["per_token"] += cross["cross"]
        row["cross"] = cross["per_token"] + sum(cross["windows"].values())
    row["windows"] = dict(row["windows"])
    return json.loads(config.to_json_string(use_diff=False)), row


def run(torch: Any, transformers: Any, config: Any, class_name: str) -> tuple[Any, Any]:
    """Return a model without weights, and the output of a step that reads a few tokens."""
    config._attn_implementation = "eager"  # noqa: SLF001 - its documented switch
    config._experts_implementation = "batched_mm"  # noqa: SLF001 - the others need real numbers
    with torch.device("meta"), torch.no_grad():
        model = getattr(transformers, class_name)(config).eval()
        return model, model(**inputs(torch, config, model), use_cache=True)


def inputs(torch: Any, config: Any, model: Any) -> dict[str, Any]:
    """Return the arguments of a step that reads a few tokens."""
    ids = torch.zeros((1, TOKENS), dtype=torch.long)
    if not getattr(config, "is_encoder_decoder", False):
        wanted = inspect.signature(model.forward).parameters
        more = {}
        if "cross_attention_states" in wanted:
            width = config.get_text_config().hidden_size
            more["cross_attention_states"] = torch.zeros(
                (1, FRAMES, config.text_config.hidden_size)
            )
        if "image_encoder_embeddings" in wanted:
            width = config.vision_config.embed_dim
            more["image_encoder_embeddings"] = torch.zeros((1, 1, FRAMES, width))
            more["image_attention_mask"] = torch.ones((1, TOKENS, 1))
        return {"input_ids": ids, **more}
    if getattr(model, "main_input_name", "input_ids") == "input_ids":
        long = torch.zeros((1, FRAMES), dtype=torch.long)
        return {"decoder_input_ids": ids, "input_ids": long}
    outputs = importlib.import_module("transformers.modeling_outputs")
    encoder = getattr(config, "encoder", None) or getattr(config, "encoder_config", None) or config
    frames = torch.zeros((1, FRAMES, encoder.hidden_size))
    seen = outputs.BaseModelOutput(last_hidden_state=frames)
    seen.attention_mask = None
    return {"decoder_input_ids": ids, "encoder_outputs": seen}


def past_columns(torch: Any, model: Any, index: int) -> int:
    """Return how many past inputs the convolutions of a layer of *model* need."""
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None or index >= len(layers):
        return 0
    convolutions = (m for m in layers[index].modules() if isinstance(m, torch.nn.Conv1d))
    return sum(m.kernel_size[0] - 1 for m in convolutions)


def add_layer(row: dict[str, Any], layer: Any, columns: int) -> None:
    """Add the elements of one layer of a cache to *row*.

    Args:
        row: Where to add them.
        layer: The layer.
        columns: The past inputs that its convolutions need.
    """
    keys: Any = getattr(layer, "keys", None)
    values: Any = getattr(layer, "values", None)
    whole: Any = getattr(
        layer, "prefill_keys", None
    )  # Unlimited-OCR keeps the prompt beside its window
    if whole is not None:
        keys, values = whole, layer.prefill_values
    if keys is not None and keys.numel():
        tokens = keys.shape[-2]
        count = sum(part.numel() // tokens for part in (keys, values))
        window = getattr(layer, "sliding_window", None)
        if tokens == FRAMES:
            row["cross"] += count
        elif window is not None and whole is None and getattr(layer, "is_sliding", True):
            row["windows"][str(window)] += count
        else:
            row["per_token"] += count
    index = getattr(layer, "indexer_keys", None)
    if index is not None:
        row["index_per_token"] += index.numel() // index.shape[1]
    for name in ("conv_states", "recurrent_states"):
        states = getattr(layer, name, None)
        if isinstance(states, dict):
            states = list(states.values())
        for state in states if isinstance(states, (list, tuple)) else [states]:
            if state is None:
                continue
            if name == "conv_states":  # a column that no convolution needs is the newest input
                extra = state.shape[-1] != columns
                row["conv"] += state.numel() // state.shape[-1] * (state.shape[-1] - extra)
            else:
                row["recurrent"] += state.numel()


def trimmed(config: Any) -> Any:
    """Return *config* without what no cache depends on."""
    if not isinstance(config, dict):
        return config
    return {key: trimmed(value) for key, value in config.items() if not NOISE.fullmatch(key)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "check", "vllm", "llamacpp"))
    parser.add_argument("file", nargs="?")
    parser.add_argument("types", nargs="*")
    arguments = parser.parse_args()
    if arguments.action == "vllm":
        return plan([*filter(None, [arguments.file]), *arguments.types])
    if arguments.action == "llamacpp":
        if not arguments.types:
            parser.error("FOLDER or FILE is missing")
        path, *names = arguments.types
        return log_rows(Path(arguments.file), Path(path), set(names))
    if arguments.file is None:
        parser.error("FILE is missing")
    if arguments.action == "check":
        return check(Path(arguments.file))
    return record(Path(arguments.file), set(arguments.types))


if __name__ == "__main__":
    sys.exit(main())
