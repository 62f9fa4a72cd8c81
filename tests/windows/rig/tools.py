"""How the rig runs other programs and reports failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[3]
PIP_HINT = "check that the package index is reachable, then run this again"


def fail(message: str, hint: str, code: int = 1) -> NoReturn:
    """Exit with *code* after an error in the form that vmtool's own have."""
    print(f"rig: error: {message}\n  hint: {hint}", file=sys.stderr)
    sys.exit(code)


def run(
    purpose: str,
    command: Sequence[str],
    *,
    hint: str,
    timeout_s: float,
    env: dict[str, str] | None = None,
) -> str:
    """Return what *command* printed; exit with that and the *hint* if it fails."""
    try:
        result = subprocess.run(
            command,
            check=False,
            env=env,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        fail(f"could not {purpose}: {Path(command[0]).name} took over {timeout_s:.0f} s", hint)
    if result.returncode:
        print(result.stdout, file=sys.stderr)
        fail(
            f"could not {purpose}: {Path(command[0]).name} exited with {result.returncode} "
            "(its output is above)",
            hint,
        )
    return result.stdout
