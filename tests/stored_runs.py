"""Runs of stress with samples that a test chooses, as results and as the documents in files."""

import copy
import json
import random
from dataclasses import replace

import jsonschema

from vmtool.cli.schema import json_schema
from vmtool.compare.run_sets import StoredRun, set_of
from vmtool.histograms import Histogram, summarize
from vmtool.json_documents import encode
from vmtool.machine.run_conditions import RunConditions
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.document_versions import DOCUMENTS, document_of
from vmtool.results.stress import (
    Accident,
    Advice,
    CallFailure,
    CallResult,
    Checkpoint,
    CounterReading,
    CounterSlope,
    MethodReason,
    MethodResult,
    Outcome,
    PhaseResult,
    Recommendation,
    Scaling,
    StressResult,
    StressSettings,
    UnmapResult,
)

ROUNDS = 20

MACHINE = {
    "system": {
        "os": "Linux",
        "kernel": "6.1.0",
        "arch": "x86_64",
        "cpu_model": "A",
        "cpus": 2,
        "cpus_usable": 2,
        "python": "3.11.7",
        "vmtool": "0.1.0",
    },
    "page_bytes": 4096,
    "memory": {"total_bytes": 8 << 30, "available_bytes": 4 << 30},
    "huge_pages": {"thp_mode": "madvise", "pmd_bytes": 2 << 20},
    "commit": {"mode": 0, "ratio_percent": 50},
    "cgroup": {
        "levels": [
            {"path": "/a", "version": 2, "limit_bytes": 4 << 30},
            {"path": "/", "version": 2},
        ]
    },
    "process": {"mappings": 100, "max_mappings": 65530},
}


