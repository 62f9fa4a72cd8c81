"""Measure how well `vmtool fleet` finds slow machines in simulated fleets, and what it costs.

    python scripts/bench_fleet.py            # some minutes, one core
    python scripts/bench_fleet.py --check    # exit 1 if a limit is exceeded

A machine has 5 runs of 7 measures, which vary by 5 % (coefficient of variation) from run to run and
by 2 % from machine to machine. One machine in 50 is 20 % slower, in one phase of three. Recall is the
part of them that is named; a false discovery is a named machine and measure that is as fast as others.
Then a real result of stress is made (256 MiB), and 10,000 files from it (2 GiB of disk), which are gathered.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also where it isn't installed

from vmtool.fleet.judge import judge
from vmtool.fleet.machine_readings import MachineReading
from vmtool.fleet.machines import Fleet
from vmtool.fleet.result_files import list_files, read_files

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS, OF_RUNS, OF_MACHINES, SLOWER = 5, 0.05, 0.02, 1.2
PHASES = {"commit": 40_000.0, "touch": 15_000.0, "release": 20_000.0}
FACTS = {"system.cpu_model": "A", "system.cpus": "64", "memory.total_bytes": "512 GiB"}


def peak_bytes() -> int:
    """Return the most memory that was resident in this process; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    else:
        import resource  # noqa: PLC0415 - exists only on POSIX

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def readings(draw: random.Random, machines: int, slow: set[int]) -> Iterator[MachineReading]:
    """Yield the reading of every machine, of which some are slow to commit."""
    for number in range(machines):
        own = {phase: draw.lognormvariate(0, OF_MACHINES) for phase in PHASES}
        if number in slow:
            own["commit"] *= SLOWER
        runs = []
        for _ in range(RUNS):
            run = {}
            cycle = 0.0
            for phase, usual in PHASES.items():
                noise = draw.lognormvariate(0, OF_RUNS)
                run[f"stress.fixed.{phase}.median_ns"] = usual * own[phase] * noise
                tail = draw.lognormvariate(0, OF_RUNS)
                run[f"stress.fixed.{phase}.p99_ns"] = 3 * usual * own[phase] * tail
                cycle += usual * own[phase] * noise
            run["stress.fixed.cycles_per_s"] = 1e9 / cycle
            runs.append(run)
        thp = "never" if number in slow else "madvise"
        facts = {**FACTS, "huge_pages.thp_mode": thp}
        yield MachineReading(f"node{number}", "", "vmtool.stress", "", facts, tuple(runs))


def fleet_of(draw: random.Random, machines: int, slow: set[int]) -> Fleet:
    fleet = Fleet()
    for reading in readings(draw, machines, slow):
        fleet.add(reading)
    return fleet


def measure(machines: int, fleets: int, seed: int) -> tuple[float, float, float, int]:
    """Return recall, false discoveries as a part of all, seconds a fleet, and slow machines."""
    draw = random.Random(seed)
    named = slow_ones = wrong = found = explained = 0
    spent = 0.0
    for _ in range(fleets):
        slow = set(draw.sample(range(machines), max(machines // 50, 1)))
        fleet = fleet_of(draw, machines, slow)
        start = time.process_time()
        result = judge(fleet)
        spent += time.process_time() - start
        hosts = set()
        for outlier in (each for group in result.groups for each in group.outliers):
            found += 1
            number = int(outlier.host.removeprefix("node"))
            guilty = number in slow and ("commit" in outlier.measure or "cycles" in outlier.measure)
            wrong += not guilty
            if guilty:
                hosts.add(number)
                explained += outlier.reasons[0].fact == "huge_pages.thp_mode"
        named += len(hosts)
        slow_ones += len(slow)
    return named / slow_ones, wrong / max(found, 1), spent / fleets, slow_ones


def stress_result() -> dict[str, Any]:
    """Return a real result of stress on this machine, of 5 runs."""
    command = [sys.executable, "-m", "vmtool", "stress", "--cycles", "500", "--json", "--quiet"]
    ran = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def template(document: dict[str, Any]) -> list[str]:
    """Return the text of *document*, parted where machines differ; odd parts are names of values."""
    document["conditions"]["host"] = "@host@"
    document["machine"]["huge_pages"]["thp_mode"] = "@huge_pages.thp_mode@"
    for at, run in enumerate(document["runs"]):
        (method,) = run["methods"]
        method["cycles_per_s"] = f"@{at} stress.fixed.cycles_per_s@"
        for phase in method["phases"]:
            if phase["phase"] in PHASES:
                for name in ("median_ns", "p99_ns"):
                    phase["summary"][name] = f"@{at} stress.fixed.{phase['phase']}.{name}@"
    return re.split('"@(.*?)@"', json.dumps(document, indent=2))


def filled(parts: list[str], reading: MachineReading) -> str:
    """Return the document of *reading*."""
    known = {"host": reading.host, **reading.facts}
    texts = list(parts)
    for at in range(1, len(parts), 2):
        run, space, measure = parts[at].partition(" ")
        if not space:
            texts[at] = json.dumps(known[run])
            continue
        value = reading.runs[int(run)][measure]
        texts[at] = json.dumps(round(value) if measure.endswith("_ns") else value)
    return "".join(texts)


def files(count: int) -> bool:
    """Write *count* results of stress, gather them, and return whether the promises hold."""
    draw = random.Random(1)
    parts = template(stress_result())
    with tempfile.TemporaryDirectory() as folder:
        for reading in readings(draw, count, {7}):
            Path(folder, f"{reading.host}.json").write_text(filled(parts, reading))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        before, start, worked = peak_bytes(), time.perf_counter(), time.process_time()
        fleet = Fleet()
        for found in read_files(list_files([folder])):
            fleet.add(found)
        result = judge(fleet)
        took, worked = time.perf_counter() - start, time.process_time() - worked
        peak = peak_bytes()
        hosts = {outlier.host for group in result.groups for outlier in group.outliers}
        print(
            f"\n{count:,} results of stress ({size >> 20:,} MiB, {len(fleet.problems)} unreadable)"
            f" gathered and judged in {took:.1f} s ({worked:.1f} s of CPU), peak RSS {peak >> 20} MiB"
            f" ({before >> 20} MiB before); named: {', '.join(sorted(hosts)) or 'none'}"
        )
    return took < 60 and peak < 1 << 30 and hosts == {"node7"}


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--results", type=int, default=10_000, help="number of results to gather (default: 10,000)"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    options = parser.parse_args()
    good = True
    print(
        f"{'machines':>8} {'fleets':>7} {'slow':>6} {'recall':>8} {'false':>7} {'time':>9} {'peak':>8}"
    )
    for machines, fleets in ((10, 400), (20, 200), (50, 100), (100, 60), (1000, 6), (10_000, 1)):
        recall, false, seconds, slow = measure(machines, fleets, machines)
        promised = machines >= 50
        kept = false <= 0.01 and (recall >= 0.95 or not promised)
        good &= kept
        print(
            f"{machines:>8,} {fleets:>7} {slow:>6} {recall:>8.1%} {false:>7.2%} {seconds * 1000:>6,.0f} ms"
            f" {peak_bytes() >> 20:>4} MiB"
            f"{'' if kept else '  OVER'}"
        )
    good &= files(options.results)
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
