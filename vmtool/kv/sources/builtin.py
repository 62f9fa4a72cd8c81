"""The built-in models: the deciding fields of each model's published ``config.json``, and no more.

They are facts only, named as the files name them, and resolved as the files are. The text files in
``models`` have them; docs/kv-estimate.md says how they are written.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, replace
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
from vmtool.kv.sources.hf.config import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    "card": "model card or paper; no config.json was seen",
    "card-and-logs": "cache sizes in public logs agree; layers and heads from the model card",
    "copy": "copies of config.json in public source code",
    "hub": "config.json on huggingface.co, its own or a finetune's",
    "listing": "the list of the hub's models in github.com/AlexsJones/llmfit, October 2026",
    "log": "llama.cpp's log of its GGUF file, and DeepSeek's config_236B.json",
    "mlc": "github.com/mlc-ai/mlc-llm: model_preset.py",
    "ollama": "metadata of a GGUF file in Ollama's library",
    "params": "a copy of params.json in public source code",
}


@dataclass(slots=True)
class _Model:
    """One entry: its short name, its words, and the names of the hub with the same layers."""

    name: str
    words: list[str]
    #: With the context where it is another one.
    on_hub: dict[str, int | None] = field(default_factory=dict)

    def noted(self, mark: str) -> str | None:
        """Return what follows *mark* in one of its words."""
        return next((w.removeprefix(mark) for w in self.words if w.startswith(mark)), None)


@functools.cache
def _models() -> dict[str, _Model]:
    """Return every entry by its short name."""
    found: dict[str, _Model] = {}
    # Without pathlib, which would be a tenth of the command's start.
    folder = f"{os.path.dirname(__file__)}/models"  # noqa: PTH120
    for file_name in sorted(os.listdir(folder)):  # noqa: PTH208
        with open(f"{folder}/{file_name}", encoding="utf-8") as file:
            _read(file, found)
    return found


def _read(lines: Iterable[str], found: dict[str, _Model]) -> None:
    """Add the entries of *lines* to *found*; an indented line continues one."""
    model = _Model("", [])
    for line in lines:
        words = line.split()
        if words and not line.startswith(" "):
            model = _Model(words.pop(0), [])
            found[model.name] = model
        for word in words:
            if "/" in word:
                name, _, context = word.partition("=")
                model.on_hub[name] = int(context) if context else None
            else:
                model.words.append(word)


@functools.cache
def _aliases() -> dict[str, tuple[_Model, str]]:
    """Return entry and name by what a user may write, in lower case.

    That is a short name, the OWNER/NAME of the hub, or its NAME alone.
    """
    found: dict[str, tuple[_Model, str]] = {}
    for model in _models().values():
        for name in model.on_hub:
            found[name.lower()] = found[name.lower().rpartition("/")[2]] = model, name
    found |= {model.name: (model, model.name) for model in _models().values()}
    return found


def names() -> tuple[str, ...]:
    """Return every short name, sorted."""
    return tuple(sorted(_models()))


def hub_names() -> tuple[str, ...]:
    """Return every OWNER/NAME of the hub that is built in, sorted."""
    return tuple(sorted(name for model in _models().values() for name in model.on_hub))


def origin_of(name: str) -> str:
    """Return where the fields of the built-in model *name* were read."""
    model, _ = _aliases()[name.lower()]
    return _ORIGINS[model.noted("@") or ""]


def config_of(name: str) -> dict[str, Any]:
    """Return the config of the built-in model *name*, as its file has it.

    Raises:
        KeyError: If there is none of that name.
    """
    model, spelled = _aliases()[name.lower()]
    model_type, *words = model.words
    config: dict[str, Any] = {"model_type": model_type}
    columns = iter(_COLUMNS)
    for word in words:
        key, is_field, text = word.partition("=")
        if word in _DTYPES:
            config["torch_dtype"] = _DTYPES[word]
        elif not is_field:
            if not word.startswith("@"):
                config[next(columns)] = _value(word)
        elif key not in _WEIGHTS:
            *outer, key = key.split(".")
            target = config
            for name_of_object in outer:
                target = target.setdefault(name_of_object, {})
            target[key] = _blocks(text) if key == "block_configs" else _value(text)
    context = model.on_hub.get(spelled)
    return config if context is None else {**config, "max_position_embeddings": context}


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
    size in GB, or what its parameters take in their types.
    """
    model, _ = _aliases()[name.lower()]
    params, computed, gb = (model.noted(f"{word}=") for word in _WEIGHTS)
    count = params or computed
    if count is not None:
        return 2 * int(count)
    return None if gb is None else int(float(gb) * 1e9)


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
    return name.lower() in _aliases()


def load(name: str, overrides: Mapping[str, int]) -> ModelGeometry:
    """Return the geometry of the built-in model *name*, which must be `known`."""
    _, key = _aliases()[name.lower()]
    geometry = resolve(
        config_of(key), f"built-in {key}", key, source=Source.BUILTIN, overrides=overrides
    )
    read_in = Provenance(key, Source.BUILTIN, origin_of(key))
    return replace(geometry, provenance={"model": read_in, **geometry.provenance})


def suggestion(name: str) -> str:
    """Return what the user may have meant by *name*: first names that contain it, then close ones."""
    import difflib  # noqa: PLC0415  # only needed to help with a mistake

    wanted = name[:80].lower().rpartition("/")[2]
    short, on_hub = (
        sorted((each for each in several if wanted and wanted in each.lower()), key=len)
        for several in (names(), hub_names())
    )
    close = difflib.get_close_matches(wanted, names(), n=3)
    found = list(dict.fromkeys([*(short or on_hub), *close]))[:3]
    did_you_mean = f"did you mean {', '.join(found)}? " if found else ""
    return (
        f"{did_you_mean}give a path, OWNER/NAME, or a name that `vmtool kv-estimate --list` shows"
    )
