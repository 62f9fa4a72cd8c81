#!/usr/bin/env python3
"""Measure what starting vmtool costs, against importing click, in one run.

    bench_startup.py [--rounds N] [--check]

Every round starts each command once, in a new order, so that a busy moment affects all of them
alike. Wall time is what a user waits; processor time, where the system reports it, is what the
command itself costs when other programs run. ``--check`` exits 1 when the ratio of the
least processor time (else of the least wall time) is over its limit.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

if sys.platform != "win32":
    import resource

ROOT = Path(__file__).resolve().parent.parent
FLOOR = "import click"


@dataclass(frozen=True)
class Subject:
    """One command line and the most that it may cost, in floors."""

    arguments: tuple[str, ...]
    limit: float | None = None


SUBJECTS = {
    "python -c pass": Subject(("-c", "pass")),
    FLOOR: Subject(("-c", "import click")),
    "vmtool --help": Subject(("-m", "vmtool", "--help"), limit=1.3),
    "vmtool kv-estimate": Subject(
        ("-m", "vmtool", "kv-estimate", "llama-3.1-8b", "--budget", "16GiB"), limit=3
    ),
    "vmtool schema": Subject(("-m", "vmtool", "schema"), limit=3),
    "vmtool doctor": Subject(("-m", "vmtool", "doctor", "--backing", "host"), limit=3),
}


@dataclass(frozen=True)
class Sample:
    """What one start took, in ns; *cpu* is ``None`` where it is not available."""

    wall: int
    cpu: int | None


def children_ns() -> int | None:
    """Return the processor time of all ended children, or ``None`` on Windows."""
    if sys.platform == "win32":
        return None
    else:  # mypy needs both branches spelled out
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return round((usage.ru_utime + usage.ru_stime) * 1e9)


def start(arguments: tuple[str, ...]) -> Sample:
    """Return what a Python process with *arguments* takes from its start to its end.

    Raises:
        subprocess.CalledProcessError: If it fails, as what it took would then mean nothing.
    """
    used, begin = children_ns(), time.perf_counter_ns()
    subprocess.run(
        [sys.executable, *arguments], check=True, cwd=ROOT, capture_output=True, timeout=60
    )
    wall, after = time.perf_counter_ns() - begin, children_ns()
    return Sample(wall, None if used is None or after is None else after - used)


def measure(rounds: int) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    """Return the samples of every subject, and why a subject could not run."""
    order, failed = list(SUBJECTS), {}
    for name, subject in SUBJECTS.items():  # the first start fills the caches of files and code
        try:
            start(subject.arguments)
        except subprocess.CalledProcessError as error:
            failed[name] = (error.stderr.decode(errors="replace").strip() or "?").splitlines()[-1]
            order.remove(name)
    samples: dict[str, list[Sample]] = {name: [] for name in order}
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(start(SUBJECTS[name].arguments))
    return samples, failed


@dataclass(frozen=True)
class Cost:
    """The figures of one subject, in ns."""

    median: float
    least: int
    cpu: int | None

    @classmethod
    def of(cls, samples: list[Sample]) -> "Cost":
        walls = [sample.wall for sample in samples]
        cpus = [sample.cpu for sample in samples if sample.cpu is not None]
        return cls(median(walls), min(walls), min(cpus, default=None))

    def ratios(self, floor: "Cost") -> list[float]:
        """Return the ratios to *floor*; the last is the one that a limit applies to."""
        found = [self.median / floor.median, self.least / floor.least]
        if self.cpu is not None and floor.cpu:
            found.append(self.cpu / floor.cpu)
        return found


def main() -> int:
    """Measure, print the table, and return 1 if a limit is exceeded and ``--check`` is given."""
    parser = argparse.ArgumentParser(description="Measure what starting vmtool costs.")
    parser.add_argument(
        "--rounds", type=int, default=40, help="how often to start every command (default: 40)"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    # An installed package has its byte code beside it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        samples, failed = measure(options.rounds)
    if FLOOR in failed:
        parser.exit(1, f"bench_startup: click cannot be imported here: {failed[FLOOR]}\n")
    costs = {name: Cost.of(found) for name, found in samples.items()}
    print(f"{options.rounds} rounds, Python {sys.version.split()[0]}, {sys.platform}")
    print(f"{'':20}   median      min      cpu   ratios to import click")
    over = False
    for name, subject in SUBJECTS.items():
        if name in failed:
            print(f"{name:20}  could not run: {failed[name]}")
            over |= subject.limit is not None
            continue
        cost = costs[name]
        ratios = cost.ratios(costs[FLOOR])
        missed = subject.limit is not None and ratios[-1] > subject.limit
        over |= missed
        limit = f"limit {subject.limit}{'  OVER' if missed else ''}" if subject.limit else ""
        times = "  ".join(
            f"{value / 1e6:4.1f} ms" if value else "      -"
            for value in (cost.median, cost.least, cost.cpu)
        )
        print(f"{name:20}  {times}   {' '.join(f'{r:5.2f}' for r in ratios)}  {limit}".rstrip())
    return int(over and options.check)


if __name__ == "__main__":
    sys.exit(main())
