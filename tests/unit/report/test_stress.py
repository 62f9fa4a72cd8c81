"""What the report of ``vmtool stress`` says of a run that did not end well."""

from dataclasses import replace
from functools import partial

from printed import printed
from stored_runs import method, run

from vmtool.report.stress import to_text


def test_a_run_that_failed_in_its_first_round_gives_no_rate_of_it():
    """Its cycles are counted, its time is not."""
    untimed = replace(method("cold", commit=[1000] * 19), wall_ns=0)
    lines = printed(partial(to_text, run(untimed)))
    (line,) = (line for line in lines if line.startswith("cold: "))
    assert line.endswith("19 cycles")
