#!/usr/bin/env python3
"""Answer the open questions of docs/platform-facts.md on a real device, each in one line.

    first_gpu_run.py --download FOLDER
    first_gpu_run.py [--device N] [--packages FOLDER] [--here] [--stand-in] [--quick] [QUESTION ...]

Each question is a process of its own, as some of them end the context. ``--download`` only fills a folder
with all packages that are needed, on a machine with a network, the same system and the same Python;
``--packages`` installs from it, without a network; ``--here`` uses the Python that runs this. ``--stand-in`` runs everything on the stand-in driver of the tests, whose answers say
nothing about hardware; ``--quick`` does less of what takes long. The whole takes
at most ten minutes: what is left then is not answered.
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
GROUPS: Final = ("test", "gpu")
#: Of one question, and of all: a device on loan costs.
TIMEOUT_S: Final = 240
LIMIT_S: Final = 600
MIB: Final = 1 << 20
QUESTIONS: dict[str, Callable[[Rig], str]] = {}


def question(function: Callable[[Rig], str]) -> Callable[[Rig], str]:
    QUESTIONS[function.__name__.replace("_", "-")] = function
    return function


class Rig:
    """One device with raw calls; its context is made at the first use and stays current."""

    def __init__(self, device: int, *, quick: bool) -> None:
        self.device, self.quick, self.name = device, quick, f"cuda:{device}"

    def __getattr__(self, name: str) -> Any:
        from vmtool.memory.cuda.context import DeviceContext
        from vmtool.memory.cuda.driver import GRANULARITY_MINIMUM

        if "context" in vars(self):
            raise AttributeError(name)
        self.context = DeviceContext(self.device)
        driver, self.call = self.context.driver, self.context.call
        self.properties = driver.allocation_properties(self.device)
        self.unit = driver.granularity(self.properties, GRANULARITY_MINIMUM)
        self.access = [driver.access(self.device)]
        self.call("cuCtxPushCurrent", self.context._handle)  # noqa: SLF001 - for the whole process
        return getattr(self, name)

    def code(self, name: str, *arguments: Any) -> int:
        """Return the CUresult of a call, 0 if it succeeded."""
        from vmtool.memory.cuda.errors_and_diagnosis import CudaError

        try:
            self.call(name, *arguments)
        except CudaError as error:
            return error.code
        return 0

    def told(self, what: str, name: str, *arguments: Any) -> str:
        code = self.code(name, *arguments)
        return f"{what}: {'accepted' if code == 0 else f'refused with {code}'}"

    def reserve(self, units: int) -> int:
        return int(self.call("cuMemAddressReserve", units * self.unit, 0, 0, 0))

    def create(self, units: int = 1) -> int:
        return int(self.call("cuMemCreate", units * self.unit, self.properties, 0))

    def map(self, address: int, handle: int) -> None:
        self.call("cuMemMap", address, self.unit, 0, handle, 0)
        self.call("cuMemSetAccess", address, self.unit, self.access, 1)

    def commit(self, address: int) -> None:
        handle = self.create()
        self.map(address, handle)
        self.call("cuMemRelease", handle)

    def free(self) -> int:
        return int(self.call("cuMemGetInfo")[0])

    def copy(self, what: str, address: int) -> str:
        copied = self.told(what, "cuMemcpyDtoH", bytearray(8), address, 8)
        return f"{copied}; {self.told('the context after it', 'cuCtxSynchronize')}"


@question
def facts(rig: Rig) -> str:
    from vmtool.machine.device_facts import read_device_facts
    from vmtool.memory.cuda.devices import device

    return str(read_device_facts(device(rig.device)))


@question
def context_cost(rig: Rig) -> str:
    from vmtool.machine.device_memory import read_device_memory

    free = rig.free()
    memory = read_device_memory(rig.context.info)
    how = "measured by NVML" if memory.context_measured else "an estimate"
    return f"{memory.context_bytes / MIB:.1f} MiB, {how}; {free / MIB:.0f} MiB free"


@question
def context_free_calls(rig: Rig) -> str:
    """Whether reserving works before any context was made."""
    from vmtool.memory.cuda import driver
    from vmtool.memory.cuda.errors_and_diagnosis import CudaError

    loaded = driver.load()
    unit = loaded.granularity(loaded.allocation_properties(rig.device), driver.GRANULARITY_MINIMUM)
    with suppress(CudaError):
        address = loaded.call("cuMemAddressReserve", unit, 0, 0, 0)
        loaded.call("cuMemAddressFree", address, unit)
        return "cuMemAddressReserve works without a context"
    return "cuMemAddressReserve needs a context"


@question
def fresh_memory(rig: Rig) -> str:
    tries, dirty = (8 if rig.quick else 256), 0
    address, found = rig.reserve(1), bytearray(rig.unit)
    for _ in range(tries):
        rig.commit(address)
        rig.call("cuMemcpyDtoH", found, address, rig.unit)
        dirty += found != bytes(rig.unit)
        rig.call("cuMemsetD8", address, 0xA5, rig.unit)
        rig.call("cuCtxSynchronize")
        rig.call("cuMemUnmap", address, rig.unit)
    return f"{dirty} of {tries} new handles were not zero"


@question
def bad_copy(rig: Rig) -> str:
    return rig.copy("a copy from addresses without memory", rig.reserve(1))


@question
def copy_without_access(rig: Rig) -> str:
    address = rig.reserve(1)
    rig.call("cuMemMap", address, rig.unit, 0, rig.create(), 0)
    return rig.copy("a copy from a mapping without access", address)


@question
def free_with_mappings(rig: Rig) -> str:
    address = rig.reserve(2)
    rig.commit(address)
    before = rig.free()
    words = rig.told(
        "freeing a range that has a mapping", "cuMemAddressFree", address, 2 * rig.unit
    )
    return f"{words}, {rig.free() - before} bytes freed"


@question
def access_where_nothing_is_mapped(rig: Rig) -> str:
    return rig.told("there", "cuMemGetAccess", rig.access[0].location, rig.reserve(2))


@question
def access_of_a_part(rig: Rig) -> str:
    address = rig.reserve(2)
    rig.call("cuMemMap", address, 2 * rig.unit, 0, rig.create(2), 0)
    return rig.told(
        "access to half of a mapping", "cuMemSetAccess", address, rig.unit, rig.access, 1
    )


@question
def unmap_over_a_hole(rig: Rig) -> str:
    address = rig.reserve(3)
    rig.commit(address)
    rig.commit(address + 2 * rig.unit)
    return rig.told("over a hole", "cuMemUnmap", address, 3 * rig.unit)


@question
def multiples(rig: Rig) -> str:
    """Whether a handle may have a size that is no power of two."""
    sizes = [factor * rig.unit for factor in (3, 10)]
    return "; ".join(
        rig.told(f"{size / MIB:g} MiB", "cuMemCreate", size, rig.properties, 0) for size in sizes
    )


@question
def mapping_limit(rig: Rig) -> str:
    """Map one handle over and over: memory does not run out, what the driver notes may."""
    most, seconds = (2_000, 10) if rig.quick else (600_000, 180)
    address, handle = rig.reserve(most), rig.create()
    began, before = time.monotonic(), rig.free()
    for index in range(most):
        at = address + index * rig.unit
        code = rig.code("cuMemMap", at, rig.unit, 0, handle, 0) or rig.code(
            "cuMemSetAccess", at, rig.unit, rig.access, 1
        )
        if code:
            return f"mapping {index + 1:,} of one handle was refused with {code}"
        if time.monotonic() - began > seconds:
            break
    each_us = (time.monotonic() - began) / (index + 1) * 1e6
    used = (before - rig.free()) / (index + 1)
    return f"none in {index + 1:,} mappings: {each_us:.1f} us, {used:.0f} bytes of the device each"


@question
def handle_overhead(rig: Rig) -> str:
    from vmtool.memory.counters import read_process

    count = min(64 if rig.quick else 2048, rig.free() // 2 // rig.unit)
    before, resident = rig.free(), read_process().resident_bytes or 0
    handles = [rig.create() for _ in range(count)]
    device_bytes = (before - rig.free()) / count - rig.unit
    host_bytes = ((read_process().resident_bytes or 0) - resident) / count
    for handle in handles:
        rig.call("cuMemRelease", handle)
    return (
        f"{device_bytes:+.0f} bytes of device and {host_bytes:.0f} of host memory per handle beside "
        f"its own; after release {rig.free() - before:+d} bytes"
    )


@question
def nvml_counts(rig: Rig) -> str:
    """Whether NVML's figure of a process has handles that are not mapped."""
    from vmtool.machine.nvml import read_nvml

    def own() -> int | None:
        managed = read_nvml().device(rig.context.info.uuid)
        return None if managed is None else managed.bytes_of(os.getpid())

    before = own()
    if before is None:
        return f"not available: {read_nvml().absent or 'no figure for a process'}"
    handles = [rig.create() for _ in range(16)]
    created, address = own() or 0, rig.reserve(16)
    for index, handle in enumerate(handles):
        rig.map(address + index * rig.unit, handle)
    mapped = (own() or 0) - before
    return f"of {16 * rig.unit} bytes created {created - before}, mapped {mapped}"


