#!/usr/bin/env python3
"""Answer the open questions of docs/platform-facts.md on a real device: one line for each.

    first_gpu_run.py [--device N] [--packages FOLDER] [--here] [--stand-in] [--quick] [QUESTION ...]

Each question is a process of its own, as some of them end the context. ``--packages`` installs from a
folder of wheels, without a network (fill it elsewhere with ``pip download``); ``--here`` uses the Python
that runs this. ``--stand-in`` runs everything on the stand-in driver of the tests, whose answers say
nothing about hardware; ``--quick`` does less of what takes long. The whole takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 240
MIB: Final = 1 << 20
GIB: Final = 1 << 30
QUESTIONS: dict[str, Callable[[int, bool], str]] = {}


def question(function: Callable[[int, bool], str]) -> Callable[[int, bool], str]:
    QUESTIONS[function.__name__.replace("_", "-")] = function
    return function


class Rig:
    """One device with raw calls: ``code`` is the CUresult of a call, 0 if it succeeded."""

    def __init__(self, device: int) -> None:
        from vmtool.memory.cuda.context import DeviceContext
        from vmtool.memory.cuda.driver import GRANULARITY_MINIMUM

        self.device = device
        self.context = DeviceContext(device)
        self.driver = self.context.driver
        self.call = self.context.call
        self.properties = self.driver.allocation_properties(device)
        self.unit = self.driver.granularity(self.properties, GRANULARITY_MINIMUM)
        self.access = [self.driver.access(device)]
        self.call("cuCtxPushCurrent", self.context._handle)  # noqa: SLF001 - for the whole process

    def code(self, name: str, *arguments: Any) -> int:
        from vmtool.memory.cuda.driver import CudaError

        try:
            self.call(name, *arguments)
        except CudaError as error:
            return error.code
        return 0

    def reserve(self, units: int) -> int:
        address: int = self.call("cuMemAddressReserve", units * self.unit, 0, 0, 0)
        return address

    def create(self) -> int:
        handle: int = self.call("cuMemCreate", self.unit, self.properties, 0)
        return handle

    def map(self, address: int, handle: int) -> None:
        self.call("cuMemMap", address, self.unit, 0, handle, 0)
        self.call("cuMemSetAccess", address, self.unit, self.access, 1)

    def commit(self, address: int, units: int = 1) -> None:
        for index in range(units):
            handle = self.create()
            self.map(address + index * self.unit, handle)
            self.call("cuMemRelease", handle)

    def free(self) -> int:
        free: int = self.call("cuMemGetInfo")[0]
        return free


def describe(code: int) -> str:
    return "accepted" if code == 0 else f"refused with {code}"


@question
def facts(device: int, _quick: bool) -> str:
    from vmtool.machine.nvml import read_nvml
    from vmtool.memory.cuda import device_info

    info = device_info.device(device)
    nvml = read_nvml()
    managed = nvml.device(info.uuid)
    known = {name: value for name, value in info.attributes.items() if value is not None}
    return (
        f"{info.name}, {info.total_bytes / GIB:.1f} GiB, CUDA {info.driver_version}, module "
        f"{info.module_version or nvml.driver_version}, {info.pci}, {known}; NVML: "
        f"{nvml.absent or managed}"
    )


@question
def context_cost(device: int, _quick: bool) -> str:
    from vmtool.machine.device_memory import read_device_memory
    from vmtool.memory.cuda.device_info import device as describe_device

    rig = Rig(device)
    memory = read_device_memory(describe_device(device))
    how = "measured by NVML" if memory.context_measured else "an estimate"
    return f"{memory.context_bytes / MIB:.1f} MiB, {how}; {rig.free() / MIB:.0f} MiB free"


@question
def context_free_calls(device: int, _quick: bool) -> str:
    """Whether reserving works before any context was made."""
    from vmtool.memory.cuda import driver

    loaded = driver.load()
    properties = loaded.allocation_properties(device)
    unit = loaded.granularity(properties, driver.GRANULARITY_MINIMUM)
    with suppress(driver.CudaError):
        address = loaded.call("cuMemAddressReserve", unit, 0, 0, 0)
        loaded.call("cuMemAddressFree", address, unit)
        return "cuMemAddressReserve works without a context"
    return "cuMemAddressReserve needs a context"


@question
def fresh_memory(device: int, quick: bool) -> str:
    rig = Rig(device)
    tries, dirty = (8 if quick else 256), 0
    for _ in range(tries):
        address = rig.reserve(1)
        rig.commit(address)
        found = bytearray(rig.unit)
        rig.call("cuMemcpyDtoH", found, address, rig.unit)
        dirty += any(found[::64]) or found != bytes(rig.unit)
        rig.call("cuMemsetD8", address, 0xA5, rig.unit)
        rig.call("cuCtxSynchronize")
        rig.call("cuMemUnmap", address, rig.unit)
        rig.call("cuMemAddressFree", address, rig.unit)
    return f"{dirty} of {tries} handles were not zero when fresh"


@question
def bad_copy(device: int, _quick: bool) -> str:
    rig = Rig(device)
    address = rig.reserve(1)
    code = rig.code("cuMemcpyDtoH", bytearray(8), address, 8)
    after = rig.code("cuCtxSynchronize")
    return f"a copy from reserved memory: {describe(code)}; the context after it: {describe(after)}"


@question
def copy_without_access(device: int, _quick: bool) -> str:
    rig = Rig(device)
    address = rig.reserve(1)
    rig.call("cuMemMap", address, rig.unit, 0, rig.create(), 0)
    code = rig.code("cuMemcpyDtoH", bytearray(8), address, 8)
    after = rig.code("cuCtxSynchronize")
    return f"a copy from a mapping without access: {describe(code)}; after it: {describe(after)}"


@question
def free_with_mappings(device: int, _quick: bool) -> str:
    rig = Rig(device)
    address = rig.reserve(2)
    rig.commit(address)
    before = rig.free()
    code = rig.code("cuMemAddressFree", address, 2 * rig.unit)
    return f"cuMemAddressFree of a range with a mapping: {describe(code)}, {rig.free() - before} bytes freed"


@question
def access_where_nothing_is_mapped(device: int, _quick: bool) -> str:
    rig = Rig(device)
    address = rig.reserve(2)
    location = rig.access[0].location
    return f"cuMemGetAccess there: {describe(rig.code('cuMemGetAccess', location, address))}"


@question
def access_of_a_part(device: int, _quick: bool) -> str:
    rig = Rig(device)
    address = rig.reserve(2)
    handle = rig.call("cuMemCreate", 2 * rig.unit, rig.properties, 0)
    rig.call("cuMemMap", address, 2 * rig.unit, 0, handle, 0)
    code = rig.code("cuMemSetAccess", address, rig.unit, rig.access, 1)
    return f"cuMemSetAccess on half of a mapping: {describe(code)}"


@question
def unmap_over_a_hole(device: int, _quick: bool) -> str:
    rig = Rig(device)
    address = rig.reserve(3)
    rig.commit(address)
    rig.commit(address + 2 * rig.unit)
    code = rig.code("cuMemUnmap", address, 3 * rig.unit)
    return f"cuMemUnmap over a hole: {describe(code)}"


@question
def multiples(device: int, _quick: bool) -> str:
    rig = Rig(device)
    found = []
    for factor in (3, 10):
        code = rig.code("cuMemCreate", factor * rig.unit, rig.properties, 0)
        found.append(f"{factor * rig.unit / MIB:g} MiB {describe(code)}")
    return f"handles of no power of two: {', '.join(found)}"


@question
def mapping_limit(device: int, quick: bool) -> str:
    """Map one handle over and over: memory does not run out, what the driver notes may."""
    rig = Rig(device)
    most, seconds = (2_000, 10) if quick else (600_000, 180)
    address = rig.reserve(most)
    handle = rig.create()
    began = time.monotonic()
    before = rig.free()
    for index in range(most):
        at = address + index * rig.unit
        code = rig.code("cuMemMap", at, rig.unit, 0, handle, 0) or rig.code(
            "cuMemSetAccess", at, rig.unit, rig.access, 1
        )
        if code:
            return f"mapping {index + 1:,} of one handle: {describe(code)}"
        if time.monotonic() - began > seconds:
            break
    used = (before - rig.free()) / (index + 1)
    rate = (time.monotonic() - began) / (index + 1)
    return f"none in {index + 1:,} mappings: {rate * 1e6:.1f} us and {used:.0f} bytes of device memory each"


@question
def handle_overhead(device: int, quick: bool) -> str:
    from vmtool.memory.counters import read_process

    rig = Rig(device)
    count = min(64 if quick else 2048, rig.free() // 2 // rig.unit)
    before, resident = rig.free(), read_process().resident_bytes or 0
    handles = [rig.create() for _ in range(count)]
    device_bytes = (before - rig.free()) / count - rig.unit
    host_bytes = ((read_process().resident_bytes or 0) - resident) / count
    for handle in handles:
        rig.call("cuMemRelease", handle)
    back = rig.free() - before
    return (
        f"{device_bytes:+.0f} bytes of device and {host_bytes:.0f} of host memory a handle beside its "
        f"own; after release {back:+d} bytes"
    )


@question
def nvml_counts(device: int, _quick: bool) -> str:
    """Whether NVML's figure of a process has handles that are not mapped."""
    from vmtool.machine.nvml import read_nvml

    rig = Rig(device)
    uuid = rig.context.info.uuid

    def own() -> int | None:
        managed = read_nvml().device(uuid)
        return None if managed is None else managed.bytes_of(os.getpid())

    before = own()
    if before is None:
        return f"not available: {read_nvml().absent or 'no figure for a process'}"
    handles = [rig.create() for _ in range(16)]
    created = own() or 0
    address = rig.reserve(16)
    for index, handle in enumerate(handles):
        rig.map(address + index * rig.unit, handle)
    mapped = own() or 0
    each = 16 * rig.unit
    return f"of {each} bytes created {created - before}, mapped {mapped - before}"


