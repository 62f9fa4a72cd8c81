"""What ``--budget``, ``--weights`` and ``--reserve`` mean on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vmtool.errors import UnavailableError, UsageError
from vmtool.units import parse_percent, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from vmtool.kv.estimate import Budget, Question
    from vmtool.kv.geometry import ModelGeometry

#: The origin of a budget that does not depend on this machine.
GIVEN: Final = "as given"


def read_budget(text: str, *, weights: str | None, reserve: int, ranks: int) -> Budget:
    """Return the budget of one rank.

    Args:
        text: A size; ``auto`` for the memory that this machine has available under every limit;
            a part of that, such as ``75%``; or ``cuda:N`` for a device's free memory.
        weights: A size, or a path that `vmtool.kv.weights.weights_bytes` takes; weights read from
            files are divided evenly among the ranks.
        reserve: Bytes for everything else.
        ranks: Ranks that divide the model.

    Raises:
        UsageError: If *text* or *weights* is none of these.
        UnavailableError: If the available memory is unknown, or there is no such device.
    """
    from vmtool.kv.estimate import Budget

    total, origin = _total(text)
    return Budget(total, origin, _weights(weights, ranks), reserve)


def _total(text: str) -> tuple[int, str]:
    name = text.strip().lower()
    if name == "cuda" or name.startswith("cuda:"):
        return _device_free(name)
    if name == "auto":
        return _available(), "available on this machine"
    if name.endswith("%"):
        try:
            part = parse_percent(name)
        except ValueError as error:
            raise UsageError(f"--budget: {error}") from None
        if not 0 < part <= 1:
            raise UsageError(f"--budget {text!r} must be above 0% and at most 100%")
        return int(_available() * part), f"{name} of what is available on this machine"
    try:
        total = parse_size(text, exact=False)
    except ValueError as error:
        raise UsageError(
            f"--budget: {error}", hint="give a size, a percentage, auto or cuda:0"
        ) from None
    if not total:
        raise UsageError("--budget: it must be more than 0")
    return total, GIVEN


def _available() -> int:
    from vmtool.machine import read_facts

    available = read_facts().available_bytes
    if available is None:
        raise UnavailableError(
            "the available memory of this machine is unknown", hint="give --budget a size"
        )
    return available


def _device_free(name: str) -> tuple[int, str]:
    from vmtool.cli.options import BACKING
    from vmtool.machine.devices import read_device_memory
    from vmtool.memory import device_ordinal
    from vmtool.memory.cuda.devices import device

    name = BACKING.convert(name, None, None)
    info = device(device_ordinal(name) or 0)  # without virtual memory management too
    return read_device_memory(info).free_bytes, f"free on {name}, {info.name}"


def _weights(text: str | None, ranks: int) -> int:
    if text is None:
        return 0
    if os.path.lexists(text):
        from vmtool.kv.weights import weights_bytes

        return -(-weights_bytes(text) // ranks)
    try:
        return parse_size(text, exact=False)
    except ValueError as error:
        raise UsageError(f"--weights: {error}", hint="or give the path of the weights") from None


#: Granules that are always shown beside the host's page: of Windows and some arm64, and of CUDA.
KNOWN_GRANULES: Final = (64 << 10, 2 << 20)
_LARGEST_GRANULE: Final = 1 << 40
_LARGEST_COUNT: Final = 1 << 48
_GEOMETRY_FLAGS: Final = ("layers", "kv_heads", "head_dim", "head_dim_v")


class Asked(NamedTuple):
    """The options, read and checked.

    Attributes:
        options: As click has them.
        model: The model, not yet divided among ranks.
        budget: The memory of one rank.
        granules: Those of the table, ascending.
        granule: That of the policies.
        waste_threshold: A part of what is committed.
    """

    options: Mapping[str, Any]
    model: ModelGeometry
    budget: Budget
    granules: tuple[int, ...]
    granule: int
    waste_threshold: Fraction

    @property
    def shard(self) -> ModelGeometry:
        """What the fullest rank holds of the model."""
        return self.divided(self.model)

    def divided(self, model: ModelGeometry) -> ModelGeometry:
        """Return what the fullest rank holds of *model*."""
        ranks = {name: self.options[name] for name in ("tp", "pp", "dcp")}
        return model if set(ranks.values()) == {1} else model.shard(**ranks)

    def question(
        self,
        *,
        model: ModelGeometry | None = None,
        dtype: str | None = None,
        granule: int | None = None,
        policy: str | None = None,
    ) -> Question:
        """Return the question, with what a comparison changes in it.

        Raises:
            UsageError: If the model cannot be divided so, or a format is unknown.
        """
        from vmtool.kv.estimate import Question
        from vmtool.kv.formats import choose_formats

        options = self.options
        model = model or self.model
        key = dtype or options["dtype_k"] or options["dtype"]
        value = dtype or options["dtype_v"] or options["dtype"]
        # llama.cpp reads GGUF files, which do not say it.
        engine = (options["engine"] or "").lower()
        cache_dtype = None if engine == "llama.cpp" else model.cache_dtype
        return Question(
            geometry=self.divided(model),
            formats=choose_formats(model.dtype, key=key, value=value, cache_dtype=cache_dtype),
            format_origin=_format_origin(model, key or value, cache_dtype),
            budget=self.budget,
            granules=self.granules,
            granule=granule or self.granule,
            policy=policy or options["policy"],
            block=options["block"],
            context=options["context"],
            sequences=options["sequences"],
            in_flight=options["in_flight"] or 0,
            waste_threshold=self.waste_threshold,
        )


def _format_origin(model: ModelGeometry, named: str | None, cache_dtype: str | None) -> str:
    """Return why the cache has its format; `choose_formats` has the sources."""
    if named is not None:
        return "as given"
    if cache_dtype is not None:
        return f"as {model.provenance['cache_dtype'].detail} says"
    if model.dtype in ("bf16", "fp16"):
        return "the model's own"
    if model.dtype is not None:
        return f"as vLLM serves models of {model.dtype} (llama.cpp: fp16)"
    return "assumed, as the type is not stated: vLLM takes that of the weights, llama.cpp fp16"


def asked(options: Mapping[str, Any]) -> Asked:
    """Return what *options* ask.

    Raises:
        UsageError: If they contradict each other or are out of range.
        InputError: If the model's file is not understood.
        UnavailableError: If the budget names something that this machine does not have.
    """
    _check(options)
    model = load_model(options)
    granules = options["granules"] or KNOWN_GRANULES[-1:]
    budget = read_budget(
        options["budget"],
        weights=options["weights"],
        reserve=options["reserve"],
        ranks=options["tp"] * options["pp"],
    )
    return Asked(
        options,
        model,
        budget,
        tuple(sorted({_host_page(), *KNOWN_GRANULES, *granules})),
        granules[0],
        _percent(options["waste"]),
    )


def load_model(options: Mapping[str, Any]) -> ModelGeometry:
    """Return the model that *options* name.

    Raises:
        UsageError: If they name none, or more than one.
    """
    from vmtool.kv import sources

    values = {name: options[name] for name in _GEOMETRY_FLAGS if options[name] is not None}
    if options["model"] and options["hub"]:
        raise UsageError("give MODEL or --hub, not both")
    if options["hub"]:
        return sources.from_hub(options["hub"], overrides=values)
    name = options["model"] or _first_compared(options["compare"])
    if name:
        return sources.load(name, overrides=values)
    missing = [name for name in ("layers", "kv_heads", "head_dim") if name not in values]
    if missing:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UsageError(
            f"no MODEL, and no {flags}" if values else "no MODEL",
            hint="vmtool kv-estimate --list shows the built-in models",
        )
    return sources.from_flags(**values)


def _first_compared(axes: Sequence[str]) -> str | None:
    """Return the first model that ``--compare model=A,B`` names."""
    for text in axes:
        axis, _, names = text.partition("=")
        if axis == "model":
            return names.partition(",")[0].strip()
    return None


def read_granule(text: str) -> int:
    """Return the granule that *text* means.

    Raises:
        UsageError: If it is not a size, or not one of a granule.
    """
    try:
        granule = parse_size(text)
    except ValueError as error:
        raise UsageError(f"granule: {error}") from None
    _check_granule(granule)
    return granule


def _check_granule(granule: int) -> None:
    if not 0 < granule <= _LARGEST_GRANULE:
        raise UsageError(f"a granule of {granule} B: it must be from 1 B to 1 TiB")


def _check(options: Mapping[str, Any]) -> None:
    chosen = [name for name in ("compare", "sweep", "engine") if options[name]]
    if len(chosen) > 1:
        raise UsageError("give one of --compare, --sweep and --as")
    if chosen and options["explain"]:
        raise UsageError("--explain goes with the answer about one model only")
    if options["csv"] and not (options["compare"] or options["sweep"]):
        raise UsageError("--csv needs --compare or --sweep")
    _check_engine(options)
    for granule in options["granules"]:
        _check_granule(granule)
    for name in ("context", "sequences", "in_flight", "block"):
        if (options[name] or 0) > _LARGEST_COUNT:
            raise UsageError(f"--{name.replace('_', '-')} {options[name]}: must be at most 2^48")


def _check_engine(options: Mapping[str, Any]) -> None:
    """Refuse what only an engine reads where it would be read by none."""
    from vmtool.kv.packing import POLICIES, unknown_policy

    engine = (options["engine"] or "").lower()
    if options["state_blocks"] != "none" and engine != "vllm":
        raise UsageError("--state-blocks goes with --as vllm only")
    if options["unified"] and engine != "llama.cpp":
        raise UsageError("--unified goes with --as llama.cpp only")
    if options["policy"] not in POLICIES:
        raise unknown_policy(options["policy"])


def _percent(text: str) -> Fraction:
    try:
        part = parse_percent(text)
    except ValueError as error:
        raise UsageError(f"--waste: {error}") from None
    # Below this the search for the length would follow more granules than anyone waits for.
    if not 1 <= part * 1000 < 1000:
        raise UsageError(f"--waste {text!r}: it must be from 0.1% to below 100%")
    return part


def _host_page() -> int:
    import mmap

    return mmap.PAGESIZE
