"""The headline of a comparison, and its caveats."""

from dataclasses import replace

from printed import printed
from stored_runs import gaussian, method, run, run_set, several

from vmtool.compare.changes import compare
from vmtool.report.compare import headline, other_rows, to_text
from vmtool.results.compare import Direction, Doubt


def tail_slower(count, *, seed, tail_ns):
    """Runs whose cycles are alike, with the 99th percentile of the releases at *tail_ns*."""
    return run_set(
        *[
            run(
                method(
                    commit=gaussian(seed + i, 50_000, 200, spread=0.01),
                    touch=gaussian(seed + i, 400_000, 200, spread=0.01),
                    release=[90_000] * 195 + [tail_ns + i] * 5,
                )
            )
            for i in range(count)
        ]
    )


def test_the_headline_is_about_the_cycle_and_other_rows_are_details():
    result = compare(
        tail_slower(5, seed=1, tail_ns=100_000), tail_slower(5, seed=6, tail_ns=200_000)
    )
    directions = {(each.phase, each.statistic): each.direction for each in result.changes}
    assert directions["release", "p99"] is Direction.SLOWER
    assert headline(result) == "the whole cycle is unchanged within 5 %; 5 runs against 5"
    assert list(other_rows(result)) == [
        "other rows that differ: release p99 of fixed +100.0 % (slower)"
    ]
    slower = compare(several(5), several(5, seed=2, factor=1.5))
    assert headline(slower).startswith("slower: the whole cycle of fixed +")
    assert list(other_rows(slower)) == []


def test_settings_that_differ_are_in_the_headline():
    result = compare(several(5), several(5, settings={"granule_bytes": 2 << 20}))
    assert headline(result).endswith("; settings differ (granule: 64 KiB and 2 MiB)")


def test_a_change_that_may_come_from_the_order_is_in_doubt_in_the_first_line():
    busy = {"conditions": replace(run(method()).conditions, idle_share=0.02)}
    sides = several(5, **busy), several(5, seed=2, factor=1.5, **busy)
    result = replace(compare(*sides), doubts=(Doubt.BUSY,))
    assert headline(result).startswith("uncertain: slower: the whole cycle of fixed +")
    text = " ".join("\n".join(printed(lambda console: to_text(result, console))).split())
    assert text.count("measured one after the other on a busy machine (2 % idle): rows") == 1
    assert text.count("one after the other") == 1
    same = replace(compare(sides[0], sides[0]), doubts=(Doubt.BUSY,))
    assert "uncertain" not in headline(same)


def test_the_headline_is_about_the_methods_that_have_enough_runs():
    def side(value):
        both = run(method("fixed", commit=[value] * 50), method("advise", commit=[value] * 50))
        return run_set(*[both] * 3, *[run(method("fixed", commit=[value] * 50))] * 2)

    assert headline(compare(side(100), side(200))).startswith(
        "slower: commit median of fixed +100.0 %; 5 runs against 5"
    )


def test_the_headline_says_how_many_runs_a_confidence_needs():
    sides = several(5), several(5, seed=2, factor=3)
    assert headline(compare(*sides, confidence=0.999)) == (
        "not proven: 5 runs against 5; a verdict needs 7 runs per side (`vmtool stress --runs 7`)"
    )
