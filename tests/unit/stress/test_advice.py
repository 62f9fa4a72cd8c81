"""Warnings say what is wrong with a result and what to try."""

from dataclasses import replace

import pytest
from stored_runs import gaussian, method, run

from vmtool.machine import read_facts
from vmtool.machine.cgroup_facts import CgroupFacts, CgroupLevel
from vmtool.report.advice_sentences import advice_text
from vmtool.results.stress import Outcome, RunResult
from vmtool.stress.advice import warn
from vmtool.units import MIB

QUIET = gaussian(1, 20_000, 2000, spread=0.02)


def _kinds(result, facts=None):
    found = warn(result, facts or read_facts())
    assert all(all(advice_text(advice)) for advice in found)
    return {advice.kind for advice in found}


def _method(name="fixed", commit=QUIET, touch=QUIET, release=QUIET):
    return method(name, commit=commit, touch=touch, release=release)


def test_a_quiet_run_has_no_warning():
    assert _kinds(run(_method())) == set()


def test_being_slowed_down_by_memory_high_is_reported():
    def facts(hits):
        level = CgroupLevel("/cg/app", 2, high_bytes=150 * MIB, high_hits=hits)
        return replace(read_facts(), cgroup=CgroupFacts((level,)))

    assert _kinds(run(_method()), facts(7)) == set()
    (advice,) = warn(run(_method()), facts(7), facts(47))
    words = "control group /cg/app was above memory.high, 150 MiB: the kernel slowed its tasks down 40 times"
    assert words in advice_text(advice)[0]


def test_few_samples_are_reported():
    assert "few-samples" in _kinds(run(_method(commit=QUIET[:50])))
    assert "few-samples" not in _kinds(run(_method(commit=())))  # a worker died before its report


def test_outliers_that_reach_the_99th_percentile_are_counted():
    result = run(_method(release=[*QUIET, *[10**6] * 39, 2 * 10**6]))
    (advice,) = [a for a in warn(result, read_facts()) if a.kind == "outliers"]
    assert (
        "40 of 2,040 releases took over 10 times the median (up to 2.00 ms)"
        in advice_text(advice)[0]
    )
    assert "outliers" not in _kinds(run(_method(release=[*QUIET, *[10**6] * 10])))


def test_a_machine_that_changes_its_pace_during_the_only_run_is_reported():
    result = run(_method(touch=[*QUIET, *(2 * value for value in QUIET)]))
    assert "drift" in _kinds(result)
    one = RunResult(0, Outcome.COMPLETE, 1, ("fixed",), result.methods)
    assert "drift" not in _kinds(replace(result, runs=(one,) * 5))


def test_a_costly_harness_is_reported():
    assert "overhead" in _kinds(run(_method(commit=[500] * 2000)))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"resident_after_bytes": 99 * MIB}, "resident"),
        ({"checkpoint_share": 0.15}, "checkpoints"),
        ({"settings": {"threads": 2}}, "interpreter-lock"),
    ],
)
def test_what_makes_figures_doubtful_is_reported(fields, kind):
    assert kind in _kinds(run(_method(), **fields))


def test_disabled_huge_pages_are_reported():
    facts = read_facts()
    off = replace(facts, huge_pages=replace(facts.huge_pages, thp_mode="never"))
    assert "huge-pages" in _kinds(run(_method(), settings={"huge": True}), off)


def test_small_granules_in_huge_pages_are_reported():
    facts = read_facts()
    on = replace(facts, huge_pages=replace(facts.huge_pages, thp_mode="madvise", pmd_bytes=2 * MIB))
    assert "huge-granule" in _kinds(run(_method("advise"), settings={"huge": True}), on)


def test_releases_without_a_guard_are_reported():
    assert "degraded" in _kinds(run(replace(_method(), degraded_bytes=4096)))


def test_a_budget_that_was_never_needed_is_reported():
    result = run(_method(), peak_committed_bytes=MIB, budget_reached=False)
    assert "budget-not-reached" in _kinds(result)
    assert "budget-not-reached" not in _kinds(replace(result, budget_reached=True))
