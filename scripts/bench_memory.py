"""Measure what vmtool adds to system calls: ratios to the same calls from C, in one run.

    python scripts/bench_memory.py            # about a minute; needs cc
    python scripts/bench_memory.py --check    # exit 1 when a ratio is over its budget

Rounds of C and Python alternate, so that a noisy neighbour meets both; each figure is the median
of the rounds. The budgets are those of docs/design.md.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

assert sys.platform != "win32", "this benchmark compares with POSIX calls"

from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.governor import Governor, Tier
from vmtool.memory.posix.backing import PosixBacking
from vmtool.memory.posix.calls import CALLS
from vmtool.units import GIB, KIB, MIB, format_duration, format_size

FLOOR = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* FLOOR METHOD GRANULE TOUCH CYCLES: nanoseconds per cycle of commit, touch and release. */
int main(int argc, char **argv) {
    int protect = !strcmp(argv[1], "protect"), touch = atoi(argv[3]);
    size_t granule = strtoull(argv[2], NULL, 10), cycles = strtoull(argv[4], NULL, 10);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *base = mmap(NULL, (size_t)1 << 30, PROT_NONE, flags, -1, 0), *at = base + (1 << 20);
    if (base == MAP_FAILED || argc != 5) return 1;
    struct timespec start, end;
    for (size_t i = 0; i < cycles + cycles / 10; i++) {
        if (i == cycles / 10) clock_gettime(CLOCK_MONOTONIC, &start);
        if (protect) {
            if (mprotect(at, granule, PROT_READ | PROT_WRITE)) return 2;
        } else if (mmap(at, granule, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) != at) return 2;
        if (touch) memset(at, (int)i, granule);
        if (protect) {
            if (madvise(at, granule, MADV_DONTNEED) || mprotect(at, granule, PROT_NONE)) return 3;
        } else if (mmap(at, granule, PROT_NONE, flags | MAP_FIXED, -1, 0) != at) return 3;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / cycles);
    return 0;
}
"""


@dataclass(frozen=True)
class Case:
    """One comparison with the floor."""

    method: str
    granule: int
    touch: bool
    cycles: int
    budget: float | None


CASES = [
    Case("fixed", 64 * KIB, False, 20_000, 2.5),
    Case("fixed", 64 * KIB, True, 4_000, 1.25),
    Case("fixed", 2 * MIB, True, 150, 1.05),
    Case("protect", 64 * KIB, False, 20_000, None),
    Case("protect", 64 * KIB, True, 4_000, None),
    Case("protect", 2 * MIB, True, 150, None),
]


def build(folder: str) -> Path:
    """Compile the floor; its path."""
    program = Path(folder, "floor")
    source = Path(folder, "floor.c")
    source.write_text(FLOOR, encoding="ascii")
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


