"""The virtual environment that run.py and test.py use: ``.venv`` in the checkout, or ``VMTOOL_VENV``.

Standard library only. It is made once, and again when the Python, the checkout or pyproject.toml
changed or an installation was interrupted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent


def ensure(*groups: str) -> Path:
    """Return the environment's Python, with vmtool and the dependency *groups* installed."""
    directory = Path(os.environ.get("VMTOOL_VENV") or ROOT / ".venv").absolute()
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = directory / "vmtool-setup.json"  # written last: without it the environment is not whole
    try:
        installed = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise  # what was not read is not missing
        installed = {}
    origin = [sys.version, sys.base_prefix, str(ROOT)]
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    usable = python.exists() and installed.get("origin") == origin
    known = set(installed["groups"]) if usable else set()
    if usable and installed["project"] == project and known.issuperset(groups):
        return python
    print(f"installing vmtool in {directory}", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    if not usable:
        _create(directory)
    wanted = sorted(known.union(groups))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    if subprocess.call([*pip, "--editable", str(ROOT), *requirements(*wanted)], stdout=2):
        fail(
            "pip could not install vmtool and what it needs (see above)",
            "check that the package index is reachable, then run this again",
        )
    stamp.write_text(
        json.dumps({"origin": origin, "project": project, "groups": wanted}), encoding="utf-8"
    )
    return python


def requirements(*groups: str) -> list[str]:
    """Return the requirements of dependency groups; the pip of Python 3.11 can't read them."""
    import tomllib  # noqa: PLC0415 - most runs install nothing

    with (ROOT / "pyproject.toml").open("rb") as file:
        table = tomllib.load(file)["dependency-groups"]
    return [requirement for group in groups for requirement in table[group]]


def fail(message: str, hint: str, code: int = 1) -> NoReturn:
    """Exit with *code* after an error in the form that vmtool's own have."""
    print(f"vmtool: error: {message}\n  hint: {hint}", file=sys.stderr)
    sys.exit(code)


def _create(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()) and not (directory / "pyvenv.cfg").exists():
        fail(
            f"{directory} exists and is not a virtual environment",
            "remove it, or set VMTOOL_VENV=DIR to another directory",
            2,
        )
    # Not sys.executable: that may be in the environment that is cleared.
    base = getattr(sys, "_base_executable", None) or sys.executable
    if subprocess.call([base, "-m", "venv", "--clear", str(directory)], stdout=2):
        fail(
            f"could not make a virtual environment in {directory} (see above)",
            "on Debian and Ubuntu: apt install python3-venv; or set VMTOOL_VENV=DIR",
        )
