"""The built-in models: those fields of each published ``config.json`` that decide its cache.

They are facts only, named as the files name them, and resolved as the files are. The text files in
``models`` have them; docs/kv-estimate.md says how they are written.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vmtool.kv.geometry import (
    Layer,
    LayerKind,
    ModelGeometry,
    Provenance,
    Source,
    pair,
)
from vmtool.kv.sources.fields import FLAGS
from vmtool.kv.sources.hf.config_to_layers import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the bare numbers after the model type are, in order; ``key=value`` is any further field.
_COLUMNS: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "max_position_embeddings",
)
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
#: Words about the weights: parameters as published, computed from the config, and GB.
_WEIGHTS: Final = ("params", "computed", "gb")
_WORDS: Final = {"true": True, "false": False, "null": None}

#: Where the fields of a model were read, by the word after ``@``.
_ORIGINS: Final = {
    "aiconfigurator": "github.com/ai-dynamo/aiconfigurator: model_configs",
    "automodel": "github.com/NVIDIA-NeMo/Automodel: the config class of its type",
    "base": "the model that its card names as its base; no config.json was available",
    "card": "model card or paper; no config.json was available",
    "card-and-logs": "cache sizes in public logs agree; layers and heads from the model card",
    "convert": "Transformers' script that converts its checkpoints",
    "copy": "copies of config.json in public source code",
    "counted": (
        "the list of the hub's models in github.com/AlexsJones/llmfit, October 2026; the number of"
        " attention layers follows from its number of parameters, their order is that of smaller models"
    ),
    "defaults": "config.json on huggingface.co, and Transformers' defaults for what it leaves out",
    "docs": "documentation of public source code, and the hub's list in github.com/AlexsJones/llmfit",
    "gemma": "github.com/google-deepmind/gemma: its model configs; the number of parameters agrees",
    "hub": "config.json on huggingface.co, its own or a finetune's",
    "keras": "github.com/keras-team/keras-hub: a test and its presets; the number of parameters agrees",
    "listing": "the list of the hub's models in github.com/AlexsJones/llmfit, October 2026",
    "log": "llama.cpp's log of its GGUF file, and DeepSeek's config_236B.json",
    "maxtext": "github.com/AI-Hypercomputer/maxtext: its model configs",
    "megatron": "github.com/NVIDIA-NeMo/Megatron-Bridge; the number of parameters agrees",
    "mlc": "github.com/mlc-ai/mlc-llm: model_preset.py",
    "ollama": "metadata of a GGUF file in Ollama's library",
    "thinker": "copies of config.json in public source code; weights of the thinker, without the talker",
    "text": "the text model that it is made of, and the hub's list in github.com/AlexsJones/llmfit",
    "pull": "pull requests and issues on github.com, and the hub's list in github.com/AlexsJones/llmfit",
    "params": "a copy of params.json in public source code",
}


@functools.cache
def _text() -> str:
    """Return all entries, a line each; in the files, indented lines continue one."""
    # Without pathlib, which would be a tenth of the command's start.
    folder = f"{os.path.dirname(__file__)}/models"  # noqa: PTH120
    texts = [""]
    for file_name in sorted(os.listdir(folder)):  # noqa: PTH208
        with open(f"{folder}/{file_name}", encoding="utf-8") as file:
            texts.append(file.read().rstrip().replace("\n    ", " "))
    return "\n".join([*texts, ""])


def names() -> tuple[str, ...]:
    """Return every short name, sorted."""
    return tuple(sorted(line.partition(" ")[0] for line in _text().split("\n")[1:-1]))


def on_hub(name: str) -> tuple[str, ...]:
    """Return the OWNER/NAMEs of the hub that the entry of *name* stands for."""
    _, words = _known(name)
    return tuple(word.partition("=")[0] for word in words if "/" in word)


def hub_names() -> tuple[str, ...]:
    """Return every OWNER/NAME of the hub that is built in, sorted."""
    return tuple(sorted(word.partition("=")[0] for word in _text().split() if "/" in word))


@functools.cache
def _entry(name: str) -> tuple[str, list[str]] | None:
    """Return *name* as the entry has it, and the words of the entry.

    *name* is a short name, the OWNER/NAME of the hub, or its NAME alone, in any case. The text is
    searched and not parsed, as one entry of hundreds is wanted.
    """
    text = _text()
    lower, wanted = text.lower(), name.lower()
    if "=" in wanted or wanted.split() != [wanted]:
        return None
    for before in ("\n", " ", "/"):
        if before == " " and "/" not in wanted:
            continue  # it would be a field
        at = -1
        while (at := lower.find(before + wanted, at + 1)) >= 0:
            end = at + 1 + len(wanted)
            if lower[end] in " \n=":
                words = text[text.rfind("\n", 0, at + 1) + 1 : text.find("\n", at + 1)].split(" ")
                spelled = max(text.rfind(" ", 0, at + 1), text.rfind("\n", 0, at + 1)) + 1
                return text[spelled:end], words
    return None


def _noted(words: list[str], mark: str) -> str | None:
    """Return what follows *mark* in one of *words*."""
    return next((word.removeprefix(mark) for word in words if word.startswith(mark)), None)


def _known(name: str) -> tuple[str, list[str]]:
    entry = _entry(name)
    if entry is None:
        raise KeyError(name)
    return entry


def _own(words: list[str], spelled: str) -> tuple[str, str]:
    """Return the context and the GB that follow *spelled*, which are of that model of the hub only."""
    context, _, gb = (_noted(words, f"{spelled}=") or "").partition(",")
    return context, gb


def origin_of(name: str) -> str:
    """Return where the fields of the built-in model *name* were read."""
    _, words = _known(name)
    return _ORIGINS[_noted(words, "@") or ""]


def config_of(name: str) -> dict[str, Any]:
    """Return the config of the built-in model *name*, as its file has it.

    Raises:
        KeyError: If there is none of that name.
    """
    spelled, (_, model_type, *words) = _known(name)
    config: dict[str, Any] = {"model_type": model_type}
    columns = iter(_COLUMNS)
    for word in words:
        key, is_field, text = word.partition("=")
        if "/" in word or word.startswith("@"):
            continue
        if word in _DTYPES:
            config["torch_dtype"] = _DTYPES[word]
        elif not is_field:
            config[next(columns)] = _value(word)
        elif key not in _WEIGHTS:
            *outer, key = key.split(".")
            target = config
            for name_of_object in outer:
                target = target.setdefault(name_of_object, {})
            target[key] = _blocks(text) if key == "block_configs" else _value(text)
    context, _ = _own(words, spelled)
    return {**config, "max_position_embeddings": int(context)} if context else config


def _value(text: str) -> Any:
    """Return what *text* means; ``[conv*2,attention]`` is a list of three words."""
    if text.startswith("["):
        found = []
        for item in text[1:-1].split(","):
            word, _, times = item.partition("*")
            found += [_value(word)] * int(times or 1)
        return found
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if text.isdecimal() else text


def _blocks(text: str) -> list[dict[str, Any]]:
    """Return Nemotron-NAS's layers from their heads in a group; ``-`` has no attention."""
    blocks: list[dict[str, Any]] = [
        {"no_op": True} if heads == "-" else {"no_op": False, "n_heads_in_group": heads}
        for heads in _value(text)
    ]
    return [{"attention": block} for block in blocks]


