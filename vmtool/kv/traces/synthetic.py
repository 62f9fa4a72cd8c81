"""A synthetic trace: Poisson arrivals, log-normal lengths, the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from difflib import get_close_matches
from random import Random
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError
from vmtool.kv.traces.request_formats import MAX_TOKENS, PREFIX_TOKENS
from vmtool.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.kv.traces.request_formats import Row

#: What the name of a synthetic trace begins with.
SYNTHETIC: Final = "synthetic:"
_MOST_REQUESTS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Synthetic:
    """The settings of a synthetic trace.

    Attributes:
        requests: How many there are.
        rate: Arrivals for each second, on average.
        prompt: Median tokens of a prompt.
        output: Median tokens of an output.
        spread: Sigma of both logarithms; 0 makes all lengths equal.
        longest: No prompt and no output is longer.
        prefixes: How many different beginnings prompts have; 0 for none in common.
        prefix: Tokens of such a beginning, in whole blocks of 512.
    """

    requests: int = 1000
    rate: float = 5.0
    prompt: int = 1024
    output: int = 256
    spread: float = 1.0
    longest: int = 32768
    prefixes: int = 0
    prefix: int = 1024


def parse_synthetic(text: str) -> Synthetic:
    """Return the settings in *text*, such as ``synthetic:requests=1000,rate=5``.

    Raises:
        UsageError: If a name is unknown or a value out of range.
    """
    names = {field.name: field.type for field in fields(Synthetic)}
    values: dict[str, Any] = {}
    for part in filter(None, text.removeprefix(SYNTHETIC).split(",")):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in names:
            close = get_close_matches(name, names, n=1)
            raise UsageError(
                f"{SYNTHETIC} has no {name[:40]!r}",
                hint=f"did you mean {close[0]}?" if close else f"use {', '.join(names)}",
            )
        if name in values:
            raise UsageError(f"{SYNTHETIC} has {name} twice", hint="give it once")
        try:
            values[name] = float(value) if names[name] == "float" else parse_count(value)
        except ValueError as error:
            raise UsageError(f"{SYNTHETIC} {name}: {error}") from None
    settings = Synthetic(**values)
    _check(settings)
    return settings


def _check(settings: Synthetic) -> None:
    ranges = {
        "requests": (1, _MOST_REQUESTS),
        "rate": (1e-3, 1e6),
        "prompt": (1, MAX_TOKENS),
        "output": (1, MAX_TOKENS),
        "spread": (0, 5),
        "longest": (1, MAX_TOKENS),
        "prefixes": (0, 1 << 32),
        "prefix": (PREFIX_TOKENS, MAX_TOKENS),
    }
    for name, (low, high) in ranges.items():
        value = getattr(settings, name)
        if not low <= value <= high:  # not true of NaN either
            raise UsageError(f"{SYNTHETIC} {name}={value}: it must be from {low} to {high}")


def synthetic_requests(settings: Synthetic, seed: int) -> Iterator[Row]:
    """Yield the requests of *settings*; equal seeds give equal requests."""
    random = Random(seed)  # noqa: S311 - a workload, not a secret
    draw, gap = random.normalvariate, random.expovariate
    spread, longest = settings.spread, settings.longest
    prompt_mu, output_mu = math.log(settings.prompt), math.log(settings.output)
    blocks = settings.prefix // PREFIX_TOKENS
    prefix: tuple[int, ...] = ()
    at = 0.0
    for _ in range(settings.requests):
        prompt = round(math.exp(draw(prompt_mu, spread))) or 1
        output = round(math.exp(draw(output_mu, spread))) or 1
        prompt, output = min(prompt, longest), min(output, longest)
        if settings.prefixes:
            start = random.randrange(settings.prefixes) * blocks
            prefix = tuple(range(start, start + min(blocks, prompt // PREFIX_TOKENS)))
        yield round(at * 1e9), prompt, output, prefix
        at += gap(settings.rate)