@question
def largest_reservation(rig: Rig) -> str:
    from vmtool.memory.backing_by_name import open_device
    from vmtool.probes import limits

    found = limits.largest_reservation(open_device(rig.name), tries=24)
    return f"{found.works_bytes / (1 << 40):.3f} TiB works; then: {found.error}"


@question
def handle_kinds(rig: Rig) -> str:
    from vmtool.memory.backing_by_name import open_device
    from vmtool.probes.sharing import try_handles

    return "; ".join(map(str, try_handles(open_device(rig.name))))


@question
def sharing(rig: Rig) -> str:
    from vmtool.probes.sharing import share_between_processes

    return str(share_between_processes(rig.device))


@question
def peers(_rig: Rig) -> str:
    from vmtool.probes.sharing import try_peers

    return "; ".join(map(str, try_peers())) or "one device only"


@question
def peer_without_context(rig: Rig) -> str:
    """Whether another device can be given access before it has a context here."""
    from vmtool.memory.cuda.devices import devices, peers_of

    peers = peers_of(rig.device, range(len(devices())))
    if not peers:
        return "no other device reaches the memory of this one"
    address = rig.reserve(1)
    rig.call("cuMemMap", address, rig.unit, 0, rig.create(), 0)
    access = [*rig.access, rig.context.driver.access(peers[0])]
    return rig.told("its access", "cuMemSetAccess", address, rig.unit, access, 2)


