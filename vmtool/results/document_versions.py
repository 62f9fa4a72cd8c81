"""The kinds of document: the name, version and type of each, and the conversion of version 1."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from vmtool import __version__
from vmtool.errors import UsageError


@dataclass(frozen=True, slots=True)
class Document:
    """One kind of document.

    Attributes:
        name: The name of the document, such as ``vmtool.stress``.
        version: Raised when a key changes or goes; a new key does not raise it.
        title: What the document is.
        module: Where its type is.
        type_name: What the type is called there.
    """

    name: str
    version: int
    title: str
    module: str
    type_name: str

    def load(self) -> type:
        """Import the type."""
        kind: type = getattr(import_module(self.module), self.type_name)
        return kind

    def head(self, command: list[str]) -> dict[str, Any]:
        """Return the first keys of a document that *command* made."""
        return {
            "schema": self.name,
            "version": self.version,
            "vmtool": __version__,
            "command": command,
        }


#: What version 1 stored of a check.
_OUTCOMES: Final = {True: "passed", False: "failed", None: "not done"}
DOCUMENTS: Final = (
    Document(
        "vmtool.check",
        1,
        "A first look at a machine, by vmtool check",
        "vmtool.results.check",
        "MachineCheckResult",
    ),
    Document(
        "vmtool.granularity",
        2,
        "What each backing can map, and in what unit, by vmtool granularity",
        "vmtool.results.granularity",
        "GranularityResult",
    ),
    Document(
        "vmtool.doctor",
        2,
        "The limits of a machine, by vmtool doctor",
        "vmtool.results.doctor",
        "DoctorResult",
    ),
    Document(
        "vmtool.reserve",
        2,
        "A reservation of addresses, by vmtool reserve",
        "vmtool.results.reserve",
        "ReserveResult",
    ),
    Document(
        "vmtool.grow",
        2,
        "A buffer grown in place and by copying, by vmtool grow",
        "vmtool.results.grow",
        "GrowResult",
    ),
    Document(
        "vmtool.compare",
        2,
        "Two sets of runs of vmtool stress, compared by vmtool compare",
        "vmtool.results.compare",
        "CompareResult",
    ),
    Document(
        "vmtool.kv-replay",
        1,
        "A replay of a trace of requests, by vmtool kv-replay",
        "vmtool.results.kv_replay",
        "ReplayResult",
    ),
    Document(
        "vmtool.kv-replay.compare",
        1,
        "Replays of a trace under several rules, by vmtool kv-replay --compare",
        "vmtool.results.kv_replay",
        "ReplayComparison",
    ),
    Document(
        "vmtool.fleet",
        1,
        "Results of many machines, judged against each other by vmtool fleet",
        "vmtool.results.fleet",
        "FleetResult",
    ),
    Document(
        "vmtool.fleet.baseline",
        1,
        "What is usual for a kind of machine, written by vmtool fleet --save",
        "vmtool.results.fleet",
        "FleetBaseline",
    ),
    Document(
        "vmtool.inspect",
        1,
        "A look at a process by vmtool inspect",
        "vmtool.results.inspect",
        "InspectResult",
    ),
    Document(
        "vmtool.allocators",
        1,
        "A device's allocators, compared with virtual memory management, by vmtool allocators",
        "vmtool.results.allocators",
        "AllocatorsResult",
    ),
    Document(
        "vmtool.stress", 2, "A result of vmtool stress", "vmtool.results.stress", "StressResult"
    ),
    Document(
        "vmtool.matrix",
        2,
        "Every pattern with every method and granule, by vmtool matrix",
        "vmtool.results.matrix",
        "MatrixResult",
    ),
    Document(
        "vmtool.limits",
        2,
        "How much can be reserved, committed, mapped and locked, by vmtool limits",
        "vmtool.results.limits",
        "LimitsResult",
    ),
    Document(
        "vmtool.guards",
        2,
        "Whether memory that is not committed faults, by vmtool guards",
        "vmtool.results.guards",
        "GuardsResult",
    ),
    Document(
        "vmtool.kv-estimate",
        2,
        "What a model's KV cache costs, by vmtool kv-estimate",
        "vmtool.kv.estimate_result",
        "EstimateResult",
    ),
    Document(
        "vmtool.kv-estimate.compare",
        2,
        "A comparison by vmtool kv-estimate --compare",
        "vmtool.kv.estimate_compare_result",
        "EstimateComparison",
    ),
    Document(
        "vmtool.kv-estimate.sweep",
        2,
        "Sequences of many lengths, by vmtool kv-estimate --sweep",
        "vmtool.kv.estimate_compare_result",
        "EstimateSweep",
    ),
    Document(
        "vmtool.kv-estimate.models",
        1,
        "The built-in models, by vmtool kv-estimate --list",
        "vmtool.kv.estimate_compare_result",
        "ModelList",
    ),
    Document(
        "vmtool.kv-estimate.vllm",
        1,
        "What vLLM would make of the memory, by vmtool kv-estimate --as vllm",
        "vmtool.kv.engines.vllm",
        "VllmResult",
    ),
    Document(
        "vmtool.kv-estimate.sglang",
        1,
        "What SGLang would make of the memory, by vmtool kv-estimate --as sglang",
        "vmtool.kv.engines.sglang",
        "SglangResult",
    ),
    Document(
        "vmtool.kv-estimate.llama.cpp",
        1,
        "The caches that llama.cpp would make, by vmtool kv-estimate --as llama.cpp",
        "vmtool.kv.engines.llamacpp",
        "LlamaCppResult",
    ),
    Document(
        "vmtool.kv-estimate.trtllm",
        1,
        "What TensorRT-LLM would make of the memory, by vmtool kv-estimate --as trtllm",
        "vmtool.kv.engines.trtllm",
        "TrtllmResult",
    ),
)


def document_of(result: Any) -> Document:
    """Return the kind of document that *result* is."""
    kind = type(result)
    for document in DOCUMENTS:
        if (document.module, document.type_name) == (kind.__module__, kind.__name__):
            return document
    raise TypeError(
        f"{kind.__module__}.{kind.__name__} is not in vmtool.results.document_versions.DOCUMENTS"
    )


def document_named(name: str) -> Document:
    """Return the kind of document called *name*; ``vmtool.`` in front may be left out.

    Raises:
        UsageError: If there is no such document.
    """
    names = {document.name.removeprefix("vmtool."): document for document in DOCUMENTS}
    short = name.removeprefix("vmtool.")
    if short in names:
        return names[short]
    from difflib import get_close_matches  # noqa: PLC0415 - for a mistake only

    near = get_close_matches(short, names, n=1)
    raise UsageError(
        f"no document is called {name!r}",
        hint=f"did you mean {near[0]}?" if near else f"use one of {', '.join(names)}",
    )


def from_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a stress result of version 1, which vmtool 0.1 wrote, with the present keys.

    What is not as version 1 wrote it stays as it is, and is refused when it is decoded.
    """
    new = dict(document)
    checks = _map(new.pop("verdicts", None), _check)
    if checks is not None:
        new["checks"] = checks
    for key, change in (
        ("checkpoints", _checkpoint),
        ("slopes", _slope),
        ("warnings", _warning),
    ):
        if key in new:
            new[key] = _map(new[key], change)
    recommendation = new.get("recommendation")
    if isinstance(recommendation, dict) and "method" in recommendation:
        method = recommendation["method"]
        new["recommendation"] = {
            "method": method,
            "reason": "fastest",
            "cycle_ns": {},
            "fastest": method,
        }
    settings, methods = new.get("settings"), new.get("methods")
    if isinstance(settings, dict):
        new["settings"] = {"runs": 1, **settings}
        if "outcome" in new and "wall_ns" in new and isinstance(methods, list):
            new["runs"] = [
                {
                    "index": 0,
                    "outcome": new["outcome"],
                    "wall_ns": new["wall_ns"],
                    "order": settings.get("methods", []),
                    "methods": methods,
                }
            ]
    return new


