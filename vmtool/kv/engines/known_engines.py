"""The engines that are modelled, their versions, and what all of them assume, need or refuse."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vmtool.errors import UsageError
from vmtool.kv.estimate_result import Budget  # noqa: TC001 - msgspec reads the types
from vmtool.kv.geometry import LayerKind

if TYPE_CHECKING:
    from vmtool.kv.estimate import Question
    from vmtool.kv.sequence_cost import SequenceCost

#: The engines that are modelled, with the newest version that is, and the option that sets it.
ENGINES: Final = {"vllm": "0.33", "llama.cpp": "0.5", "sglang": "0.5.23", "trtllm": "1.2"}
#: Types that say so with ``indexer_compress_ratio`` or ``index_kpool``.
_POOLED_INDEXES: Final = ("qwen4_exp", "glm5_next")


@dataclass(frozen=True, slots=True)
class EngineRank:
    """What the answer about an engine assumes of each rank.

    Attributes:
        budget: The memory of one rank.
        tp: Ranks among which the heads are divided.
        pp: Stages into which the layers are divided.
        dcp: Ranks among which the tokens are divided.
    """

    budget: Budget
    tp: int
    pp: int
    dcp: int


def find_engine(text: str) -> tuple[str, str]:
    """Return the engine and the version that ``--as`` *text* means, such as ``vllm@0.20``.

    Raises:
        UsageError: If there is none, with the closest name.
    """
    name, at, version = text.lower().partition("@")
    if name not in ENGINES:
        from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

        # Not so close that one engine is taken for another: trtllm is no vllm.
        close = get_close_matches(name, ENGINES, n=1, cutoff=0.85)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"unknown engine {name[:40]!r}", hint=f"{meant}use one of {', '.join(ENGINES)}"
        )
    if at and name != "vllm" and version != ENGINES[name]:
        raise UsageError(f"--as {text[:40]!r}: {name} is modelled as of {ENGINES[name]} only")
    if at and not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})*", version):
        raise UsageError(f"--as {text[:40]!r}: write a version such as vllm@0.33")
    if at and version_numbers(version)[:2] > version_numbers(ENGINES[name])[:2]:
        raise UsageError(f"--as {text[:40]!r}: {name} is modelled up to {ENGINES[name]}")
    return name, version or ENGINES[name]


def kv_bytes(question: Question, engine: str, blocks: int | None = None) -> int:
    """Return the memory of one rank for the KV cache; 0 where *blocks* say how large the pool is.

    Raises:
        UsageError: If neither is given.
    """
    budget: Budget | None = question.budget
    if budget is None:
        if blocks is not None:
            return 0
        raise UsageError(
            f"--as {engine} needs --budget", hint="give the memory of one rank, such as 20GiB"
        )
    return budget.kv_bytes


def refuse_pooled_indexes(question: Question, engine: str) -> None:
    """Fail for models whose index keys engines compress, which transformers keeps whole.

    Raises:
        UsageError: If it is such a model.
    """
    kind = question.geometry.architecture
    if kind.startswith(_POOLED_INDEXES):
        raise UsageError(
            f"--as {engine}: the index keys of {kind} are not modelled",
            hint="engines keep one for several tokens, and those of open groups apart",
        )


def refuse_compressed(cost: SequenceCost, engine: str) -> None:
    """Fail for DeepSeek-V4 and V4.1, which keep a window of latents in every layer, and entries of theirs.

    Raises:
        UsageError: If it is such a model.
    """
    if any(tensor.name == "window" for layer in cost.layers for tensor in layer.tensors):
        raise UsageError(
            f"--as {engine}: layers with {LayerKind.COMPRESSED.value} are not modelled"
        )


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the parts of a version such as ``0.20``, to compare it."""
    return tuple(int(part) for part in text.split("."))
