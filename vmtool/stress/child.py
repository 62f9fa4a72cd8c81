"""How vmtool starts itself again: the same interpreter, the same vmtool."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import vmtool


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs *module* of vmtool."""
    return [sys.executable, "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return an environment in which a child finds the vmtool that runs here, installed or not."""
    root = str(Path(vmtool.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