def _map(items: Any, change: Any) -> Any:
    if not isinstance(items, list):
        return items
    return [change(dict(item)) if isinstance(item, dict) else item for item in items]


def _rename(item: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in item.items()}


def _check(item: dict[str, Any]) -> dict[str, Any]:
    values = {key: item[key] for key in ("detail", "hint") if isinstance(item.get(key), str)}
    passed, name = item.get("passed"), item.get("check")
    if isinstance(name, str):
        name = name.replace("ledger.", "counters.", 1)
    known = passed is None or isinstance(passed, bool)
    return {"name": name, "outcome": _OUTCOMES[passed] if known else passed, "values": values}


def _checkpoint(item: dict[str, Any]) -> dict[str, Any]:
    if "buffers" in item:
        item["buffers"] = _map(
            item["buffers"], lambda reading: _rename(reading, ledger="counter", believed="expected")
        )
    return item


def _slope(item: dict[str, Any]) -> dict[str, Any]:
    low, high = item.get("low"), item.get("high")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        item["detectable_per_cycle"] = (high - low) / 2
    return _rename(item, ledger="counter")


def _warning(item: dict[str, Any]) -> dict[str, Any]:
    values = {key: item[key] for key in ("message", "hint") if isinstance(item.get(key), str)}
    return {"kind": item.get("kind"), "values": values}