@question
def allocators(rig: Rig) -> str:
    from vmtool.machine.preflight import safe_device_part
    from vmtool.probes.allocators import AllocatorOptions, measure_allocators

    most = 4 * MIB if rig.quick else 1024 * MIB
    budget = min(4 * most, safe_device_part(rig.free()))
    options = AllocatorOptions(most, budget, 2 if rig.quick else 9)
    found, failed = measure_allocators(rig.device, options)
    if failed is not None:
        raise failed
    calls = next(iter(found.chunks)).calls_ns
    return (
        f"faster from {found.faster_from_bytes}, growing from {found.grows_faster_from_bytes}, knee "
        f"{found.knee_bytes}, calls {calls} ns"
    )


@question
def beside_work(rig: Rig) -> str:
    from vmtool.probes.allocators_beside_work import run_beside_work

    work, steps = (2, 20) if rig.quick else (64, 2000)
    return str(run_beside_work(rig.device, work * MIB, steps=steps))


def command(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    lines = (ran.stdout or ran.stderr).strip().splitlines()
    return f"exit {ran.returncode}: {lines[0] if lines else ''}"


def run_stress(rig: Rig, *options: str) -> str:
    wanted = ("-m", "vmtool", "stress", "--backing", rig.name, "--capacity", "64MiB", "-q")
    return command(*wanted, *options)


@question
def stress(rig: Rig) -> str:
    long = ("--cycles", "50") if rig.quick else ("--cycles", "4000", "--verify", "full")
    return run_stress(rig, "--method", "all", *long)


@question
def inject(rig: Rig) -> str:
    return run_stress(rig, "--cycles", "50", "--inject", "cuMemCreate:20=214")


@question
def tests_marked_gpu(rig: Rig) -> str:
    if rig.quick:
        return "skipped (--quick)"
    wanted = ("pytest", "-q", "-n", "0", "-m", "gpu", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", *wanted], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return counted(ran.returncode, ran.stdout or ran.stderr)


def counted(code: int, output: str) -> str:
    """Return pytest's last line, which has the counts; where no test ran, that is no answer."""
    lines = output.strip().splitlines()
    last = lines[-1].strip(" =") if lines else ""
    if code == 0 and " passed" not in last:
        return f"not answered: no test ran: {last}"
    return f"exit {code}: {last}"


def arguments_of(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument(
        "--download", type=Path, help="download the packages to this folder and exit"
    )
    parser.add_argument(
        "--packages", type=Path, help="install the packages from this folder, without a network"
    )
    parser.add_argument(
        "--here", action="store_true", help="use the packages of the Python that runs this script"
    )
    parser.add_argument(
        "--stand-in", action="store_true", help="use the stand-in driver of the tests"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    return parser.parse_args(given)


def download(folder: Path) -> int:
    """Fill *folder* with vmtool's packages, those of GROUPS, and what builds vmtool; pip's exit code."""
    import tomllib

    import _environment

    with (ROOT / "pyproject.toml").open("rb") as file:
        build = tomllib.load(file)["build-system"]["requires"]
    # hatchling asks for editables only once it installs a checkout.
    wanted = [str(ROOT), *build, "editables", *_environment.requirements(*GROUPS)]
    return subprocess.call(
        [sys.executable, "-m", "pip", "download", "--dest", str(folder), *wanted]
    )


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


def ask(name: str, arguments: argparse.Namespace, env: dict[str, str], left_s: float) -> str:
    """Return the answer to one question, from a process of its own."""
    if left_s <= 0:
        return f"not answered: the {LIMIT_S} s for all questions are over; run this question alone"
    timeout_s = min(left_s, TIMEOUT_S)
    line = [sys.executable, __file__, "--here", "--ask", name, "--device", str(arguments.device)]
    line += ["--quick"] * arguments.quick
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        line, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # one that is stuck in the driver cannot be ended
            child.communicate(timeout=10)
        return f"not answered: not finished after {timeout_s:.0f} s"
    if child.returncode:
        last = err.strip().splitlines()
        return f"not answered: {last[-1] if last else f'exit {child.returncode}'}"
    return out.strip()


def main(given: list[str] | None = None) -> int:
    """Ask every question; exit 1 if one was not answered, 2 if there is no such question."""
    arguments = arguments_of(given)
    if arguments.ask:
        print(QUESTIONS[arguments.ask](Rig(arguments.device, quick=arguments.quick)))
        return 0
    if arguments.download is not None:
        return download(arguments.download)
    wanted = arguments.questions or list(QUESTIONS)
    if unknown := [name for name in wanted if name not in QUESTIONS]:
        print(
            f"unknown question {', '.join(unknown)}; use one of {', '.join(QUESTIONS)}",
            file=sys.stderr,
        )
        return 2
    if not arguments.here:
        if arguments.packages is not None:  # pip reads its options from here
            os.environ["PIP_NO_INDEX"] = "1"
            os.environ["PIP_FIND_LINKS"] = str(arguments.packages.absolute())
        import _environment

        python = _environment.ensure(*GROUPS)
        again = [str(python), __file__, "--here", *(sys.argv[1:] if given is None else given)]
        return subprocess.call(again)
    env = environment(stand_in=arguments.stand_in)
    if arguments.stand_in:
        print("the stand-in driver of the tests: nothing here says anything about hardware")
    unanswered, ends = 0, time.monotonic() + LIMIT_S
    for name in wanted:
        answer = ask(name, arguments, env, ends - time.monotonic())
        unanswered += answer.startswith("not answered")
        print(f"{name}: {answer}", flush=True)
    return 1 if unanswered else 0


if __name__ == "__main__":
    sys.exit(main())
