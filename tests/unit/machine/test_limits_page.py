"""docs/limits-and-remedies.md has every limit that the code can name, and no other."""

import ast
import re
from pathlib import Path

import vmtool

ROOT = Path(vmtool.__file__).parent
#: What gives a name to a limit, by its first argument.
NAMES_IT = {"Finding.ok", "Finding.note", "Finding.problem", "Diagnosis", "Shortage"}
#: Says that no limit is known.
NONE = "unknown"


def named_in(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in NAMES_IT:
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_every_limit_that_the_code_names_has_its_row(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "limits-and-remedies.md").read_text(encoding="utf-8")
    named = {name for path in ROOT.rglob("*.py") for name in named_in(path)} - {NONE}
    assert len(named) > 60
    assert named - set(re.findall(r"`([a-z-]+)`", page)) == set()
    columns = [line.split("|")[2] for line in page.splitlines() if line.count("|") > 3]
    shown = {name for column in columns for name in re.findall(r"`([a-z-]+)`", column)}
    assert shown - named - {"cannot-be-killed"} == set()  # a constant of its own
