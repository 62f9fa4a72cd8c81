#!/usr/bin/env python3
"""Run the Windows code on x86-64 Linux: a Windows CPython under Wine, built from packages.

    rig.py packages          list the Debian packages that the build needs
    rig.py build             build the rig, or what changed of it
    rig.py run ARGUMENT ...  build, then run the Windows Python with these arguments
    rig.py stop              end what a killed run left behind

The rig is ``.cache/windows-rig`` in the checkout, or ``VMTOOL_RIG``: 1.6 GB, made in half a minute.
``run`` is ended after ``VMTOOL_RIG_TIMEOUT`` seconds (900) with exit code 124. What passes here has
passed on Wine: it says nothing about the speed, the memory pressure or the commit limit of Windows.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import interpreter
import tools
import wine

# The Debian packages that the build needs, by a program that is in them.
PACKAGES = {
    "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64-win32",
    "patchelf": "patchelf",
}
_PROCESS_BYTES = 4 << 30  # a process under Wine may not take more memory than this
_SECTIONS = 1 << 16  # views of 64 KiB that a process under Wine may have: 4 GiB
TIMED_OUT = 124  # as timeout(1) says it

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Rig:
    """The parts of a rig, each a directory with a stamp that says what it was made from."""

    directory: Path

    @property
    def loader(self) -> Path:
        return wine.find_system_loader() or wine.loader_in(self.directory / "wine")

    @property
    def prefix(self) -> Path:
        return self.directory / "prefix"

    def build(self) -> None:
        """Make each part that is missing, half made, or made from something else."""
        system = wine.find_system_loader()
        # Its programs name the directory that they are in.
        origin = f"{_digest(_HERE / 'wine.py')} {system or self.directory}"
        if system is None:
            self.make_part("wine", origin, wine.unpack)
        self.make_part("prefix", origin, lambda prefix: wine.make_prefix(self.loader, prefix))
        downloads = self.directory / "downloads"
        downloads.mkdir(exist_ok=True)
        paths = (self.directory / "packages", tools.ROOT)
        self.make_part(
            "python",
            "\n".join([_digest(_HERE / "interpreter.py"), sys.version, *map(str, paths)]),
            lambda directory: interpreter.build(directory, downloads, paths),
        )
        packages = f"{interpreter.minor_version()} {interpreter.requirements()}"
        self.make_part("packages", packages, interpreter.install)

    def run(self, arguments: Sequence[str], timeout: float) -> int:
        """Return the exit code of the Windows Python, of which POSIX keeps the low 8 bits."""
        env = wine.variables(self.loader, self.prefix) | {
            # Not beside the sources, where the caches of this Python are.
            "PYTHONPYCACHEPREFIX": interpreter.windows_path(self.directory / "pycache"),
        }
        set_limits()
        python = self.directory / "python" / "python.exe"
        process = subprocess.Popen([str(self.loader), str(python), *arguments], env=env)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            print(f"rig: error: ended after {timeout:.0f} s", file=sys.stderr)
            return TIMED_OUT
        finally:
            wine.stop(self.loader, self.prefix)
            process.kill()  # in case it never reached the server; nothing if it has ended
            process.wait()

    def make_part(self, name: str, key: str, make: Callable[[Path], None]) -> None:
        directory, stamp = self.directory / name, self.directory / f"{name}.stamp"
        if directory.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == key:
            return
        _require_packages()
        stamp.unlink(missing_ok=True)
        if directory.exists():
            shutil.rmtree(directory)
        print(f"rig: making {directory}", file=sys.stderr)
        make(directory)
        stamp.write_text(key, encoding="utf-8")


def main() -> int:
    """Return the exit code of what the command line asks for."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in {"-h", "--help"}:
        print(__doc__)
        return 0
    if command not in {"packages", "build", "run", "stop"}:
        tools.fail(f"no command {command!r}", "try --help", 2)
    if command == "packages":
        print(*PACKAGES.values())
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        tools.fail("the Windows rig needs x86-64 Linux", "on Windows, run scripts/test.py", 4)
    directory = os.environ.get("VMTOOL_RIG") or tools.ROOT / ".cache" / "windows-rig"
    rig = Rig(Path(directory).absolute())
    if command == "stop":
        if rig.loader.exists():
            wine.stop(rig.loader, rig.prefix)
        return 0
    rig.directory.mkdir(parents=True, exist_ok=True)
    if sys.platform != "win32":  # for mypy: what follows is not reached there
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # Wine's services outlive a sudden end
            signal.signal(number, lambda number, _frame: sys.exit(128 + number))
        import fcntl

        with (rig.directory / "lock").open("ab") as lock:  # one at a time: each stops the server
            fcntl.flock(lock, fcntl.LOCK_EX)
            rig.build()
            return 0 if command == "build" else rig.run(arguments, _timeout_s())
    return 0


def _timeout_s() -> float:
    text = os.environ.get("VMTOOL_RIG_TIMEOUT", "900")
    try:
        return float(text)
    except ValueError:
        tools.fail(f"VMTOOL_RIG_TIMEOUT is {text!r}", "give seconds", 2)


def _require_packages() -> None:
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if missing:
        tools.fail(
            f"the Windows rig is built with programs of {' and '.join(missing)}",
            f"sudo apt install {' '.join(missing)}",
            4,
        )


def set_limits() -> None:
    """Limit the memory that each process from here on may take, and let it have many sections.

    Wine keeps a byte a page of whatever is reserved: without a limit one reservation of 64 TiB
    takes all memory of the machine. With one it fails, as it may on Windows. Each section is an
    open file of Wine's server, whereas Windows has no limit of them to speak of.
    """
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_PROCESS_BYTES, _PROCESS_BYTES))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = max(hard, _SECTIONS)
        with contextlib.suppress(OSError, ValueError):  # only root may raise the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
