"""Rules for all tests: they load on every system, and use nothing private."""

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


def names_of(node):
    """The names that a statement or call takes from elsewhere or replaces there."""
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in {"setattr", "delattr"}:
        return [
            argument.value.rpartition(".")[2]
            for argument in node.args[:2]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        ]
    return []


def test_no_test_imports_or_replaces_what_is_private():
    """The linter sees attributes alone."""
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}: {name}"
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in names_of(node)
        if name.startswith("_") and not name.startswith("__")
    ]
    assert found == []
