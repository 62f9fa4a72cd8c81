#!/usr/bin/env python3
"""What looking at a process at its limit of memory areas costs, against reading its files.

    bench_inspect.py [--areas N] [--seconds N] [--check]

A child maps N memory areas. One look through the library, and one through the command, are timed
beside the floor: reading ``/proc/PID/maps`` once with ``read(2)``. Then the child is watched at one
sample a second, and the processor time of that is printed as a share of one core. ``--check`` exits
1 when the command takes over a second or the watch over 1 % of a core.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also where it isn't installed

from vmtool.inspect.processes import open_process
from vmtool.inspect.watch import InspectOptions, look, watch
from vmtool.machine import read_facts

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
    arguments = parser.parse_args()
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
        looks, commands = [], []
        for _ in range(5):
            target = open_process(child.pid)
            began = time.perf_counter()
            found = look(target, InspectOptions(), facts)
            looks.append(time.perf_counter() - began)
            target.close()
            began = time.perf_counter()
            command = [sys.executable, "-m", "vmtool", "inspect", str(child.pid)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            commands.append(time.perf_counter() - began)
        print(f"memory areas                {found.last.areas:>10,}")
        print(f"read maps (floor)           {floor * 1e3:>10.1f} ms")
        print(
            f"one look, library           {min(looks) * 1e3:>10.1f} ms {min(looks) / floor:.1f} x"
        )
        print(f"one look, command           {min(commands) * 1e3:>10.1f} ms")
        target = open_process(child.pid)
        times = os.times()
        began_cpu, began = times.user + times.system, time.perf_counter()
        watched = watch(
            target,
            InspectOptions(watch=True, duration_ns=arguments.seconds * 10**9),
            facts,
            stopping=lambda: False,
        )
        times = os.times()
        share = (times.user + times.system - began_cpu) / (time.perf_counter() - began)
        print(f"watching, {watched.samples_taken:>3} samples       {share:>10.2%} of a core")
    finally:
        child.kill()
        child.wait()
    return int(arguments.check and (min(commands) > 1 or share > 0.01))


if __name__ == "__main__":
    sys.exit(main())
