"""The model that options name: the options of kv-estimate and kv-replay, and what its tokens take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.parameter_types import COUNT
from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.geometry import ModelGeometry


#: Which model, in which format.
MODEL: Final = (
    click.option(
        "--hub", metavar="OWNER/NAME", help="Fetch config.json from the Hugging Face hub."
    ),
    click.option("--layers", type=COUNT, help="Number of layers; overrides that of MODEL."),
    click.option("--kv-heads", type=COUNT, help="KV heads per layer."),
    click.option("--head-dim", type=COUNT, help="Elements per head of K (and of V)."),
    click.option("--head-dim-v", type=COUNT, help="Elements per head of V."),
    click.option("--dtype", help="Element format of K and V: bf16, fp8, int8, q8_0, nvfp4, ..."),
    click.option("--dtype-k", help="Element format of K (and of MLA's latent)."),
    click.option("--dtype-v", help="Element format of V."),
    click.option("--dcp", type=COUNT, default=1, help="Divide the tokens among this many ranks."),
)
TP: Final = click.option(
    "--tp",
    type=COUNT,
    help="Divide the heads among this many ranks.  [default: 1, or the number of devices in --budget"
    " 8x...]",
)
#: Which model, in which format, on which rank: of every command about a model's KV cache.
MODEL_OPTIONS: Final = (
    *MODEL,
    TP,
    click.option("--pp", type=COUNT, default=1, help="Divide the layers into this many stages."),
)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model; the fields are those of the options.

    Attributes:
        model: A built-in name, a file, a folder, ``-``, OWNER/NAME or its address.
        hub: OWNER/NAME.
        layers: Layers, instead of the model's own.
        kv_heads: KV heads per layer.
        head_dim: Elements of a head of K.
        head_dim_v: Elements per head of V.
    """

    model: str | None = None
    hub: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    head_dim_v: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ModelOptions:
        """Return those of *options*, as click has them."""
        return cls(**{item.name: options[item.name] for item in fields(cls)})

    @property
    def overrides(self) -> dict[str, int]:
        """The values that win over the file's, by name."""
        names = ("layers", "kv_heads", "head_dim", "head_dim_v")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def load_model(options: ModelOptions) -> ModelGeometry:
    """Return the model that *options* name.

    Raises:
        UsageError: If they name none, or more than one.
    """
    from vmtool.kv import sources

    values = options.overrides
    if options.model and options.hub:
        raise UsageError("give MODEL or --hub, not both")
    if options.hub:
        return sources.from_hub(options.hub, overrides=values)
    if options.model:
        return sources.load(options.model, overrides=values)
    missing = [name for name in ("layers", "kv_heads", "head_dim") if name not in values]
    if missing:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UsageError(
            f"without MODEL, {flags} must be given too" if values else "no MODEL",
            hint="vmtool kv-estimate --list shows the built-in models",
        )
    return sources.from_flags(**values)


def load_cost(model: str) -> SequenceCost:
    """Return what a sequence of *model* costs in its own element type.

    Args:
        model: A built-in name, a file, or a folder with one.

    Raises:
        UsageError: If *model* is not known or cannot be read.
    """
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.element_formats import choose_formats
    from vmtool.kv.sources import load

    geometry = load(model)
    formats = choose_formats(geometry.dtype, key=None, value=None, cache_dtype=geometry.cache_dtype)
    return SequenceCost.of(geometry, formats)


def kv_tensors(model: str) -> tuple[tuple[str, int], ...]:
    """Return the name and the bytes per token of each kind of KV tensor of *model*.

    Raises:
        UsageError: If *model* is not known, cannot be read, or caches nothing per token.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for layer in load_cost(model).layers:
        for tensor in layer.tensors:
            key = (tensor.name, tensor.bytes_per_token)
            found.setdefault(key, []).append(layer.kind.value)
    if not found:
        raise UsageError(f"{model} caches nothing per token", hint="its states have a fixed size")
    names = [name for name, _ in found]
    return tuple(
        (name if names.count(name) == 1 else f"{name} ({kinds[0]})", nbytes)
        for (name, nbytes), kinds in found.items()
    )


def step_bytes(model: str, tokens: int) -> int:
    """Return what *tokens* more of a long sequence of *model* add to its cache.

    Raises:
        UsageError: If *model* is not known, cannot be read, or does not grow with the sequence.
    """
    slope = load_cost(model).slope
    if not slope:
        raise UsageError(f"the cache of {model} stops growing", hint="use --step SIZE")
    return math.ceil(slope * tokens)