def phase(name, samples, *, granule=65536):
    """One phase with *samples*, whose rounds are equal parts of them in order."""
    samples = list(samples)
    histogram = Histogram()
    histogram.extend(samples)
    step = max(len(samples) // ROUNDS, 1)
    parts = [sorted(samples[i : i + step]) for i in range(0, len(samples), step)]
    return PhaseResult(
        phase=name,
        total_bytes=granule * len(samples),
        summary=summarize(histogram.data()),
        histogram=histogram.data(),
        round_medians_ns=tuple(part[len(part) // 2] for part in parts),
    )


def method(name="fixed", *, rate=1000.0, **samples):
    """One method, with a list of samples by phase."""
    phases = tuple(phase(key, values) for key, values in samples.items())
    cycles = max((p.histogram.count for p in phases), default=0)
    return MethodResult(
        method=name,
        cycles=cycles,
        wall_ns=round(cycles * 1e9 / rate),
        cycles_per_s=rate,
        bytes_per_s=rate * 65536,
        degraded_bytes=0,
        quarantined_bytes=0,
        phases=phases,
    )


def run(*methods, machine=None, checks=None, settings=None, **fields):
    """One whole result with something in every list."""
    names = tuple(m.method for m in methods)
    base = {
        "settings": StressSettings(
            **{
                "backing": "host",
                "methods": names,
                "pattern": "tail",
                "capacity_bytes": 1 << 30,
                "budget_bytes": 512 << 20,
                "granule_bytes": 65536,
                "cycles": 1000,
                "duration_ns": None,
                "touch": "full",
                "verify": "sample",
                "huge": False,
                "prefault": False,
                "threads": 1,
                "workers": 1,
                "seed": 7,
                **(settings or {}),
            }
        ),
        "outcome": Outcome.COMPLETE,
        "wall_ns": 10**9,
        "overhead_ns": 120,
        "base_addresses": (0x7F0000000000,),
        "resident_before_bytes": 38 << 20,
        "resident_after_bytes": 39 << 20,
        "methods": methods,
        "recommendation": Recommendation(
            names[0], MethodReason.FASTEST, dict.fromkeys(names, 9000), names[0]
        )
        if names
        else None,
        "scaling": (Scaling("fixed", 2, 1, 1000.0, 1900.0, 1.9),),
        "checkpoints": tuple(checkpoint(i) for i in range(20)),
        "checkpoint_share": 0.01,
        "slopes": (
            CounterSlope("resident", 0, 0.5, -1.0, 2.0, 0.99, 20, 10, 4096, 4.3, leaks=False),
        ),
        "checks": checks
        if checks is not None
        else (
            Check("contents", CheckOutcome.PASSED, {"verify": "sample", "spans": 1000}),
            Check("zero", CheckOutcome.NOT_DONE, {"reason": "not requested"}),
        ),
        "accidents": (),
        "failures": (),
        "warnings": (
            Advice("resident", None, {"before_bytes": 38 << 20, "after_bytes": 99 << 20}),
        ),
        "machine": MACHINE if machine is None else machine,
        "peak_committed_bytes": 512 << 20,
        "peak_resident_bytes": 560 << 20,
        "budget_reached": True,
        "conditions": RunConditions(
            "2026-11-30T22:30:00Z", "worker-7", 86_400, (0.5, 0.4, 0.3), 0.93, "performance"
        ),
    }
    return StressResult(**(base | fields))


def checkpoint(index, *, observed=None):
    """One checkpoint whose four counters rise and fall."""
    held = (index % 10) * (1 << 20)
    readings = [("address_space", 1 << 30), ("charge", held), ("resident", held), ("mappings", 3)]
    return Checkpoint(
        at_ns=index * 50_000_000,
        cycle=index * 50,
        worker=0,
        method="fixed",
        buffers=tuple(
            CounterReading(name, value, value if observed is None else observed, value, value)
            for name, value in readings
        ),
        process={"address_space": 0, "charge": 4096, "resident": -4096, "mappings": None},
    )


def eventful(**fields):
    """A run in which a worker died and a call failed, so that every part has something in it."""
    accident = Accident(
        "signal", "SIGBUS", None, "touch", "fixed", 3, 17, 0, 0, "no huge page", "use --touch none"
    )
    failure = CallFailure(
        "mmap", "ENOMEM", "mmap(4096) failed", "commit", 3, 17, 0, True, "injected", None
    )
    whole = method(commit=gaussian(1, 2000, 1000), release=gaussian(2, 1500, 1000))
    called = phase("commit", gaussian(3, 900, 500))
    return run(
        replace(whole, calls=(CallResult("cuMemMap", called.summary, called.histogram),)),
        device="NVIDIA H200",
        unmapping=UnmapResult(True, 9, 5000, 90_000, 100_000, 3000),
        outcome=Outcome.CRASHED,
        accidents=(accident,),
        failures=(failure,),
        checks=(
            Check(
                "counters.resident",
                CheckOutcome.FAILED,
                {
                    "method": "fixed",
                    "cycle": 17,
                    "observed": 8192,
                    "expected": 4096,
                    "low": 4096,
                    "high": 4096,
                },
            ),
        ),
        **fields,
    )


def gaussian(seed, mean, count, *, spread=0.1):
    """Normal samples around *mean* ns, positive and whole, reproducible."""
    generator = random.Random(seed)
    return [max(round(generator.gauss(mean, mean * spread)), 1) for _ in range(count)]


def run_set(*results, path="set"):
    """One side of a comparison, each result a file of its own."""
    files = [
        StoredRun(f"{path}/{i}.json", ("vmtool", "stress"), "1", result)
        for i, result in enumerate(results)
    ]
    return set_of(path, files)


def several(count, *, seed=1, variation=0.02, factor=1.0, samples=60, **fields):
    """A set of *count* runs whose figures vary from run to run, *factor* slower than others."""
    generator = random.Random(seed)
    results = []
    for i in range(count):
        pace = factor * generator.lognormvariate(0, variation)
        made = method(
            rate=1000 / pace,
            commit=gaussian(seed * 100 + i, 50_000 * pace, samples, spread=0.02),
            touch=gaussian(seed * 200 + i, 400_000 * pace, samples, spread=0.02),
            release=gaussian(seed * 300 + i, 90_000 * pace, samples, spread=0.02),
        )
        results.append(run(made, **fields))
    return run_set(*results, path=f"set-{seed}")


def as_document(result):
    """The document that ``vmtool stress --json`` writes of *result*."""
    return json.loads(encode(result, document_of(result).head(["vmtool", "stress"])))


def write(path, result):
    """Write *result* as a file and return its path as text."""
    path.write_text(json.dumps(as_document(result)), encoding="utf-8")
    return str(path)


def described(document):
    """Check *document* against the schema made of its type, to the last key."""
    kinds = {kind.name: kind for kind in DOCUMENTS}
    if document["schema"] not in kinds:
        return  # its command has no type in vmtool.results yet
    kind = kinds[document["schema"]]
    assert document["version"] == kind.version
    made = json_schema(kind.load(), name=kind.name, version=kind.version, title=kind.title)
    jsonschema.validate(document, closed(made))


def schema_parts(schema):
    """Every schema inside *schema*, itself first."""
    yield schema
    for key in ("properties", "$defs"):
        for inner in schema.get(key, {}).values():
            yield from schema_parts(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schema_parts(schema[key])
    for inner in schema.get("anyOf", ()):
        yield from schema_parts(inner)


def closed(schema):
    """A copy of *schema* that allows no key beyond those it describes."""
    strict = copy.deepcopy(schema)
    for part in schema_parts(strict):
        if "properties" in part:
            part["additionalProperties"] = False
    return strict
