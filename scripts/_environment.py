"""The private environment that run.py and test.py work in: made once, kept current, healed.

Standard library only. The environment is ``.venv`` in the checkout, or ``VMTOOL_VENV``. A stamp,
written last, says what is installed in it; without a valid stamp it is made again from nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from _process import FAILED, UNAVAILABLE, USAGE, SetupError, run_quietly, say

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ROOT = Path(__file__).resolve().parent.parent

PIP_HINT = (
    "pip needs a package index that it can reach (PIP_INDEX_URL or PIP_FIND_LINKS can name "
    "another); then run this again: it starts afresh"
)


@dataclass(frozen=True)
class Environment:
    """Where the parts of an environment are, on this platform."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.program("python")

    @property
    def stamp(self) -> Path:
        return self.directory / "vmtool-setup.json"

    @property
    def lock(self) -> Path:
        return self.directory / "vmtool-setup.lock"

    def program(self, name: str) -> Path:
        if sys.platform == "win32":
            return self.directory / "Scripts" / f"{name}.exe"
        else:
            return self.directory / "bin" / name


@dataclass(frozen=True)
class Stamp:
    """What an environment holds.

    Attributes:
        python: The interpreter it was made with.
        root: The checkout it points to: an editable install and its scripts hold absolute paths.
        project: Digest of pyproject.toml.
        groups: The dependency groups installed beside the project, sorted.
    """

    python: str
    root: str
    project: str
    groups: tuple[str, ...]


def ensure(groups: Collection[str] = ()) -> Environment:
    """Return the environment with the project and the dependency *groups* installed in it.

    Raises:
        SetupError: If it cannot be made.
    """
    environment = Environment(Path(os.environ.get("VMTOOL_VENV") or ROOT / ".venv").absolute())
    try:
        if not _is_current(environment, groups):
            _require_venv()
            _claim(environment)
            with locked(environment.lock):
                if not _is_current(environment, groups):  # another run may have done it
                    _install(environment, groups)
    except OSError as exc:
        raise SetupError(
            f"cannot set up {environment.directory}: {exc}",
            hint="set VMTOOL_VENV=DIR to a directory that you can write to",
            code=FAILED,
        ) from exc
    return environment


def _is_current(environment: Environment, groups: Collection[str]) -> bool:
    stamp = _read_stamp(environment)
    return stamp is not None and stamp == _wanted_stamp({*groups, *stamp.groups})


def _read_stamp(environment: Environment) -> Stamp | None:
    """Return what the environment holds, or ``None`` if it is missing, half made or broken."""
    if not environment.python.exists():  # follows the link: its interpreter may be gone
        return None
    try:
        fields = json.loads(environment.stamp.read_text(encoding="utf-8"))
        return Stamp(**{**fields, "groups": tuple(fields["groups"])})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _wanted_stamp(groups: Collection[str]) -> Stamp:
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    interpreter = f"{sys.version} in {sys.base_prefix}"
    return Stamp(interpreter, str(ROOT), digest, tuple(sorted(groups)))


def _require_venv() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"this Python {version} ({sys.executable}) comes without {' and '.join(missing)}",
            hint=f"Debian, Ubuntu: sudo apt install python3-venv (or python{version}-venv); "
            "Fedora: sudo dnf install python3-libs python3-pip-wheel; "
            "elsewhere: use a Python with its whole standard library",
            code=UNAVAILABLE,
        )


def _claim(environment: Environment) -> None:
    """Create the directory and its lock, refusing one that holds anybody else's files."""
    directory = environment.directory
    if directory.is_dir() and not environment.lock.exists() and any(directory.iterdir()):
        raise SetupError(
            f"{directory} exists and was not made by this script, which would empty it",
            hint="remove it, or set VMTOOL_VENV=DIR to a new directory",
            code=USAGE,
        )
    directory.mkdir(parents=True, exist_ok=True)
    environment.lock.touch()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file, waiting for another run; the OS lets go of it if this process dies."""
    with path.open("ab") as file:
        if not _try_lock(file):
            say("waiting for another run that is setting up the environment")
            while not _try_lock(file):
                time.sleep(0.2)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists only there

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
    else:
        import fcntl  # noqa: PLC0415 - exists only there

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _install(environment: Environment, groups: Collection[str]) -> None:
    found = _read_stamp(environment)
    wanted = _wanted_stamp({*groups, *(found.groups if found else ())})
    environment.stamp.unlink(missing_ok=True)  # from here on it is half made
    start = time.monotonic()
    say(f"installing into {environment.directory} (once, and when pyproject.toml changes)")
    if found is None or (found.python, found.root) != (wanted.python, wanted.root):
        _clear(environment)
        # Not sys.executable: that may be the environment's own, just removed.
        base = getattr(sys, "_base_executable", None) or sys.executable
        run_quietly(
            "make a virtual environment",
            [base, "-I", "-m", "venv", str(environment.directory)],
            hint="use a Python with its whole standard library",
        )
    run_quietly(
        "install vmtool",
        [
            *(str(environment.python), "-I", "-m", "pip", "install", "--quiet", "--no-input"),
            *("--editable", str(ROOT), *requirements(wanted.groups)),
        ],
        hint=PIP_HINT,
    )
    draft = environment.stamp.with_suffix(".new")
    draft.write_text(json.dumps(asdict(wanted), indent=1), encoding="utf-8")
    draft.replace(environment.stamp)
    say(f"installed in {time.monotonic() - start:.0f} s")


def _clear(environment: Environment) -> None:
    """Empty the directory but for the lock, which this process holds."""
    for path in environment.directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != environment.lock:
            path.unlink()


def requirements(groups: Collection[str]) -> list[str]:
    """Return the requirements of *groups* (PEP 735); the pip of Python 3.11 cannot read them."""
    import tomllib  # noqa: PLC0415 - the usual run installs nothing

    with (ROOT / "pyproject.toml").open("rb") as file:
        table = tomllib.load(file)["dependency-groups"]
    return [requirement for group in groups for requirement in table[group]]
