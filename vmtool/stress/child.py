"""How vmtool starts itself again: the same interpreter, the same vmtool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import vmtool
from vmtool.errors import VmtoolError


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs *module* of vmtool."""
    return [sys.executable, "-m", module, *arguments]


def start_child(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start *module* of vmtool with pipes for all that it reads and writes.

    Raises:
        VmtoolError: If the platform allows no more processes, files or memory.
    """
    try:
        return subprocess.Popen(
            child_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",  # what a library of another code page prints ends no reader
            env=child_environment(),
        )
    except OSError as error:
        raise VmtoolError(
            f"a worker process cannot be started: {error.strerror}",
            hint="use fewer --workers, or raise the limit that is reached (ulimit -a)",
        ) from error


def volunteer() -> None:
    """Offer this process to the OOM killer before anything that matters (Linux)."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        return  # another platform, or a sandbox that forbids it


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds the vmtool that runs here, installed or not."""
    root = str(Path(vmtool.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
