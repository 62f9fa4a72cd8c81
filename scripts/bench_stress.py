#!/usr/bin/env python3
"""Measure what stress itself costs: verification, checkpoints, and the worker process.

    bench_stress.py [--seconds S] [--json]

Everything is a ratio of interleaved runs of this machine, so that its speed cancels:

* full verification against none, with full touch at 2 MiB: wall time of a cycle (at most 1.6);
* the part of a run that checkpoints take, at the default settings (at most 2 %);
* the medians of each phase in a worker process against the same session in this process (1).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also where it is not installed

from vmtool.machine import read_facts
from vmtool.memory.backing_by_name import host_methods, open_backing
from vmtool.results.stress import StressSettings
from vmtool.stress.journal import Journal
from vmtool.stress.messages import WorkerPlan
from vmtool.stress.parent.run_workers import run_stress
from vmtool.stress.plan import settle
from vmtool.stress.safe_memory import Room
from vmtool.stress.worker.session import Session

if TYPE_CHECKING:
    from vmtool.results.stress import MethodResult

ROUNDS = 7
HANG_NS = 60 * 10**9


def settings_for(seconds: float, **options: object) -> StressSettings:
    """Return the default run of *seconds*, but for *options*."""
    methods = host_methods()[:1]
    settings = StressSettings(methods=methods, seed=1, duration_ns=round(seconds * 1e9), runs=1)
    settings = replace(settings, **options)  # type: ignore[arg-type]
    return settle(settings, open_backing(), Room(read_facts().safe_bytes))


def in_worker(settings: StressSettings) -> tuple[MethodResult, float]:
    """Run in a worker; return its one method and the share of checkpoints."""
    result = run_stress(settings, read_facts(), hang_ns=HANG_NS)
    if not result.passed:
        raise SystemExit("a check failed; run vmtool stress for the details")
    return result.methods[0], result.checkpoint_share


def in_process(settings: StressSettings) -> MethodResult:
    """Run the same session in this process."""
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "j", 1) as journal:
        plan = WorkerPlan(settings, 0)
        session = Session(plan, journal, lambda _session: None, lambda _checkpoint: None)
        session.prepare()
        session.run()
        method = session.close().methods[0]
        session.buffers.clear()
        return method


def cycle_ns(method: MethodResult) -> float:
    """Return the wall time of one cycle."""
    return method.wall_ns / method.cycles


def phase_ratio(one: MethodResult, other: MethodResult, phase: str) -> float:
    """Return the quotient of two medians."""
    a, b = one.phase(phase), other.phase(phase)
    if a is None or b is None or not a.summary.median_ns or not b.summary.median_ns:
        raise SystemExit(f"no samples of {phase}")
    return a.summary.median_ns / b.summary.median_ns


def measure(seconds: float) -> dict[str, float]:
    """Return each figure: the median of interleaved rounds."""
    found: dict[str, list[float]] = {}
    plain = settings_for(seconds, verify="off")
    full = settings_for(seconds, verify="full")
    default = settings_for(max(seconds, 3))
    for _ in range(ROUNDS):
        bare, checked = in_worker(plain)[0], in_worker(full)[0]
        found.setdefault("full verification", []).append(cycle_ns(checked) / cycle_ns(bare))
        found.setdefault("checkpoint share", []).append(in_worker(default)[1])
        here = in_process(plain)
        for phase in ("commit", "touch", "release"):
            ratio = phase_ratio(bare, here, phase)
            found.setdefault(f"worker {phase}", []).append(ratio)
    return {name: median(values) for name, values in found.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what vmtool stress itself costs.")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of each run (default: 2)"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.seconds)
    if options.json:
        print(json.dumps(figures))
        return 0
    bounds = {"full verification": 1.6, "checkpoint share": 0.02}
    for name, value in figures.items():
        bound = f"at most {bounds[name]}" if name in bounds else "1 expected"
        print(f"{name:<20} {value:>7.3f}   {bound}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
