#!/usr/bin/env python3
"""What transformers itself caches, beside what vmtool counts for the same config.

    oracle.py record FILE [TYPE...]    run each model type of transformers without weights
    oracle.py check FILE               compare the rows of FILE with vmtool; exit 3 if any differs

``record`` needs torch and transformers, which vmtool does not: use an environment of its own. Models
are built on torch's ``meta`` device from the default config of their type, so that a model of any
size takes no memory, and run for a few tokens; the sizes are those of the cache that comes back.
``tests/unit/kv/sources/transformers.jsonl`` was recorded with transformers 5.24.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from vmtool.errors import VmtoolError
from vmtool.kv.geometry import ModelGeometry, Span, TensorRole
from vmtool.kv.sources.hf.config import resolve

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


# ---- transformers -----------------------------------------------------------------------------


def record(path: Path, wanted: set[str]) -> int:
    """Write a row for each model type that runs without weights, and name those that do not."""
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
    config._attn_implementation = "eager"  # noqa: SLF001 - its documented switch
    config._experts_implementation = "batched_mm"  # noqa: SLF001 - the others need real numbers
    with torch.device("meta"), torch.no_grad():
        model = getattr(transformers, class_name)(config).eval()
        output = model(**inputs(torch, config, model), use_cache=True)
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        cache = output.cache_params
    row = empty()
    for layer in getattr(cache, "self_attention_cache", cache).layers:
        add_layer(row, layer)
    if hasattr(cache, "cross_attention_cache"):
        cross = empty()
        for layer in cache.cross_attention_cache.layers:
            add_layer(cross, layer)
        row["cross"] = cross["per_token"] + sum(cross["windows"].values())
    row["windows"] = dict(row["windows"])
    return json.loads(config.to_json_string(use_diff=False)), row


def inputs(torch: Any, config: Any, model: Any) -> dict[str, Any]:
    """Return the arguments of a step that reads a few tokens."""
    ids = torch.zeros((1, TOKENS), dtype=torch.long)
    if not getattr(config, "is_encoder_decoder", False):
        return {"input_ids": ids}
    if getattr(model, "main_input_name", "input_ids") == "input_ids":
        long = torch.zeros((1, FRAMES), dtype=torch.long)
        return {"decoder_input_ids": ids, "input_ids": long}
    outputs = importlib.import_module("transformers.modeling_outputs")
    encoder = getattr(config, "encoder", None) or getattr(config, "encoder_config", None) or config
    frames = torch.zeros((1, FRAMES, encoder.hidden_size))
    return {
        "decoder_input_ids": ids,
        "encoder_outputs": outputs.BaseModelOutput(last_hidden_state=frames),
    }


def add_layer(row: dict[str, Any], layer: Any) -> None:
    """Add the elements of one layer of a cache to *row*."""
    keys = getattr(layer, "keys", None)
    if keys is not None and keys.numel():
        tokens = keys.shape[-2]
        count = sum(part.numel() // tokens for part in (layer.keys, layer.values))
        window = getattr(layer, "sliding_window", None)
        if window is not None and getattr(layer, "is_sliding", True):
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
            if name == "conv_states":  # the newest column is an input, not kept
                row["conv"] += state.numel() // state.shape[-1] * (state.shape[-1] - 1)
            else:
                row["recurrent"] += state.numel()


def trimmed(config: Any) -> Any:
    """Return *config* without what no cache depends on."""
    if not isinstance(config, dict):
        return config
    return {key: trimmed(value) for key, value in config.items() if not NOISE.fullmatch(key)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("types", nargs="*")
    arguments = parser.parse_args()
    if arguments.action == "check":
        return check(arguments.file)
    return record(arguments.file, set(arguments.types))


if __name__ == "__main__":
    sys.exit(main())
