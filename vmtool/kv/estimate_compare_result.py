"""The documents of ``vmtool kv-estimate`` about several models, lengths or settings."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types
from dataclasses import dataclass

from vmtool.kv.estimate_result import Need, PolicyResult  # noqa: TC001


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One combination of a comparison or a sweep.

    Attributes:
        labels: What was chosen, by axis.
        model: The model's name.
        format_k: The element format of K.
        format_v: That of V.
        granule_bytes: The granule.
        policy: The packing policy.
        context_tokens: The length of a sequence.
        budget_bytes: The memory for the KV cache, or ``None`` if none was given.
        problem: Why this combination is not possible, or empty.
        fixed_bytes: The fixed part of a sequence.
        slope_bytes: Bytes for every *slope_tokens* further tokens.
        slope_tokens: The number of tokens that makes them whole.
        answer: What the policy makes of it; ``None`` if it is not possible.
        need: What the requested sequences need; ``None`` if it is not possible.
        engine_tokens: Tokens that the engine of ``--as`` has room for; ``None`` without one.
        engine_sequences: Sequences of that length that it has room for, in hundredths.
        engine_bytes: Bytes of its caches.
        best: Whether no other row is better.
    """

    labels: Mapping[str, str]
    model: str
    format_k: str
    format_v: str
    granule_bytes: int
    policy: str
    context_tokens: int
    budget_bytes: int | None
    problem: str = ""
    fixed_bytes: int = 0
    slope_bytes: int = 0
    slope_tokens: int = 1
    answer: PolicyResult | None = None
    need: Need | None = None
    engine_tokens: int | None = None
    engine_sequences: int | None = None
    engine_bytes: int | None = None
    best: bool = False


@dataclass(frozen=True, slots=True)
class EstimateComparison:
    """Every combination of the axes of ``--compare``.

    Attributes:
        sequences: The requested number of sequences.
        engine: The engine of ``--as``, or empty.
        rows: One for each combination.
    """

    sequences: int
    engine: str
    rows: tuple[ComparisonRow, ...]


@dataclass(frozen=True, slots=True)
class EstimateSweep:
    """Sequences of many lengths.

    Attributes:
        rows: One for each length.
    """

    rows: tuple[ComparisonRow, ...]


@dataclass(frozen=True, slots=True)
class ModelList:
    """The built-in models.

    Attributes:
        models: Their short names.
        on_hub: The OWNER/NAMEs of the hub that may be given as well, by the short name.
    """

    models: tuple[str, ...]
    on_hub: dict[str, tuple[str, ...]]
