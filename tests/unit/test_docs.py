"""The anchors and names that the code refers to are in the docs."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_anchor_in_the_code_is_in_the_page():
    page = (ROOT / "docs/platform-facts.md").read_text(encoding="utf-8")
    anchors = set(re.findall(r'<a id="([\w-]+)"></a>', page))
    named = {
        (path.relative_to(ROOT).as_posix(), anchor)
        for path in (ROOT / "vmtool").rglob("*.py")
        for anchor in re.findall(r"platform-facts(?:\.md)?#([\w-]+)", path.read_text("utf-8"))
    }
    assert named
    assert {name for _, name in named} <= anchors, {n for n in named if n[1] not in anchors}


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


def test_every_limit_that_the_code_names_has_its_row():
    page = (ROOT / "docs/limits-and-remedies.md").read_text(encoding="utf-8")
    named = {name for path in (ROOT / "vmtool").rglob("*.py") for name in named_in(path)} - {NONE}
    assert len(named) > 60
    assert named - set(re.findall(r"`([a-z-]+)`", page)) == set()
    columns = [line.split("|")[2] for line in page.splitlines() if line.count("|") > 3]
    shown = {name for column in columns for name in re.findall(r"`([a-z-]+)`", column)}
    assert shown - named - {"cannot-be-killed"} == set()  # a constant of its own
