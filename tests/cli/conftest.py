"""Run the command line as a user does: in this process where that is enough, else in a new one."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from vmtool.cli import run


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self):
        """The JSON document on stdout."""
        return json.loads(self.stdout)


@pytest.fixture
def vmtool(capsys):
    """Return a function that runs ``vmtool ARGUMENTS`` in this process."""

    def call(*arguments):
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return call


@pytest.fixture
def vmtool_child():
    """Return a function that runs ``vmtool ARGUMENTS`` in a new process, after *before*."""

    def call(*arguments, before="", stdin=subprocess.DEVNULL):
        program = f"{before}\nimport sys\nfrom vmtool.cli import run\nsys.exit(run(sys.argv[1:]))"
        child = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            check=False,
            capture_output=True,
            encoding="utf-8",
            stdin=stdin,
            timeout=60,
        )
        return Ran(child.returncode, child.stdout, child.stderr)

    return call
