"""Measure how often `vmtool compare` is right: A/A has no change, A/B has one that it must find.

    python scripts/bench_compare.py [--runs 40] [--pairs 2000] [--simulate-only] [--keep FOLDER]

First from figures of known distributions, then from real runs: pools of the same plan alone and
beside a busy neighbour, and of a plan whose granule is a fifth larger. The runs of both plans
alternate, and sets of five are drawn from the pools at random, so that the drift of the machine
is in neither side more than in the other. Beside them: sets of as many runs as `compare` asks for,
and the pool's runs in their order, five against the next five and so on, which drift may part.

Of the 252 ways to divide ten runs into five and five the test rejects 12, so that it errs in 4.76 %
of A/A figures whatever the distribution, less what the threshold keeps; more in a table is chance.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also where it isn't installed

from vmtool.compare.changes import compare, verdict
from vmtool.compare.confidence_intervals import runs_needed, variation
from vmtool.compare.run_sets import StoredRun, read_run, set_of
from vmtool.results.compare import Direction

if TYPE_CHECKING:
    from collections.abc import Iterator

SET = 5
_POWER_PAIRS = 200  # sets of ten and more cost a second for a hundred
CHANGE = 1.2
#: One run a result, so that a set has as many runs as results; the capacity suits both granules.
PLAN = (
    *("--capacity", "60MiB", "--budget", "30MiB", "--cycles", "400"),
    *("--seed", "1", "--runs", "1"),
)
GRANULES = {"A": "320KiB", "B": "384KiB"}
PROVEN = (Direction.SLOWER, Direction.FASTER)
#: What runs beside the measured one: it writes 64 MiB over and over.
NEIGHBOUR = "b = bytearray(64 << 20)\nwhile True:\n    b[:] = bytes(len(b))\n"


#: The standard deviation of what :func:`delayed` makes before it is divided by it.
_DELAYED = math.sqrt(0.6**2 + 2 * 9 / 7 - (3 / 7) ** 2)


def normal(generator: random.Random, cv: float) -> float:
    """Runs that vary as most physical quantities do."""
    return generator.gauss(0, cv)


def heavy(generator: random.Random, cv: float) -> float:
    """Student's t with three degrees of freedom: now and then a run is far off, on either side."""
    chi = sum(generator.gauss(0, 1) ** 2 for _ in range(3))
    return generator.gauss(0, 1) / math.sqrt(chi / 3) * cv / math.sqrt(3)


def delayed(generator: random.Random, cv: float) -> float:
    """One run of seven is much slower, as beside other work."""
    late = generator.expovariate(1 / 3) if generator.random() < 1 / 7 else 0.0
    return (generator.gauss(0, 0.6) + late) * cv / _DELAYED


def simulate(pairs: int) -> None:
    """Print how often figures of known distributions get a verdict."""
    print(
        f"simulated, {SET} runs against {SET}, {pairs} pairs per row; a verdict needs a change of "
        "5 %"
    )
    print(f"{'distribution':14}{'runs vary by':>14}{'A/A verdicts':>14}{'+20 % found':>13}")
    for draw in (normal, heavy, delayed):
        for cv in (0.03, 0.06, 0.08, 0.10):
            wrong = found = 0
            generator = random.Random(f"{draw.__name__} {cv}")
            for _ in range(pairs):
                sets = [
                    [math.exp(draw(generator, cv)) * factor for _ in range(SET)]
                    for factor in (1, 1, CHANGE)
                ]
                wrong += verdict(sets[0], sets[1], 0.95, 0.05)[1] in PROVEN
                found += verdict(sets[0], sets[2], 0.95, 0.05)[1] is Direction.SLOWER
            shares = f"{wrong / pairs:>14.1%}{found / pairs:>13.1%}"
            print(f"{draw.__name__:14}{f'{cv:.0%}':>14}{shares}", flush=True)


def collect(folder: Path, runs: int, name: str) -> dict[str, list[StoredRun]]:
    """Make *runs* runs of each plan, the two alternating."""
    found: dict[str, list[StoredRun]] = {plan: [] for plan in GRANULES}
    for i in range(runs):
        for plan, granule in GRANULES.items():
            path = folder / f"{name}-{plan}-{i}.json"
            line = [sys.executable, "-m", "vmtool", "stress", *PLAN, "--granule", granule]
            if not path.exists():
                subprocess.run([*line, "--json", "-q", "-o", str(path)], check=True)
            found[plan].append(read_run(str(path)))
    return found


