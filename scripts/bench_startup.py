#!/usr/bin/env python3
"""What starting vmtool costs, against the floor that click sets, in one run.

    bench_startup.py [--rounds N] [--check]

Every round starts each command once, in a new order, so that a busy moment of the machine meets
all of them alike; the ratios are of medians and of minima over the rounds. ``--check`` exits 1
when the ratio of the minima is over its limit: noise only adds time, so the minimum is what the
command itself costs.
"""

import argparse
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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
        ("-m", "vmtool", "kv-estimate", "llama-3.1-8b", "--budget", "16GiB"), limit=2.5
    ),
}


def run_ns(arguments: tuple[str, ...]) -> int:
    """Return how long a Python process with *arguments* lives.

    Raises:
        subprocess.CalledProcessError: If it fails, as what it took would then mean nothing.
    """
    start = time.perf_counter_ns()
    subprocess.run(
        [sys.executable, *arguments], check=True, cwd=ROOT, capture_output=True, timeout=60
    )
    return time.perf_counter_ns() - start


def measure(rounds: int) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the nanoseconds of every round by subject, and why a subject could not run."""
    order, failed = list(SUBJECTS), {}
    for name, subject in SUBJECTS.items():  # the first start fills the caches of files and code
        try:
            run_ns(subject.arguments)
        except subprocess.CalledProcessError as error:
            failed[name] = (error.stderr.decode(errors="replace").strip() or "?").splitlines()[-1]
            order.remove(name)
    times: dict[str, list[int]] = {name: [] for name in order}
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(run_ns(SUBJECTS[name].arguments))
    return times, failed


def main() -> int:
    """Measure, print the table, and return 1 if a limit was asked for and is not met."""
    parser = argparse.ArgumentParser(description="What starting vmtool costs.")
    parser.add_argument("--rounds", type=int, default=40, help="starts of every command (40)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit is exceeded")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    times, failed = measure(options.rounds)
    if FLOOR in failed:
        parser.exit(1, f"bench_startup: click cannot be imported here: {failed[FLOOR]}\n")
    floor_median, floor_min = median(times[FLOOR]), min(times[FLOOR])
    print(f"{options.rounds} rounds, Python {sys.version.split()[0]}, {sys.platform}")
    print(f"{'':20}  {'median':>9}  {'min':>9}  {'median x':>8}  {'min x':>6}  limit")
    over = False
    for name, subject in SUBJECTS.items():
        if name in failed:
            print(f"{name:20}  could not run: {failed[name]}")
            over |= subject.limit is not None
            continue
        middle, least = median(times[name]), min(times[name])
        ratio = least / floor_min
        missed = subject.limit is not None and ratio > subject.limit
        over |= missed
        limit = f"≤ {subject.limit}{'  OVER' if missed else ''}" if subject.limit else ""
        print(
            f"{name:20}  {middle / 1e6:6.1f} ms  {least / 1e6:6.1f} ms"
            f"  {middle / floor_median:8.2f}  {ratio:6.2f}  {limit}".rstrip()
        )
    return int(over and options.check)


if __name__ == "__main__":
    sys.exit(main())
