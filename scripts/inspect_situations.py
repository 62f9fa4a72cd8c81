#!/usr/bin/env python3
"""Reproduce memory problems from public reports, and print what ``vmtool inspect`` says.

    inspect_situations.py [--modes] [NAME...]

Each situation is made in a process of its own, which shows the error of the report where it has one;
then the first line of the answer is printed. Exit 1 if it is not the right one. What needs root, a
control group of version 2, or ``--modes`` (the overcommit mode of the whole machine is changed for a
second) is skipped with the reason.
"""

import argparse
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

assert sys.platform == "linux"  # here, so that mypy skips the rest elsewhere

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also where it isn't installed

MIB = 1 << 20
_NOBODY = 65534
_FILL = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def tell(what):
    print(what, flush=True)
def failed(call):
    tell(f"{call}: {os.strerror(ctypes.get_errno())}")
"""


class Skipped(Exception):  # noqa: N818 - no error
    """A situation that cannot be made here."""


@contextlib.contextmanager
def process(
    code: str, before: Callable[[], None] | None = None, prepare: Callable[[], None] | None = None
) -> Iterator[tuple[int, str]]:
    """Run Python code that prints one line, and yield its number and that line.

    Args:
        code: What it does.
        before: Called in it first.
        prepare: Called when it has printed ``ready``, before its one line.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", f"{_FILL}{code}\nsys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=before,  # noqa: PLW1509 - there is one thread
    )
    assert child.stdout is not None
    try:
        if prepare is not None and child.stdout.readline():
            prepare()
        yield child.pid, child.stdout.readline().strip()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def group(controller: str) -> Iterator[tuple[Path, int]]:
    """Make a control group, and yield its directory and its version."""
    root = Path("/sys/fs/cgroup")
    version = 2 if (root / "cgroup.controllers").exists() else 1
    made = (root if version == 2 else root / controller) / f"vmtool-{os.getpid()}"
    try:
        if version == 2:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        made.mkdir()
    except OSError as error:
        raise Skipped(f"no control group can be made: {error.strerror}") from error
    try:
        yield made, version
    finally:
        for _ in range(100):
            if not (made / "cgroup.procs").read_text():
                break
            time.sleep(0.05)
        made.rmdir()


def areas() -> Iterator[tuple[int, str]]:
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    if most > 200_000:
        raise Skipped(f"vm.max_map_count is {most}, which would take too long to fill")
    with process(f"""
base = libc.mmap(None, {most} * 8192, 3, 0x22, -1, 0)
for i in range({most}):
    if libc.mprotect(base + i * 8192, 4096, 0):
        failed("mprotect")
        break
""") as made:
        yield made


def address_space() -> Iterator[tuple[int, str]]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    code = """
libc.mmap(None, 940 << 20, 0, 0x4022, -1, 0)
libc.mmap(None, 256 << 20, 0, 0x4022, -1, 0)
failed("mmap of 256 MiB without access")
"""
    with process(code, limit) as made:
        yield made


def locking() -> Iterator[tuple[int, str]]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))

    # The limit does not hold for CAP_IPC_LOCK.
    code = f"""
os.getuid() or os.setuid({_NOBODY})
data = libc.mmap(None, 64 << 20, 3, 0x22, -1, 0)
for i in range(64):
    if libc.mlock(data + (i << 20), 1 << 20):
        failed(f"mlock of another MiB")
        break
"""
    with process(code, limit) as made:
        yield made


def forking(*, modes: bool) -> Iterator[tuple[int, str]]:
    if not modes or os.geteuid():
        raise Skipped("needs root and --modes: vm.overcommit_memory=2 applies to the whole machine")
    system = Path("/proc/sys/vm")
    names = ("overcommit_memory", "overcommit_kbytes", "overcommit_ratio")
    kept = {name: (system / name).read_text() for name in names}
    code = """
libc.mmap(None, 2 << 30, 3, 0x22, -1, 0)
tell("ready")
while open("/proc/sys/vm/overcommit_memory").read() != "2\\n":
    time.sleep(0.01)
try:
    if not os.fork():
        os._exit(0)
    tell("fork works")
except OSError as error:
    tell(f"fork: {error.strerror}")
"""

    def switch() -> None:
        meminfo = Path("/proc/meminfo").read_text()
        charged = re.search(r"Committed_AS: *([0-9]+)", meminfo)
        assert charged is not None
        (system / names[1]).write_text(str(int(charged[1]) + (1 << 20)))
        (system / names[0]).write_text("2")

    try:
        with process(code, prepare=switch) as made:
            yield made
    finally:
        (system / names[0]).write_text(kept[names[0]])
        name = names[1] if kept[names[1]].strip() != "0" else names[2]
        (system / name).write_text(kept[name])


