#!/usr/bin/env python3
"""Measure what inspecting a process with very many memory areas costs, against reading its files.

    bench_inspect.py [--areas N] [--seconds N] [--check] [--leaks N]

A child maps N memory areas. One look through the library, and one through the command, are timed
beside the floor: reading ``/proc/PID/maps`` once with ``read(2)``. The command's processor time stands
beside its wall time, as it depends less on what else runs. Then the child is watched at one sample a
second, and the processor time of that is printed as a share of one core. ``--check`` exits 1 when the
command takes over a second or the watch over 1 % of a core.

``--leaks N`` instead watches N processes for 30 s that keep 1 MiB each second, and N that allocate and
free as much, and prints in how many growth was found; ``--check`` exits 1 unless it is found in all of
the first and none of the others.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

assert sys.platform == "linux"  # here, so that mypy skips the rest elsewhere

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also where it isn't installed

from vmtool.inspect.processes import open_process
from vmtool.inspect.watch import InspectOptions, look, watch
from vmtool.machine import read_facts
from vmtool.machine.facts import MachineFacts
from vmtool.results.inspect import InspectResult

_CHILD = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
count = int(sys.argv[1])
base = libc.mmap(None, count * 4096, 3, 0x22, -1, 0)
for i in range(0, count, 2):
    libc.mprotect(base + i * 4096, 4096, 0)
print("ready", flush=True)
sys.stdin.read()
"""


_ALLOCATING = """
import sys, time
kept = []
print("ready", flush=True)
while True:
    some = bytearray(b"x" * (1 << 18))
    if sys.argv[1] == "leaking":
        kept.append(some)
    del some
    time.sleep(0.25)
"""


def watch_leaks(count: int) -> bool:
    """Print how many leaks are found, and how many that are none; return whether all is right."""
    children = []
    for kind in ("leaking", "steady"):
        for _ in range(count):
            command = [sys.executable, "-c", _ALLOCATING, kind]
            children.append((kind, subprocess.Popen(command, stdout=subprocess.PIPE)))
    facts = read_facts()
    try:
        for _, child in children:
            assert child.stdout is not None
            child.stdout.readline()
        with ThreadPoolExecutor(len(children)) as pool:
            results = list(pool.map(lambda child: _watch(child[1].pid, 30, facts), children))
    finally:
        for _, child in children:
            child.kill()
            child.wait()
    found: Counter[str] = Counter()
    for (kind, _), result in zip(children, results, strict=True):
        # The group is shared with whatever else runs here.
        rises = [t for t in result.trends if t.grows and not t.counter.startswith("group_")]
        found[kind] += any(t.counter == "resident_bytes" for t in rises)
        found["others"] += kind == "steady" and bool(rises)
    print(f"leaks of 1 MiB/s found in 30 s  {found['leaking']:>4} of {count}")
    print(f"steady processes said to grow   {found['steady']:>4} of {count}")
    print(f"of these in any counter         {found['others']:>4} of {count}")
    return found == Counter(leaking=count)


def _watch(pid: int, seconds: int, facts: MachineFacts) -> InspectResult:
    target = open_process(pid)
    options = InspectOptions(watch=True, duration_ns=seconds * 10**9)
    try:
        return watch(target, options, facts, stopping=lambda: False)
    finally:
        target.close()


def read_maps(pid: int) -> float:
    """Return the seconds that reading ``maps`` takes, and nothing else."""
    began = time.perf_counter()
    with open(f"/proc/{pid}/maps", "rb", buffering=0) as maps:
        while maps.read(1 << 20):
            pass
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--areas", type=int, default=60_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--leaks", type=int, default=0)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"load average                {load:>10.1f}")
    if arguments.leaks:
        right = watch_leaks(arguments.leaks)
        return int(arguments.check and not right)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(arguments.areas)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        floor = min(read_maps(child.pid) for _ in range(5))
        facts = read_facts()
        looks, commands, processor = [], [], []
        for _ in range(5):
            target = open_process(child.pid)
            began = time.perf_counter()
            found = look(target, InspectOptions(), facts)
            looks.append(time.perf_counter() - began)
            target.close()
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "vmtool", "inspect", str(child.pid)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            commands.append(time.perf_counter() - began)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            processor.append(used)
        print(f"memory areas                {found.last.areas:>10,}")
        print(f"read maps (floor)           {floor * 1e3:>10.1f} ms")
        print(
            f"one look, library           {min(looks) * 1e3:>10.1f} ms {min(looks) / floor:.1f} x"
        )
        print(f"one look, command           {min(commands) * 1e3:>10.1f} ms")
        print(f"  of processor time         {min(processor) * 1e3:>10.1f} ms")
        times = os.times()
        began_cpu, began = times.user + times.system, time.perf_counter()
        watched = _watch(child.pid, arguments.seconds, facts)
        times = os.times()
        share = (times.user + times.system - began_cpu) / (time.perf_counter() - began)
        print(f"watching, {watched.samples_taken:>3} samples       {share:>10.2%} of a core")
    finally:
        child.kill()
        child.wait()
    return int(arguments.check and (min(commands) > 1 or share > 0.01))


if __name__ == "__main__":
    sys.exit(main())