@question
def largest_reservation(device: int, _quick: bool) -> str:
    from vmtool.memory import open_device
    from vmtool.probes import limits

    backing = open_device(f"cuda:{device}")
    found = limits.largest_reservation(backing, tries=24)
    return f"{found.works_bytes / (1 << 40):.3f} TiB works; then: {found.error}"


@question
def handle_kinds(device: int, _quick: bool) -> str:
    from vmtool.memory import open_device
    from vmtool.probes.sharing import try_handles

    return "; ".join(
        f"{each.handle} {'created' if each.created else f'refused ({each.refusal})'}"
        + (", exported" if each.exported else "")
        for each in try_handles(open_device(f"cuda:{device}"))
    )


@question
def sharing(device: int, _quick: bool) -> str:
    from vmtool.probes.sharing import share_between_processes

    return str(share_between_processes(device))


@question
def peers(_device: int, _quick: bool) -> str:
    from vmtool.probes.sharing import try_peers

    return "; ".join(map(str, try_peers())) or "one device only"


@question
def allocators(device: int, quick: bool) -> str:
    from vmtool.probes.allocators import AllocatorOptions, measure_allocators

    most = 4 * MIB if quick else GIB
    found = measure_allocators(device, AllocatorOptions(most, 4 * most, 2 if quick else 9))
    calls = next(iter(found.chunks)).calls_ns
    return f"faster from {found.faster_from_bytes}, knee {found.knee_bytes}, calls {calls} ns"


