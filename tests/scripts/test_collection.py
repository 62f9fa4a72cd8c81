"""The tests themselves load on platforms that lack what some of them need."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


#: There are no cuda bindings for macOS, and no such modules on Windows.
ELSEWHERE = {"cuda", "fcntl", "grp", "pwd", "resource", "termios"}


def test_no_test_needs_what_only_some_platforms_have_to_be_collected():
    """One such import at the top of a module, and no test at all runs there."""
    found = [
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or node.names[0].name]
        if name.partition(".")[0] in ELSEWHERE
    ]
    assert found == []
