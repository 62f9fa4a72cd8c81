"""What the report of ``vmtool stress`` says of a run that did not end well."""

from dataclasses import replace
from functools import partial

import pytest
from printed import printed
from stored_runs import method, run

from vmtool.report.stress import to_text
from vmtool.results.stress import Outcome


def test_a_run_that_failed_in_its_first_round_gives_no_rate_of_it():
    """Its cycles are counted, its time is not."""
    untimed = replace(method("cold", commit=[1000] * 19), wall_ns=0)
    lines = printed(partial(to_text, run(untimed)))
    (line,) = (line for line in lines if line.startswith("cold: "))
    assert line.endswith("19 cycles")


@pytest.mark.parametrize(
    ("outcome", "words"), [(Outcome.CRASHED, "died"), (Outcome.HUNG, "made no progress")], ids=str
)
def test_a_worker_that_ended_before_its_first_report_leaves_no_empty_rows(outcome, words):
    nothing = run(method(commit=(), touch=(), release=()))
    result = replace(nothing, outcome=outcome, peak_committed_bytes=None)
    first, *others = printed(partial(to_text, result), 120)
    assert first.startswith(f"a worker {words} before its first report")
    assert not any("0 cycles in" in line for line in others)
    assert any("unknown how much was committed at once" in line for line in others)