@question
def beside_work(device: int, quick: bool) -> str:
    from vmtool.probes.beside_work import run_beside_work

    return str(run_beside_work(device, (2 if quick else 64) * MIB, steps=20 if quick else 2000))


def command(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    lines = (ran.stdout or ran.stderr).strip().splitlines()
    return f"exit {ran.returncode}: {lines[0] if lines else ''}"


@question
def stress(device: int, quick: bool) -> str:
    long = ["--cycles", "50"] if quick else ["--cycles", "4000", "--verify", "full"]
    wanted = ["-m", "vmtool", "stress", "--backing", f"cuda:{device}", "--method", "all", "-q"]
    return command(*wanted, "--capacity", "64MiB", *long)


@question
def inject(device: int, _quick: bool) -> str:
    wanted = ["-m", "vmtool", "stress", "--backing", f"cuda:{device}", "--cycles", "50", "-q"]
    return command(*wanted, "--capacity", "64MiB", "--inject", "cuMemCreate:20=214")


@question
def tests_marked_gpu(_device: int, quick: bool) -> str:
    if quick:
        return "left out by --quick"
    return command("-m", "pytest", "-q", "-n", "0", "-m", "gpu", "-p", "no:cacheprovider")


def arguments_of(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--packages", type=Path, help="install from this folder, without a network")
    parser.add_argument("--here", action="store_true", help="use the Python that runs this")
    parser.add_argument("--stand-in", action="store_true", help="use the driver of the tests")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    return parser.parse_args(given)


def environment(*, stand_in: bool) -> dict[str, str]:
    path = str(ROOT)
    if not stand_in:
        return os.environ | {"PYTHONPATH": path}
    sys.path[:0] = [path, str(ROOT / "tests")]
    from fakecuda import build

    library = str(build.driver().parent)
    nvml = str(ROOT / "tests" / "fakecuda" / "nvml")
    found = {name: text for name, text in os.environ.items() if not name.startswith("FAKECUDA_")}
    found |= {"LD_LIBRARY_PATH": library, "PYTHONPATH": os.pathsep.join((nvml, path))}
    return found | {"FAKENVML": "on", "FAKECUDA_DEVICES": "2"}


def ask(name: str, arguments: argparse.Namespace, env: dict[str, str]) -> str:
    """Return the answer to one question, from a process of its own."""
    line = [sys.executable, __file__, "--here", "--ask", name, "--device", str(arguments.device)]
    line += ["--quick"] * arguments.quick
    child = subprocess.Popen(
        line,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=10)
        return f"not answered: not finished after {TIMEOUT_S} s"
    if child.returncode:
        last = err.strip().splitlines()
        return f"not answered: {last[-1] if last else f'exit {child.returncode}'}"
    return out.strip()


def main(given: list[str] | None = None) -> int:
    """Ask every question; exit 1 if one was not answered, 2 if there is no such question."""
    arguments = arguments_of(given)
    if arguments.ask:
        print(QUESTIONS[arguments.ask](arguments.device, arguments.quick))
        return 0
    wanted = arguments.questions or list(QUESTIONS)
    if unknown := [name for name in wanted if name not in QUESTIONS]:
        print(
            f"no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}", file=sys.stderr
        )
        return 2
    if not arguments.here:
        if arguments.packages is not None:  # pip reads its options from here
            os.environ["PIP_NO_INDEX"] = "1"
            os.environ["PIP_FIND_LINKS"] = str(arguments.packages.absolute())
        import _environment

        python = _environment.ensure("test")
        again = [str(python), __file__, "--here", *(sys.argv[1:] if given is None else given)]
        return subprocess.call(again)
    env = environment(stand_in=arguments.stand_in)
    if arguments.stand_in:
        print("the stand-in driver of the tests: nothing here says anything about hardware")
    unanswered = 0
    for name in wanted:
        answer = ask(name, arguments, env)
        unanswered += answer.startswith("not answered")
        print(f"{name}: {answer}", flush=True)
    return 1 if unanswered else 0


if __name__ == "__main__":
    sys.exit(main())
