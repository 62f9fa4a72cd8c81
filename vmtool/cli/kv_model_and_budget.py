"""The options for the model and the budget that both kv commands share, and how they are read."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.cli.options import COUNT, SIZE_OR_ZERO, BackingName
from vmtool.errors import RefusedError, UnavailableError, UsageError
from vmtool.units import MIB, SIZES_HINT, format_size, parse_percent, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from vmtool.kv.estimate import Question
    from vmtool.kv.estimate_result import Budget
    from vmtool.kv.geometry import ModelGeometry
    from vmtool.kv.sequence_cost import SequenceCost


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
#: How a budget becomes tokens: of every command that packs sequences.
RESERVE: Final = click.option("--reserve", type=SIZE_OR_ZERO, default=0, help="Also subtract SIZE.")
IN_FLIGHT_HELP: Final = (
    "Tokens that one step may add before a sliding window drops old ones; by default 0, as in"
    " decoding"
)
IN_FLIGHT: Final = click.option(
    "--in-flight", type=COUNT, metavar="TOKENS", help=f"{IN_FLIGHT_HELP}."
)
POLICY: Final = click.option(
    "--policy",
    default="per-tensor",
    show_default=True,
    metavar="NAME",
    help="Packing: per-tensor, kv-merged, token-major, head-major, paged, floor-per-page or"
    " straddle-loses.",
)
BLOCK: Final = click.option(
    "--block", type=COUNT, default=16, show_default=True, help="Tokens in a block."
)
#: The origin of a budget that does not depend on this machine.
GIVEN: Final = "as given"
_PART_OF: Final = re.compile(r"\s*([\d.]+\s*%)\s*of\s+(.+)", re.IGNORECASE | re.DOTALL)
_TIMES: Final = re.compile(r"\s*(\d{1,4})\s*[x*]\s*(?=\S)(.+)", re.IGNORECASE | re.DOTALL)
#: ``8B``: who writes that means 8 billion parameters.
_BILLIONS: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*B\s*")


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
    from vmtool.kv.sources import model_lookup

    values = options.overrides
    if options.model and options.hub:
        raise UsageError("give MODEL or --hub, not both")
    if options.hub:
        return model_lookup.from_hub(options.hub, overrides=values)
    if options.model:
        return model_lookup.load(options.model, overrides=values)
    missing = [name for name in ("layers", "kv_heads", "head_dim") if name not in values]
    if missing:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UsageError(
            f"without MODEL, {flags} must be given too" if values else "no MODEL",
            hint="vmtool kv-estimate --list shows the built-in models",
        )
    return model_lookup.from_flags(**values)


def load_cost(model: str) -> SequenceCost:
    """Return what a sequence of *model* costs in its own element type.

    Args:
        model: A built-in name, a file, or a folder with one.

    Raises:
        UsageError: If *model* is not known or cannot be read.
    """
    from vmtool.kv.element_formats import choose_formats
    from vmtool.kv.sequence_cost import SequenceCost
    from vmtool.kv.sources.model_lookup import load

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


@dataclass(frozen=True, slots=True)
class ChosenMemory:
    """What ``--budget`` names.

    Attributes:
        total_bytes: The memory of one rank.
        origin: Where that number came from.
        count: How many devices were named, or ``None``.
        is_device: Whether it is a device's, or a part of it, so that the weights are in it too.
        is_whole: Whether it is all that a device has, of which engines leave a part.
    """

    total_bytes: int
    origin: str
    count: int | None = None
    is_device: bool = False
    is_whole: bool = False


def read_memory(text: str) -> ChosenMemory:
    """Return what ``--budget`` *text* names.

    Args:
        text: A size; ``auto`` for the memory that this machine has available under every limit; a
            part of that, such as ``75%``; ``cuda:N`` for a device's free memory; the name of a
            device, such as ``h100``; ``90% of`` one of these; ``8x`` one of these.

    Raises:
        UsageError: If it is none of these.
        UnavailableError: If the available memory is unknown, or there is no such device.
    """
    if match := _TIMES.fullmatch(text):
        count = int(match[1])
        if not count:
            raise UsageError(f"--budget {text!r}: there must be at least one device")
        one = read_memory(match[2])
        if one.count is not None:
            raise UsageError(f"--budget {text!r} gives the number of devices twice")
        return replace(one, count=count)
    if match := _PART_OF.fullmatch(text):
        part = _part(match[1], text)
        whole = read_memory(match[2])
        name = whole.origin.removeprefix("all of ")
        name = match[2].strip() if whole.origin == GIVEN else name
        total = int(whole.total_bytes * part)
        return ChosenMemory(total, f"{match[1].strip()} of {name}", whole.count, is_device=True)
    name = text.strip().lower()
    if name == "cuda" or name.startswith("cuda:"):
        total, origin = _device_free(name)
        return ChosenMemory(total, origin, is_device=True)
    if name == "auto":
        return ChosenMemory(_available(), "available to this process")
    if name.endswith("%"):
        return ChosenMemory(
            int(_available() * _part(name, text)), f"{name} of what is available to this process"
        )
    from vmtool.kv.known_devices import find_device

    device = find_device(name)
    if device is not None:
        return ChosenMemory(device[1], f"all of one {device[0]}", is_device=True, is_whole=True)
    try:
        total = parse_size(text, exact=False)
    except ValueError as error:
        hint = (
            "give a size, auto, cuda:0, a device such as h100, part of one ('90% of h100') or "
            "several (8xh100)"
        )
        raise UsageError(f"--budget: {error}", hint=hint) from None
    if not total:
        raise UsageError("--budget: it must be more than 0")
    return ChosenMemory(total, GIVEN)


def _part(percent: str, text: str) -> Fraction:
    try:
        part = parse_percent(percent.replace(" ", ""))
    except ValueError as error:
        raise UsageError(f"--budget: {error}") from None
    if not 0 < part <= 1:
        raise UsageError(f"--budget {text!r} must be above 0% and at most 100%")
    return part


def _available() -> int:
    from vmtool.machine import read_facts

    available = read_facts().available_bytes
    if available is None:
        raise UnavailableError(
            "the available memory of this machine is unknown", hint="give --budget a size"
        )
    return available


def _device_free(name: str) -> tuple[int, str]:
    from vmtool.machine.device_memory import read_device_memory
    from vmtool.memory.backing_by_name import device_ordinal
    from vmtool.memory.cuda.devices import device

    name = BackingName("cuda or cuda:N").convert(name, None, None)
    try:
        info = device(device_ordinal(name) or 0)  # without virtual memory management too
    except UnavailableError as error:
        error.hint = "give --budget a size or the name of a device, such as 80GB or h100"
        raise
    return read_device_memory(info).free_bytes, f"free on {name}, {info.name}"


def ranks_of_heads(tp: int | None, pp: int, devices: int | None) -> int:
    """Return the ranks that divide the heads: *tp*, or as many as there are devices."""
    if tp is not None:
        return tp
    return max((devices or 1) // pp, 1)


def check_ranks(tp: int, pp: int, devices: int | None) -> None:
    """Fail if ``--budget`` names another number of devices than there are ranks.

    Raises:
        UsageError: If so.
    """
    if devices not in (None, tp * pp):
        raise UsageError(
            f"--budget names {devices} devices, but tp {tp} x pp {pp} are {tp * pp} ranks",
            hint="leave --tp out to divide the heads among all devices",
        )


def read_weights(text: str | None) -> tuple[int, str]:
    """Return the bytes of all weights, and where that number came from."""
    if text is None or text == "none":
        return 0, ""
    if os.path.lexists(text):
        from vmtool.kv.weights import weights_bytes

        return weights_bytes(text), "of their files"
    if match := _BILLIONS.fullmatch(text):
        size = format_size(int(float(match[1]) * 2 * 10**9))
        raise UsageError(
            f"--weights {text} is a number of bytes; for {match[1]} billion parameters, give their size",
            hint=f"at 16 bits each that is about {size}",
        )
    try:
        return parse_size(text, exact=False), "as given"
    except ValueError as error:
        raise UsageError(
            f"--weights: {error}", hint="give a size, or the path of the weights"
        ) from None


def own_weights(name: str | None) -> tuple[int, str]:
    """Return the bytes of the weights of the model that *name* means where they can be known, and how."""
    from vmtool.kv.sources import builtin
    from vmtool.kv.sources.model_lookup import remote_name

    if name is None:
        return 0, ""
    if builtin.known(name):
        nbytes = builtin.published_bytes(name)
        return (0, "") if nbytes is None else (nbytes, builtin.weights_origin(name))
    if name != "-" and os.path.lexists(name):
        from vmtool.kv.weights import bytes_beside

        found = bytes_beside(name)
        return (0, "") if found is None else (found, "of the files beside it")
    if remote_name(name) is not None:
        from vmtool.kv.weights import bytes_on_hub

        found = bytes_on_hub(name)
        return (0, "") if found is None else (found, "of its files on the hub")
    return 0, ""


def read_budget(memory: ChosenMemory, *, weights: str | None, reserve: int, ranks: int) -> Budget:
    """Return the budget of one rank.

    Args:
        memory: What ``--budget`` names.
        weights: A size, or a path that `vmtool.kv.weights.weights_bytes` takes; divided evenly
            among the ranks.
        reserve: Bytes for everything else.
        ranks: Ranks that divide the model.

    Raises:
        UsageError: If *weights* is not understood.
    """
    from vmtool.kv.estimate_result import Budget

    nbytes, origin = read_weights(weights)
    return Budget(memory.total_bytes, memory.origin, -(-nbytes // ranks), reserve, origin)


def refuse_weights(budget: Budget, ranks: int) -> None:
    """Fail if the weights and other memory leave nothing of *budget*.

    Raises:
        RefusedError: With how large they are.
    """
    other = budget.reserve_bytes
    if budget.weights_bytes + other <= budget.total_bytes:
        return
    from vmtool.report.kv_estimate import weights_text

    weights = f"the weights ({weights_text(budget, per_rank=ranks > 1)})"
    total = format_size(budget.total_bytes)
    if budget.weights_bytes <= budget.total_bytes:
        text = f"{format_size(other)} for other memory"
        text = f"{weights} and {text} are" if budget.weights_bytes else f"{text} is"
        raise RefusedError(
            f"{text} more than the budget of {total}",
            hint="lower --reserve or --overhead",
        )
    raise RefusedError(
        f"{weights} are more than the budget of {total}",
        hint=SIZES_HINT
        if budget.total_bytes < MIB
        else (
            "use more ranks (--tp), give the size that is loaded (--weights SIZE), or use "
            "--weights none"
        ),
    )


def refuse_large_weights(question: Question) -> None:
    """Fail if the weights leave nothing of the budget.

    Raises:
        RefusedError: With how large they are.
    """
    if question.budget is not None:
        refuse_weights(question.budget, question.geometry.tp * question.geometry.pp)