def published_bytes(name: str) -> int | None:
    """Return how large the published weights of the built-in model *name* are, if known.

    That is two bytes for each parameter where the checkpoint has all of them so; else its published
    size in GB, or what its parameters take in their types. A quantised model of the hub has its own.
    """
    spelled, words = _known(name)
    params, computed, gb = (_noted(words, f"{word}=") for word in _WEIGHTS)
    _, own = _own(words, spelled)
    count, gb = (None, own) if own else (params or computed, gb)
    if count is not None:
        return 2 * int(count)
    return None if gb is None else int(float(gb.lstrip("~")) * 1e9)


def weights_origin(name: str) -> str:
    """Return how `published_bytes` knows the weights of the built-in model *name*."""
    spelled, words = _known(name)
    if _own(words, spelled)[1]:
        return "as published"
    counted = _noted(words, "computed=") or (_noted(words, "gb=") or "").startswith("~")
    made = "computed from its config" if counted else "as published"
    # Sizes in GB are of checkpoints whose types differ.
    return made if _noted(words, "gb=") else f"{made}, 16-bit"


def build(values: Mapping[str, int]) -> ModelGeometry:
    """Return equal full-attention layers; V is as wide as K unless ``head_dim_v`` is given."""
    facts = {name: Provenance(value, Source.FLAG, FLAGS[name]) for name, value in values.items()}
    dim = values["head_dim"]
    if "head_dim_v" not in values:
        facts["head_dim_v"] = Provenance(dim, Source.DERIVED, "flags", "as wide as K")
    tensors = pair(values["kv_heads"], dim, values.get("head_dim_v", dim))
    layers = tuple(Layer(i, LayerKind.FULL, tensors) for i in range(values["layers"]))
    return ModelGeometry("flags", "flags", layers, provenance=facts)


def known(name: str) -> bool:
    """Return whether *name* is a built-in model; upper and lower case are the same."""
    return _entry(name) is not None


def load(name: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of the built-in model *name*, which must be `known`."""
    key, _ = _known(name)
    geometry = resolve(
        config_of(key), f"built-in {key}", key, source=Source.BUILTIN, overrides=overrides
    )
    read_in = Provenance(key, Source.BUILTIN, origin_of(key))
    return replace(geometry, provenance={"model": read_in, **geometry.provenance})


def suggestion(name: str) -> str:
    """Return what the user may have meant by *name*: short names that contain it, or else close ones."""
    import difflib  # noqa: PLC0415  # only needed to help with a mistake
    import re  # noqa: PLC0415

    if "://" in name:
        return "give OWNER/NAME, or its address on https://huggingface.co"
    wanted = name[:80].lower().rpartition("/")[2]
    short, longer = (
        sorted((each for each in several if wanted and wanted in each.lower()), key=len)
        for several in (names(), hub_names())
    )
    plain = re.sub(r"[^a-z0-9]", "", wanted)
    same = [each for each in names() if re.sub(r"[^a-z0-9]", "", each) == plain]
    close = difflib.get_close_matches(wanted, names(), n=3)
    found = (short or [*dict.fromkeys([*same, *longer[:1], *close])])[:3]
    did_you_mean = f"did you mean {', '.join(found)}? " if found else ""
    return (
        f"{did_you_mean}give a path, OWNER/NAME, or a name that `vmtool kv-estimate --list` shows"
    )
