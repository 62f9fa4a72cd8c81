"""Guards are tried in children; what ends early leaves what was tried."""

import sys

import pytest

from vmtool.probes.guards import prove_guards
from vmtool.probes.question_process import Answer
from vmtool.results.check_outcomes import all_passed


@pytest.mark.skipif(sys.platform == "win32", reason="the methods are those of POSIX")
def test_interrupted_proofs_are_those_that_were_made(monkeypatch):
    asked = []

    def ask(case, _backing, method, *, stopping):
        if stopping():
            return None
        asked.append((method, case))
        return Answer(None, 0, signal_number=11) if case != "committed" else Answer(True, 1)

    monkeypatch.setattr("vmtool.probes.guards.ask", ask)
    checks = prove_guards("host", ["fixed", "protect"], stopping=lambda: len(asked) == 4)
    assert [(check.values["method"], check.values["case"]) for check in checks] == asked
    assert len(asked) == 4
    assert all_passed(checks)
    assert len(prove_guards("host", ["fixed"], stopping=lambda: False)) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="the methods are those of POSIX")
def test_a_child_that_only_died_of_something_else_proves_no_guard(monkeypatch):
    monkeypatch.setattr(
        "vmtool.probes.guards.ask",
        lambda *_arguments, **_options: Answer(None, 0, "killed", signal_number=9),
    )
    assert all(check.failed for check in prove_guards("host", ["fixed"]))