def judge(pools: dict[str, list[StoredRun]], pairs: int, name: str) -> None:
    """Print how many figures of sets drawn from *pools* get a verdict."""
    generator = random.Random(name)
    rows = wrong = found = cycles = 0
    for _ in range(pairs):
        alike = generator.sample(pools["A"], 2 * SET)
        other = generator.sample(pools["B"], SET)
        before, again, after = (set_of("pool", runs) for runs in (alike[:SET], alike[SET:], other))
        changes = compare(before, again).changes
        rows += len(changes)
        wrong += sum(change.direction in PROVEN for change in changes)
        whole = next(c for c in compare(before, after).changes if c.phase == "cycle")
        cycles += 1
        found += whole.direction is Direction.SLOWER
    figures = {plan: [_cycle(run) for run in runs] for plan, runs in pools.items()}
    factor = median(figures["B"]) / median(figures["A"])
    cv = max(variation(values) or 0 for values in figures.values())
    needed = runs_needed(cv, max(factor - 1, 0.01), confidence=0.95)
    apart = list(_apart(pools["A"]))
    print(
        f"{name:22}{len(pools['A']):>6}{f'{cv:.1%}':>10}{rows:>10,}{wrong / rows:>14.1%}"
        f"{sum(apart) / len(apart):>12.1%}{f'{factor - 1:+.1%}':>12}{found / cycles:>9.1%}"
        f"{needed:>8}{_power(figures, needed, generator):>9}",
        flush=True,
    )


def _apart(pool: list[StoredRun]) -> Iterator[bool]:
    """Yield for each figure of five runs and each later five whether it has a verdict."""
    sets = [set_of("pool", pool[i : i + SET]) for i in range(0, len(pool) - SET + 1, SET)]
    for before, after in combinations(sets, 2):
        yield from (change.direction in PROVEN for change in compare(before, after).changes)


def _power(figures: dict[str, list[float]], needed: int, generator: random.Random) -> str:
    """Return how often the change is found in sets of *needed* runs, if the pools have them."""
    if needed > min(map(len, figures.values())) * 3 // 4:
        return "-"  # sets would be nearly the same runs each time
    found = 0
    for _ in range(_POWER_PAIRS):
        before, after = (generator.sample(figures[plan], needed) for plan in ("A", "B"))
        found += verdict(before, after, 0.95, 0.05)[1] is Direction.SLOWER
    return f"{found / _POWER_PAIRS:.1%}"


def _cycle(run: StoredRun) -> float:
    (method,) = run.result.methods
    phases = (method.phase(name) for name in ("commit", "touch", "release"))
    return float(sum(phase.summary.median_ns or 0 for phase in phases if phase is not None))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure how often vmtool compare is right.")
    parser.add_argument("--runs", type=int, default=40, help="number of real runs of each plan")
    parser.add_argument(
        "--pairs", type=int, default=2000, help="number of pairs of sets to compare"
    )
    parser.add_argument(
        "--simulate-only", action="store_true", help="simulate, and make no real runs"
    )
    parser.add_argument(
        "--keep", type=Path, help="keep the real runs in this folder, and reuse those that it has"
    )
    options = parser.parse_args()
    simulate(options.pairs)
    if options.simulate_only:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        print(f"\nreal, {SET} runs against {SET} drawn from pools, {options.pairs} pairs per pool")
        print(
            f"{'':22}{'pool':>6}{'cycle CV':>10}{'figures':>10}{'A/A verdicts':>14}"
            f"{'in order':>12}{'A/B change':>12}{'found':>9}{'needed':>8}{'found':>9}"
        )
        judge(collect(folder, options.runs, "alone"), options.pairs, "alone")
        with subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) as neighbour:
            try:
                pools = collect(folder, options.runs, "neighbour")
            finally:
                neighbour.kill()
        judge(pools, options.pairs, "beside a busy process")


if __name__ == "__main__":
    main()
