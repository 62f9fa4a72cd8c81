#!/usr/bin/env python3
"""Print what the config classes of transformers assume for fields that a file leaves out.

    config_defaults.py > vmtool/kv/sources/hf/config_defaults.txt

Needs an environment with transformers, without torch, and vmtool's own packages. A line has a type of
model and the values by the names that vmtool gives them; ``mha`` means that each query head has its own
KV head. ``WRAPPER/TYPE`` is a decoder for which the model around it assumes something else. Values that a
class works out from others (a head's width from the hidden size) are left out: vmtool does the same.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from vmtool.kv.sources.hf.architecture_lookup import families
from vmtool.kv.sources.hf.decoder_part import INNER_KEYS
from vmtool.kv.sources.hf.family import NAMES, Family

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Fields that vmtool reads by their own names.
RAW = (
    *("kv_lora_rank", "qk_rope_head_dim", "index_head_dim", "swa_head_dim"),
    *("n_input_layers", "n_output_layers", "n_recurrent_loops"),
)
#: Values that are not taken: how a list of kinds is made, what only counts with --draft-tokens, and, by
#: type, what its class works out from other fields than numbers.
_NOT = frozenset({"period", "mtp_layers"})
LEFT_OUT = {
    "": _NOT,
    "dbrx": _NOT | {"kv_heads"},
    "gpt_bigcode": _NOT | {"kv_heads"},
    "modernbert-decoder": _NOT | {"window"},
    "nemotron_h": _NOT | {"layers", "kv_heads"},
}


def main() -> int:
    """Print a line for each type that vmtool knows."""
    auto = importlib.import_module("transformers").CONFIG_MAPPING
    known = {name: family for name, family in families().items() if name in auto}
    own = {name: defaults(auto[name], family) for name, family in known.items()}
    for name in sorted(own):
        show(name, own[name])
    listed = importlib.import_module("transformers.models.auto.configuration_auto")
    for wrapper in sorted(set(listed.CONFIG_MAPPING_NAMES) - set(known)):
        for key in (*INNER_KEYS, "decoder", "decoder_config"):
            with contextlib.suppress(Exception):  # most have no decoder there
                name = getattr(auto[wrapper](), key).model_type
                found = defaults(auto[wrapper], known[name], key, name)
                if found != own[name]:
                    show(f"{wrapper}/{name}", found)
    return 0


def show(name: str, found: dict[str, int]) -> None:
    """Print the line of *name*."""
    values = (key if key == "mha" else f"{key}={value}" for key, value in found.items())
    if found:
        print(name, *values)


def defaults(kind: Any, family: Family, key: str = "", inner: str = "") -> dict[str, int]:
    """Return what a config of class *kind* assumes, or the decoder *inner* under its *key*."""

    def made(**values: int) -> Any:
        if not key:
            return kind(**values)
        return getattr(kind(**{key: {"model_type": inner, **values}}), key)

    first = made()
    own = first.to_dict()
    names = {**NAMES, **family.names, **{key: (key,) for key in RAW}}
    found: dict[str, int] = {}
    changed = list(twice(made, own))
    for name, keys in names.items():
        where = next((key for key in keys if type(own.get(key)) is int), None)
        if (
            where is None
            or own[where] < 1
            or name in LEFT_OUT.get(inner or kind.model_type, LEFT_OUT[""])
        ):
            continue
        value = own[where]
        if name.startswith("head_dim") and "kv_lora_rank" in own:
            continue  # of the latent's parts
        if all(other.get(where) == value for key, other in changed if key != where):
            found[name] = value
        elif name == "kv_heads" and value in [own.get(key) for key in names["heads"]]:
            found["mha"] = 1
    return found


def twice(made: Any, own: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each whole number of *own* by name, and the config in which it is twice as much."""
    for key, value in own.items():
        with contextlib.suppress(Exception):  # some contradict others then
            if type(value) is int and value > 1:
                yield key, made(**{key: 2 * value}).to_dict()


if __name__ == "__main__":
    raise SystemExit(main())
