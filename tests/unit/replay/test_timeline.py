"""The timeline stays small, the plot shows it, and what waits stays in the trace."""

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from vmtool.kv.packing.policy import make_policy
from vmtool.kv.traces.request import Request
from vmtool.replay.byte_totals import Account
from vmtool.replay.rules import Plan
from vmtool.replay.run import host_demand, make_store
from vmtool.replay.simulation import Simulation
from vmtool.replay.timeline import MOST_POINTS, Recorder
from vmtool.report.text_chart import plot_lines
from vmtool.results.kv_replay import Point


def point(at, live=1, committed=2, refused=0):
    levels = (live, committed, committed, 1)
    return Point(at, *levels, live, *[committed] * 4, 1, 1, refused)


@given(st.integers(1, 10**7), st.integers(1000, 4000))
def test_a_timeline_of_any_length_keeps_few_points_over_all_of_it(gap, count):
    recorder = Recorder()
    for index in range(count):
        if index * gap >= recorder.due_ns:
            recorder.add(astuple(point(index * gap)))
    points = recorder.points
    assert len(points) < MOST_POINTS
    assert points[0].at_ns == 0
    assert points[-1].at_ns >= count * gap * 9 // 10 - 10**7
    assert [p.at_ns for p in points] == sorted({p.at_ns for p in points})


def test_the_plot_distinguishes_live_and_committed():
    points = [point(0, 0, 8), point(50, 4, 8), point(100, 8, 8)]
    lines = list(plot_lines(points, 100, 40))
    assert len(lines) == 9
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("8 B ░")
    assert lines[7].startswith("0 B ")
    assert lines[0].count("█") < lines[6].count("█")
    assert lines[8].endswith("100 ns")


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60)), min_size=2, max_size=50),
    st.integers(0, 1 << 61),
    st.integers(10, 200),
)
def test_any_timeline_fits_the_terminal(values, budget, width):
    points = [point(i * 7, min(a, b), max(a, b)) for i, (a, b) in enumerate(values)]
    lines = list(plot_lines(points, budget, width))
    assert max(map(len, lines)) <= max(width, 30)
    limited = 2 * budget <= 3 * max(max(pair) for pair in values)
    assert any("---" in line for line in lines) == limited


def test_the_plot_goes_up_to_a_budget_that_is_near_or_refused_something():
    points = [point(0, 0, 8), point(50, 4, 8), point(100, 8, 8)]
    assert "-" not in "".join(plot_lines(points, 13, 40))
    near = list(plot_lines(points, 12, 40))
    assert near[0].startswith("12 B ---")
    assert "░" not in near[1] + near[2]
    assert "░█" in near[4]
    refused = [*points[:2], point(100, 8, 8, refused=3)]
    assert next(iter(plot_lines(refused, 100, 40))).startswith("100 B ---")
    marks = list(plot_lines(refused, 100, 40))[-2]
    assert marks.strip() == "!" * 17
    assert len(marks) == 39


def test_a_peak_between_two_columns_is_seen():
    points = [point(0), point(500, 8, 80), point(10**6)]
    assert next(iter(plot_lines(points, 1000, 40))).startswith("80 B ░")


def plan_of(cost, policy="token-major", budget=1 << 20, **changes):
    made = make_policy(policy, cost, 4096, block=16, stride_tokens=512)
    return Plan(made, budget, 512, step_ns=1000, **changes)


def test_what_waits_behind_the_head_of_the_queue_is_not_read(dense_cost):
    plan = plan_of(dense_cost(), max_sequences=1)
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield Request(0, 10, 10)

    account = Account(plan.budget_bytes, 0, None)
    simulation = Simulation(plan, make_store(plan, account), account)
    assert not simulation.run(endless(), lambda: simulation.recorder.counts.finished == 50)
    assert read < 60


def test_the_demand_covers_what_a_replay_reserves_and_commits(dense_cost):
    cost = dense_cost()
    demand = host_demand(plan_of(cost, max_sequences=3))
    one = plan_of(cost).policy.committed_bytes(512)
    assert (demand.commit_bytes, demand.reserve_bytes, demand.mappings) == (1 << 20, 3 * one, 6)
    paged = host_demand(plan_of(cost, "paged"))
    assert paged.mappings == 2 * (1 << 20) // 4096
    assert paged.reserve_bytes >= 1 << 20
