"""Measure what vmtool and the bindings add to driver calls, on the stand-in driver of the tests.

The stand-in is no hardware: how long its calls take means nothing. What is measured is what is
added to them, in one process and one run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cuda.bindings import driver as cu
from fakecuda import build, control

from vmtool.memory.backing_by_name import open_device
from vmtool.memory.buffer import VirtualBuffer
from vmtool.memory.cuda.context import CallTimes
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.governor import Governor, Tier
from vmtool.stress.worker.device_contents import DeviceContents
from vmtool.units import GIB, KIB, MIB, format_duration, format_size

GRANULE = 64 * KIB
RUN = 64
CHECKED = 16 * MIB
CHECKS = 9
#: Contents are checked at half the rate of a plain copy at least.
CHECK_LIMIT = 2.0
CYCLES = 4000
#: Calls of one cycle: create, map, set access; push, synchronise, pop, unmap, release.
CALLS = 8

FLOOR = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef unsigned long long u64;
static int (*lookup)(const char *, void **, int, u64, void *);
static void *get(const char *name) {
    void *found = NULL;
    lookup(name, &found, 12000, 0, NULL);
    if (!found) exit(4);
    return found;
}
#define CALL(name, ...) int (*name)(__VA_ARGS__) = get(#name)
#define OK(call) do { if (call) exit(5); } while (0)

/* FLOOR LIBRARY GRANULE CYCLES: nanoseconds per cycle of commit and release, from C. */
int main(int argc, char **argv) {
    void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) return 1;
    *(void **)&lookup = dlsym(library, "cuGetProcAddress_v2");
    size_t granule = strtoull(argv[2], NULL, 10), cycles = strtoull(argv[3], NULL, 10);
    CALL(cuInit, unsigned); CALL(cuDevicePrimaryCtxRetain, void **, int);
    CALL(cuDevicePrimaryCtxRelease, int);
    CALL(cuCtxPushCurrent, void *); CALL(cuCtxPopCurrent, void **); CALL(cuCtxSynchronize, void);
    CALL(cuMemAddressReserve, u64 *, size_t, size_t, u64, u64); CALL(cuMemAddressFree, u64, size_t);
    CALL(cuMemCreate, u64 *, size_t, const void *, u64); CALL(cuMemRelease, u64);
    CALL(cuMemMap, u64, size_t, size_t, u64, u64); CALL(cuMemUnmap, u64, size_t);
    CALL(cuMemSetAccess, u64, size_t, const void *, size_t);
    int properties[8] = {1 /* pinned */, 0, 1 /* on a device */, 0}, access[3] = {1, 0, 3};
    u64 base, handle;
    void *context;
    struct timespec start, end;
    OK(cuInit(0)); OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuMemAddressReserve(&base, (size_t)1 << 30, 0, 0, 0));
    for (size_t i = 0; i < cycles + cycles / 10; i++) {
        if (i == cycles / 10) clock_gettime(CLOCK_MONOTONIC, &start);
        OK(cuMemCreate(&handle, granule, properties, 0));
        OK(cuMemMap(base, granule, 0, handle, 0));
        OK(cuMemSetAccess(base, granule, access, 1));
        OK(cuCtxPushCurrent(context)); OK(cuCtxSynchronize()); OK(cuCtxPopCurrent(&context));
        OK(cuMemUnmap(base, granule)); OK(cuMemRelease(handle));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    OK(cuMemAddressFree(base, (size_t)1 << 30)); OK(cuDevicePrimaryCtxRelease(0));
    printf("%.1f\n", ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / cycles);
    return 0;
}
"""


def bench_cuda(folder: str, rounds: int, row: Callable[..., bool]) -> list[bool]:
    """Print the rows of the CUDA path; whether each is within its budget."""
    program = Path(folder, "cuda-floor")
    source = Path(folder, "cuda-floor.c")
    source.write_text(FLOOR, encoding="ascii")
    subprocess.run(["cc", "-O2", "-o", program, source, "-ldl"], check=True)
    fake = control.FakeCuda()
    fake.reset(granularity=GRANULE)
    print(
        f"\non {_device_name()}: what vmtool adds to each call (the calls themselves prove nothing "
        "about hardware)"
    )
    floor, raw, cold, pooled = (
        statistics.median(column)
        for column in zip(
            *(
                (_floor_ns(program), _raw_ns(), _buffer_ns("cold"), _buffer_ns("pooled"))
                for _ in range(rounds)
            ),
            strict=True,
        )
    )
    size = format_size(GRANULE)
    results = [
        row(f"bindings against C, a cycle of {CALLS} calls", *_pair(floor, raw), None),
        row(f"cold {size} against the bindings", *_pair(raw, cold), None),
        row(f"pooled {size} against cold", *_pair(cold, pooled), None),
    ]
    print(
        f"one call through the bindings: {format_duration((raw - floor) / CALLS)} more than from C"
    )
    copying, checking = _contents_ns()
    label = "checking device contents against copying them back"
    results.append(row(label, *_pair(copying, checking), CHECK_LIMIT))
    results.append(_count_calls())
    fake.assert_clean()
    return results


