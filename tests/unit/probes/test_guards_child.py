"""Proofs of the guards that end early."""

import sys

import pytest

from vmtool.probes.child import Answer
from vmtool.probes.guards.children import prove_guards


@pytest.mark.skipif(sys.platform == "win32", reason="the methods are those of POSIX")
def test_interrupted_proofs_are_those_that_were_made(monkeypatch):
    asked = []

    def ask(case, _backing, method, *, stopping):
        if stopping():
            return None
        asked.append((method, case))
        return Answer(None, 0, signal_number=11) if case != "committed" else Answer(True, 1)

    monkeypatch.setattr("vmtool.probes.guards.children.ask", ask)
    report = prove_guards("host", ["fixed", "protect"], stopping=lambda: len(asked) == 4)
    assert [(proof.method, proof.case) for proof in report.proofs] == asked
    assert len(asked) == 4
    assert report.passed
    assert not report.complete
    assert prove_guards("host", ["fixed"], stopping=lambda: False).complete