def threads() -> Iterator[tuple[int, str]]:
    with group("pids") as (directory, _):
        (directory / "pids.max").write_text("16")
        code = f"""
open({str(directory / "cgroup.procs")!r}, "w").write("0")
try:
    for _ in range(32):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
except RuntimeError as error:
    tell(error)
"""
        with process(code) as made:
            yield made


def cache() -> Iterator[tuple[int, str]]:
    with group("memory") as (directory, version):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        used = "memory.current" if version == 2 else "memory.usage_in_bytes"
        (directory / name).write_text(str(300 * MIB))
        file = Path(f"/var/tmp/vmtool-{os.getpid()}")  # noqa: S108 - removed below
        code = f"""
open({str(directory / "cgroup.procs")!r}, "w").write("0")
block = bytes(1 << 20)
with open({str(file)!r}, "wb") as file:
    for _ in range(400):
        file.write(block)
    os.fsync(file.fileno())
with open({str(file)!r}, "rb") as file:
    while file.read(1 << 20):
        pass
charged = int(open({str(directory / used)!r}).read())
tell(f"{{charged >> 20}} of 300 MiB is charged")
"""
        try:
            with process(code) as (pid, charged):
                if int(charged.split()[0]) < 250:
                    raise Skipped(
                        f"only {charged}: {file.parent} does not keep its cache in the group"
                    )
                yield pid, charged
        finally:
            file.unlink(missing_ok=True)


def high() -> Iterator[tuple[int, str]]:
    with group("memory") as (directory, version):
        if version != 2:
            raise Skipped("memory.high needs control groups of version 2")
        (directory / "memory.high").write_text(str(64 * MIB))
        code = f"""
open({str(directory / "cgroup.procs")!r}, "w").write("0")
def grow():
    kept = []
    while True:
        kept.append(bytearray(b"x" * 65536))
threading.Thread(target=grow, daemon=True).start()
time.sleep(15)
resident = open("/proc/self/statm").read().split()[1]
tell(f"asks for memory without end, and has {{int(resident) >> 8}} MiB after 15 s")
"""
        with process(code) as made:
            yield made


SITUATIONS: dict[str, tuple[str, str]] = {
    "areas": ("chaosblade-io/chaosblade-box#102", r"memory areas are in use \(vm.max_map_count\)"),
    "address_space": ("golang/go#38010", r"of address space is in use \(RLIMIT_AS\)"),
    "locking": ("ggml-org/llama.cpp#4072", r"of locked memory is in use \(RLIMIT_MEMLOCK\)"),
    "forking": ("docker-library/redis#346", r"fork needs .* of commit charge and .* is left"),
    "threads": ("chroma-core/chroma#1682", r"processes and threads exist \(pids.max\)"),
    "cache": ("ollama/ollama#11497", r"no problem found.* is file cache"),
    "high": ("kubernetes/enhancements#2570", r"memory.high of .* is 64 MiB"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*SITUATIONS, []])
    parser.add_argument("--modes", action="store_true")
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.names or SITUATIONS:
        report, expected = SITUATIONS[name]
        make = globals()[name]
        made = make(modes=arguments.modes) if name == "forking" else make()
        try:
            with contextlib.closing(made):
                pid, error = next(made)
                command = [sys.executable, "-m", "vmtool", "inspect", str(pid)]
                ran = subprocess.run(command, check=True, capture_output=True, text=True)
        except Skipped as reason:
            print(f"{report}\n  skipped: {reason}")
            continue
        text = " ".join(ran.stdout.split("\n\n")[0].split())
        right = re.search(expected, text) is not None
        wrong += not right
        print(
            f"{report}\n  the process: {error}\n  inspect: {text}\n  {'right' if right else 'WRONG'}"
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