def _pair(floor: float, own: float) -> tuple[str, str, float]:
    return format_duration(floor), format_duration(own), own / floor


def _device_name() -> str:
    backing = open_device("cuda")
    name = backing.device_name
    backing.close()
    return name


def _floor_ns(program: Path) -> float:
    arguments = [str(program), str(build.driver()), str(GRANULE), str(CYCLES)]
    environment = {"FAKECUDA_GRANULARITY": str(GRANULE)}
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def _raw_ns() -> float:
    """The same calls through the bindings, with every result looked at and nothing else."""

    def ok(result: tuple[Any, ...]) -> Any:
        if result[0]:
            raise RuntimeError(result[0])
        return result[-1]

    backing = open_device("cuda")
    properties, access = backing.properties, [backing.context.driver.access(0)]
    context = ok(cu.cuDevicePrimaryCtxRetain(0))
    base = int(ok(cu.cuMemAddressReserve(GIB, 0, 0, 0)))
    for cycles in (CYCLES // 10, CYCLES):
        start = time.perf_counter_ns()
        for _ in range(cycles):
            handle = int(ok(cu.cuMemCreate(GRANULE, properties, 0)))
            ok(cu.cuMemMap(base, GRANULE, 0, handle, 0))
            ok(cu.cuMemSetAccess(base, GRANULE, access, 1))
            ok(cu.cuCtxPushCurrent(context))
            ok(cu.cuCtxSynchronize())
            ok(cu.cuCtxPopCurrent())
            ok(cu.cuMemUnmap(base, GRANULE))
            ok(cu.cuMemRelease(handle))
        elapsed = time.perf_counter_ns() - start
    ok(cu.cuMemAddressFree(base, GIB))
    ok(cu.cuDevicePrimaryCtxRelease(0))
    backing.close()
    return elapsed / CYCLES


def _buffer_ns(method: str) -> float:
    """The same through VirtualBuffer, leasing included."""
    governor = Governor({Tier.DEVICE: GIB})
    backing = open_device("cuda", method=method, governor=governor)
    with VirtualBuffer(backing, GIB, governor=governor) as buffer:
        grow_to, shrink_to = buffer.grow_to, buffer.shrink_to
        for cycles in (CYCLES // 10, CYCLES):
            start = time.perf_counter_ns()
            for _ in range(cycles):
                grow_to(GRANULE)
                shrink_to(0)
            elapsed = time.perf_counter_ns() - start
    backing.close()
    return elapsed / CYCLES


def _contents_ns() -> tuple[float, float]:
    """Copying a granule to the host, and checking every byte of it, which includes that."""
    backing = open_device("cuda", method="pooled")
    copies = DeviceCopies(backing.context)
    reservation = backing.reserve(CHECKED)
    backing.commit(reservation, 0, CHECKED)
    contents = DeviceContents(
        copies, reservation, CHECKED, buffer_id=1, touch="full", verify="full", zeroes=False
    )
    into = bytearray(2 * MIB)
    copying, checking = [], []
    for cycle in range(CHECKS):
        contents.write_and_time(0, 1, cycle)
        start = time.perf_counter_ns()
        for at in range(0, CHECKED, len(into)):
            copies.read(reservation, at, into)
        copying.append(time.perf_counter_ns() - start)
        checking.append(contents.check(0, 1))
    backing.unreserve(reservation)
    backing.close()
    return statistics.median(copying), statistics.median(checking)


def _count_calls() -> bool:
    """One cuMemSetAccess and one cuMemUnmap a run, not one a granule."""
    times = CallTimes()
    backing = open_device("cuda", times=times)
    with VirtualBuffer(backing, RUN * GRANULE) as buffer:
        times.take()
        buffer.grow_to(RUN * GRANULE)
        buffer.shrink_to(0)
        counts = {name: len(samples) for name, samples in times.take().items()}
    backing.close()
    good = counts["cuMemSetAccess"] == counts["cuMemUnmap"] == counts["cuCtxSynchronize"] == 1
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"calls for a run of {RUN} granules: {told}  {'ok' if good else 'OVER'}")
    return good
