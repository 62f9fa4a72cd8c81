"""What each JSON document of vmtool is made of, in types: the source of ``make_schemas.py``.

A document has a form or several, each of one body or more: a result type, whose fields are its
keys, or a dict. A kind is a
type; a dict, which is an object with those keys (``?`` at the end: may be left out; ``*``:
every other key); a list of one
kind, which is an array of it; or one of the classes below.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also where it isn't installed

from vmtool import stats
from vmtool.compare import differences, runs
from vmtool.kv import estimate, geometry
from vmtool.kv.engines import llamacpp
from vmtool.kv.packing import capacity
from vmtool.machine import doctor, facts
from vmtool.memory import backing
from vmtool.memory.cuda import devices
from vmtool.probes import granularity, grow, limits
from vmtool.probes.guards import calls, children
from vmtool.replay import plan as replay_plan
from vmtool.report import compare as compared
from vmtool.report import granularity as granularity_report
from vmtool.report import replay_table
from vmtool.results import replay as replayed
from vmtool.results import stress
from vmtool.stress import matrix

#: Where types are found that a module imports for its annotations only.
MODULES = (
    *(
        granularity,
        backing,
        capacity,
        limits,
        doctor,
        runs,
        compared,
        devices,
        differences,
        facts,
        geometry,
    ),
    *(grow, granularity, grow, children, limits, llamacpp, matrix, calls, stress, stats),
    *(replay_plan, replay_table, replayed, granularity_report, estimate),
)


@dataclass(frozen=True)
class Told:
    """A kind with a description."""

    kind: Any
    description: str


@dataclass(frozen=True)
class Either:
    """A choice of kinds."""

    kinds: tuple[Any, ...]


@dataclass(frozen=True)
class Document:
    """One document: its forms, each made of bodies.

    *bounded* integers fit 63 bits, because vmtool reads it back; *without* are fields of its types
    that it has in another form.
    """

    version: int
    title: str
    forms: tuple[tuple[Any, ...], ...]
    bounded: bool = False
    without: frozenset[str] = frozenset()


#: A number that can be negative.
SIGNED = object()

_PASSED = Told(bool | None, "null when it could not be told here.")


def _ledger(unit: str) -> dict[str, Any]:
    return {
        f"before{unit}": Told(int | None, "The whole process before."),
        f"after{unit}": Told(int | None, "The whole process after."),
        f"change{unit}": Told(Either((SIGNED, None)), "The difference of the two."),
        f"in_range{unit}": Told(int | None, "Inside the reserved range only."),
        f"expected{unit}": Told(int, "What in_range must be."),
        "passed": _PASSED,
    }


_RESERVE = {
    "machine": facts.MachineFacts,
    "backing": str,
    "device": Told(str | None, "The driver's own name of the device; null for the host."),
    "method": str,
    "base": Told(int, "The first address."),
    "capacity_bytes": int,
    "reserve_ns": Told(int, "How long the call took."),
    "ledgers": {
        f"{name}?": _ledger("" if name == "mappings" else "_bytes")
        for name in (*stress.COUNTERS, "device_memory")
    },
    "passed": bool,
}

_GROW = {
    "machine": facts.MachineFacts,
    "passed": Told(bool, "Whether every check passed."),
    "budget_bytes": Told(int, "What may be committed at once."),
    "planned_steps": int,
    "steps": Told(
        {
            "length_bytes": tuple[int, ...],
            "committed_bytes": tuple[int, ...],
            "elapsed_ns": tuple[int, ...],
        },
        "Columns of one table, with one item for each step.",
    ),
}

_POLICY = {
    "floor_bytes": Told(int, "What the first token commits."),
    "reserved_bytes": int,
    "used_bytes": Told(int, "What the tokens of one sequence of context_tokens take."),
    "committed_bytes": Told(int, "What is committed for them."),
    "wasted_bytes": Told(int, "The difference."),
    "waste_ends_tokens": Told(int | None, "From how many tokens on the waste is small for good."),
    "one_sequence": Told(capacity.Capacity, "Tokens in one sequence."),
    "sequences_of_context": Told(capacity.Capacity, "Sequences of context_tokens."),
    "longest_for_sequences": Told(capacity.Capacity, "Tokens in each of so many sequences."),
}
_IMPOSSIBLE = {"impossible": Told(str, "Why there is no answer.")}

_ESTIMATE = {
    "machine": Told(facts.MachineFacts | None, "null where the budget does not depend on it."),
    "model": {
        "name": str,
        "architecture": str,
        "layers": int,
        "context_tokens": int | None,
        **{name: Told(int, "Ranks of that kind of parallelism.") for name in ("tp", "pp", "dcp")},
    },
    "format_k": Told(str, "The element format of K."),
    "format_v": Told(str, "The element format of V."),
    "format_origin": Told(str, "Where the formats come from."),
    "budget": {
        "total_bytes": int,
        "weights_bytes": int,
        "reserve_bytes": Told(int, "Kept free."),
        "kv_bytes": Told(int, "What is left for the cache."),
        "origin": Told(str, "Where the total comes from."),
    },
    "context_tokens": int,
    "sequences": int,
    "granule_bytes": int,
    "block_tokens": int,
    "in_flight_tokens": int,
    "sequence": {
        "fixed_bytes": Told(int, "What a sequence takes whatever its length."),
        "slope_bytes": Told(int, "With slope_tokens: what that many more tokens take."),
        "slope_tokens": int,
        "saturation_tokens": Told(int, "From here on the slope holds."),
        "at_context_bytes": int,
        "marginal_bytes": Told(int, "What the next token takes there."),
    },
    "layers": [
        {
            "kind": geometry.LayerKind,
            "indices": tuple[int, ...],
            "bytes_per_token_held": int,
            "cross_attention_bytes": Told(int, "What is kept of an encoder's output."),
            "state_bytes": int,
        }
    ],
    "tensors": [
        {
            "name": str,
            "kind": geometry.LayerKind,
            "layers": int,
            "format": str,
            "heads": int,
            "row_bytes": int,
            "bytes_per_token": int,
            "extent": geometry.Extent,
            "granules": tuple[estimate.Fit, ...],
            "block_tiles": Told(bool, "Whether a block fills whole granules."),
            "suggested_block_tokens": Told(int, "The next block that does."),
        }
    ],
    "policy": Told(str, "The packing that was asked about."),
    "policies": Told({"*": Either((_POLICY, _IMPOSSIBLE))}, "By name."),
    "prefill?": Told(
        {
            "in_flight_tokens": int,
            "one_sequence": Told(capacity.Capacity, "Tokens in one sequence."),
            "sequences_of_context": Told(capacity.Capacity, "Sequences of context_tokens."),
        },
        "The same packing while each sequence reads so many tokens at once; only if that takes more.",
    ),
    "provenance?": Mapping[str, geometry.Provenance],
}

_ROW = {
    "model": str,
    "format_k": str,
    "format_v": str,
    "granule_bytes": int,
    "policy": str,
    "context_tokens": int,
    "budget_bytes": int,
}
_SLOPE = {
    "fixed_bytes": Told(int, "What a sequence takes whatever its length."),
    "slope_bytes": int,
    "slope_tokens": int,
}


def _rows(more: dict[str, Any]) -> Any:
    return [Either(({**_ROW, **_SLOPE, **_POLICY, **more}, {**_ROW, **_IMPOSSIBLE, **more}))]


_VLLM = {
    "engine": str,
    "format_k": Told(str, "The element format of K that the engine makes of the one asked for."),
    "num_blocks": int,
    "block_tokens": int,
    "page_bytes": int | None,
    "groups": int,
    "group_layers": int,
    "padding_layers": int,
    "blocks_per_request": int,
    "state_padding_bytes": int,
    "max_model_len_tokens": int,
    "tokens_older": int,
    "tokens_newer": int,
    "log_lines": Told(Mapping[str, tuple[str, ...]], "By the versions that log so."),
}
_SGLANG = {
    "engine": str,
    "page_tokens": int,
    "token_bytes": Told(int, "What a token takes in all layers of a rank."),
    "max_total_num_tokens": int,
    "key_bytes": Told(int, "The buffers of K, or of latents."),
    "value_bytes": Told(int | None, "Those of V; null for latents."),
    "log_lines": Told(Mapping[str, tuple[str, ...]], "By the versions that log so."),
}
_LLAMACPP = {
    "engine": str,
    "context_tokens": int,
    "sequences": int,
    "unified": Told(bool, "Whether all sequences share one cache."),
    "total_bytes": int,
    "buffers": tuple[llamacpp.LlamaCppBuffer, ...],
    "log_lines": tuple[str, ...],
}

_MACHINE = {
    "machine": facts.MachineFacts,
    "available_bytes": Told(int | None, "What this process can commit and touch."),
    "safe_bytes": Told(int, "What vmtool commits at most without being asked."),
    "limiting_bound": Told(
        str, "Whose limit safe_bytes comes from: the kind of a check of vmtool doctor."
    ),
}
_RAN_ON = {"machine": facts.MachineFacts}
_GRANULARITY = {
    **_MACHINE,
    "commit_headroom_bytes": Told(Either((SIGNED, None)), "Limit less charge."),
    "backings": tuple[granularity.BackingSurvey, ...],
    "tokens_per_granule": tuple[granularity_report.TokensPerGranule, ...],
}
_DOCTOR = {
    **_MACHINE,
    "counts": Told(Mapping[str, int], "Findings by rating."),
    "checks": [{"section": str, "check": doctor.Finding}],
}

DOCUMENTS: dict[str, Document] = {
    "vmtool.granularity": Document(
        1,
        "What vmtool granularity found",
        ((_GRANULARITY,),),
    ),
    "vmtool.doctor": Document(
        1,
        "What vmtool doctor found",
        ((_DOCTOR,),),
    ),
    "vmtool.reserve": Document(1, "A reservation by vmtool reserve", ((_RESERVE,),)),
    "vmtool.grow": Document(
        1,
        "A buffer that vmtool grow grew and shrank",
        ((_GROW, grow.GrowResult),),
        without=frozenset({"lengths_bytes", "committed_bytes", "elapsed_ns", "error"}),
    ),
    "vmtool.stress": Document(1, "A run of vmtool stress", ((stress.StressResult,),), bounded=True),
    "vmtool.stress-matrix": Document(
        1,
        "Every pattern, method and granule, by vmtool stress --matrix",
        ((_RAN_ON, matrix.MatrixReport),),
    ),
    "vmtool.stress-ceiling": Document(
        1, "How far it goes, by vmtool stress --find-ceiling", ((_RAN_ON, limits.CeilingReport),)
    ),
    "vmtool.stress-guards": Document(
        1,
        "What touching uncommitted memory does, by vmtool stress --prove-faults",
        (({**_RAN_ON, "passed": bool}, children.GuardReport),),
    ),
    "vmtool.compare": Document(
        1,
        "Two runs of vmtool stress held against each other",
        ((compared.ComparedRuns, runs.Comparison),),
    ),
    "vmtool.kv-estimate": Document(
        1,
        "What a model's KV cache costs, or the built-in models",
        ((_ESTIMATE,), ({"models": tuple[str, ...]},)),
    ),
    "vmtool.kv-estimate.compare": Document(
        1,
        "A comparison by vmtool kv-estimate --compare",
        (({"rows": _rows({"best": Told(bool, "Whether no row holds more tokens.")})},),),
    ),
    "vmtool.kv-estimate.sweep": Document(
        1, "A sweep by vmtool kv-estimate --sweep", (({"rows": _rows({})},),)
    ),
    "vmtool.kv-estimate.engine": Document(
        1,
        "What an engine would log, by vmtool kv-estimate --as",
        ((_VLLM,), (_LLAMACPP,), (_SGLANG,)),
    ),
    "vmtool.kv-replay": Document(
        1, "A request trace replayed by vmtool kv-replay", ((replayed.ReplayResult,),)
    ),
    "vmtool.kv-replay.compare": Document(
        1,
        "Replays of one trace under several rules, by vmtool kv-replay --compare",
        ((replay_table.ReplayComparison,),),
    ),
}
