"""Listing the commands must not load what only the commands need."""

import json
import subprocess
import sys

_PROBE = """
import sys
from vmtool.cli import run
code = run(["--help"])
loaded = sorted(sys.modules)
import json
print(json.dumps({"code": code, "loaded": loaded}), file=sys.stderr)
"""

# click itself uses ctypes for the Windows console.
_HEAVY = {
    "rich",
    "psutil",
    "cuda",
    "numpy",
    "json",
    "logging",
    "asyncio",
    "importlib.metadata",
    "dataclasses",
} | (set() if sys.platform == "win32" else {"ctypes"})


def test_help_loads_nothing_that_only_a_command_needs():
    result = subprocess.run(
        [sys.executable, "-c", _PROBE],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    seen = json.loads(result.stderr.splitlines()[-1])
    assert seen["code"] == 0
    assert "Commands" in result.stdout
    assert not _HEAVY & set(seen["loaded"])
    ours = {name for name in seen["loaded"] if name.startswith("vmtool.")}
    assert ours == {"vmtool.cli", "vmtool.errors"}