def floor_ns(program: Path, case: Case) -> float:
    """Nanoseconds per cycle of the C loop."""
    arguments = [
        str(program),
        case.method,
        str(case.granule),
        str(int(case.touch)),
        str(case.cycles),
    ]
    return float(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def buffer_ns(case: Case) -> float:
    """Nanoseconds per cycle of the same work through VirtualBuffer, leasing included."""
    memset = ctypes.CDLL(None).memset
    memset.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t]
    memset.restype = None
    governor = Governor({Tier.HOST: GIB})
    with VirtualBuffer(open_backing(method=case.method), GIB, governor=governor) as buffer:
        buffer.grow_to(MIB)
        grow_to, shrink_to = buffer.grow_to, buffer.shrink_to
        low, high, granule, at = MIB, MIB + case.granule, case.granule, buffer.base + MIB
        for cycles in (case.cycles // 10, case.cycles):
            start = time.perf_counter_ns()
            if case.touch:
                for i in range(cycles):
                    grow_to(high)
                    memset(at, i & 255, granule)
                    shrink_to(low)
            else:
                for _ in range(cycles):
                    grow_to(high)
                    shrink_to(low)
            elapsed = time.perf_counter_ns() - start
    return elapsed / case.cycles


def compare(program: Path, case: Case, rounds: int) -> tuple[float, float]:
    """Return the medians of C and of vmtool over alternating rounds."""
    pairs = [(floor_ns(program, case), buffer_ns(case)) for _ in range(rounds)]
    return statistics.median(c for c, _ in pairs), statistics.median(v for _, v in pairs)


def commit_ns(blocks: int, rounds: int) -> float:
    """Median cost of a random commit and release beside *blocks* blocks that touch no other.

    The kernel refuses so many separate areas, so the blocks are recorded with calls that do
    nothing; what is timed makes the real calls.
    """
    page = mmap.PAGESIZE
    backing = PosixBacking("fixed")
    reservation = backing.reserve(4 * (blocks + 1) * page)
    recorder = PosixBacking("fixed", calls=replace(CALLS, mmap=lambda address, *_: address))
    for index in range(blocks):
        recorder.commit(reservation, 4 * index * page, page)
    order = [(i * 7919) % blocks for i in range(2000)]
    samples = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for index in order:
            offset = (4 * index + 2) * page
            backing.commit(reservation, offset, page)
            backing.release(reservation, offset, page)
        samples.append((time.perf_counter_ns() - start) / len(order))
    backing.unreserve(reservation)
    return statistics.median(samples)


def growth_ns(target: int, step: int) -> int:
    """Grow a buffer to *target* in steps, touching what is new; the whole time."""
    with VirtualBuffer(open_backing(), target) as buffer:
        start = time.perf_counter_ns()
        for length in range(step, target + 1, step):
            buffer.grow_to(length)
            ctypes.memset(buffer.base + length - step, 1, step)
        return time.perf_counter_ns() - start


def reallocation_ns(target: int, step: int, samples: int) -> int:
    """Estimate the same growth by a new mapping and a copy at each step.

    All 16,384 steps would copy 8 TiB, so evenly spaced steps are measured and multiplied up.
    """
    total = 0
    for index in range(samples):
        length = (target * (2 * index + 1) // (2 * samples)) // step * step
        old = mmap.mmap(-1, max(length, step))
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(old)), 1, len(old))
        start = time.perf_counter_ns()
        new = mmap.mmap(-1, length + step)
        ctypes.memmove(
            ctypes.addressof(ctypes.c_char.from_buffer(new)),
            ctypes.addressof(ctypes.c_char.from_buffer(old)),
            length,
        )
        del old
        total += time.perf_counter_ns() - start
    return total // samples * (target // step)


def row(
    what: str, floor: str, own: str, ratio: float, budget: float | None, *, least: bool = False
) -> bool:
    """Print one line; whether it is within its budget."""
    good = budget is None or (ratio >= budget if least else ratio <= budget)
    sign = "≥" if least else "≤"
    limit = "" if budget is None else f"{sign} {budget:g} ×  {'ok' if good else 'OVER'}"
    print(f"{what:<42} {floor:>10} {own:>10} {ratio:>8.2f} ×  {limit}")
    return good


def cuda_rows(rounds: int) -> list[bool]:
    """Compare the CUDA path with its calls; none where the stand-in driver cannot be built."""
    if sys.platform != "linux":
        print("\nno CUDA rows: the stand-in driver needs Linux")
        return []
    try:
        from _bench_cuda import bench_cuda  # noqa: PLC0415 - the bindings may be missing
    except ImportError as error:
        print(f"\nno CUDA rows: {error}")
        return []
    with tempfile.TemporaryDirectory() as folder:
        return bench_cuda(folder, rounds, row)


def main() -> int:
    """Run every comparison and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--rounds",
        type=int,
        default=7,
        help="number of rounds, in which vmtool and C take turns (default: 7)",
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    options = parser.parse_args()
    if shutil.which("cc") is None:
        print("bench_memory: needs cc, a C compiler", file=sys.stderr)
        return 4
    print(f"{'':<42} {'floor':>10} {'vmtool':>10} {'ratio':>8}")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        for case in CASES:
            floor, own = compare(program, case, options.rounds)
            touch = "touch, " if case.touch else ""
            what = f"{case.method} {format_size(case.granule)}: commit, {touch}release"
            results.append(
                row(what, format_duration(floor), format_duration(own), own / floor, case.budget)
            )
    few, many = commit_ns(1_000, options.rounds), commit_ns(1_000_000, options.rounds)
    results.append(
        row(
            "commit + release beside 1,000,000 blocks",
            format_duration(few),
            format_duration(many),
            many / few,
            1.5,
        )
    )
    own_ns = growth_ns(GIB, 64 * KIB)
    copied_ns = reallocation_ns(GIB, 64 * KIB, 24)
    results.append(
        row(
            "grow to 1 GiB by 64 KiB, against copying",
            format_duration(copied_ns),
            format_duration(own_ns),
            copied_ns / own_ns,
            20,
            least=True,
        )
    )
    results += cuda_rows(options.rounds)
    print(
        "\nfloor: the same calls from C; for the last two host rows 1,000 blocks, and "
        "reallocating and\ncopying (24 of 16,384 steps measured, evenly spaced, and scaled up)."
    )
    return 1 if options.check and not all(results) else 0


if __name__ == "__main__":
    sys.exit(main())
