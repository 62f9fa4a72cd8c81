"""Listing the commands must not load what only the commands need."""

import json
import subprocess
import sys

import pytest

_PROBE = """
import sys
import vmtool.cli.interrupt  # as at every start
from vmtool.cli.app import run
code = run(["--help"])
loaded = sorted(sys.modules)
import json
print(json.dumps({"code": code, "loaded": loaded}), file=sys.stderr)
"""

# click itself uses ctypes for the Windows console.
_HEAVY = {
    "rich",
    "psutil",
    "msgspec",
    "cuda",
    "numpy",
    "json",
    "logging",
    "asyncio",
    "importlib.metadata",
    "dataclasses",
} | (set() if sys.platform == "win32" else {"ctypes"})


def test_ctrl_c_while_the_command_line_is_loaded_is_an_interruption():
    # What a finder raises comes out of the import statement, as Ctrl-C in the middle of one does.
    program = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
runpy.run_module("vmtool", run_name="__main__")
"""
    child = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=60
    )
    assert (child.returncode, child.stderr) == (130, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
@pytest.mark.parametrize(("ignored", "code"), [(False, 130), (True, 0)])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_outside_a_run_ends_with_the_same_code_unless_it_is_ignored(name, ignored, code):
    program = f"""
import os, signal, sys
import vmtool.cli.app
signal.signal(signal.{name}, signal.{"SIG_IGN" if ignored else "SIG_DFL"})
def run():
    try:
        os.kill(os.getpid(), signal.{name})
        return 0
    except KeyboardInterrupt:
        return 130
vmtool.cli.app.run = run
vmtool.cli.app.entry()
"""
    child = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=60
    )
    assert (child.returncode, child.stderr) == (code, b"")


def test_an_interruption_in_the_making_of_a_dataclass_has_the_same_code():
    program = """
import vmtool.__main__, vmtool.cli.app
def enter():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        sys.exit(130)
import sys
vmtool.cli.app.entry = enter
vmtool.__main__.entry()
"""
    child = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=60
    )
    assert (child.returncode, child.stderr) == (130, b"")


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
    assert "How many tokens fit?" in result.stdout
    assert not _HEAVY & set(seen["loaded"])
    ours = {name for name in seen["loaded"] if name.startswith("vmtool.")}
    names = ("cli", "cli.app", "cli.interrupt", "cli.streams", "errors", "no_memory")
    assert ours == {f"vmtool.{name}" for name in names}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil reads RAM")
@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (["doctor", "--backing", "host"], {"vmtool.memory.backing"}),
        (
            ["kv-estimate", "llama-3.1-8b", "--budget", "16GiB"],
            {"msgspec", "json", "vmtool.machine", "vmtool.memory", "vmtool.kv.engines"},
        ),
    ],
)
def test_a_command_that_prints_loads_neither_psutil_nor_what_it_does_not_use(arguments, others):
    program = f"""
import sys
from vmtool.cli.app import run
code = run({arguments} + ["-o", "/dev/null"])
loaded = ({others} | {{"psutil", "subprocess", "cuda"}}) & set(sys.modules)
sys.exit(f"{{code}} {{loaded}}" if code or loaded else 0)
"""
    child = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
