"""The event-driven replay, compared with one that goes token by token."""

import dataclasses
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_reference import Reference

from vmtool.histograms import summarize_samples
from vmtool.kv.geometry import Extent, Span
from vmtool.kv.packing.policies import POLICIES, make_policy
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.traces.request_formats import Request
from vmtool.replay.account import Account
from vmtool.replay.rules import Plan
from vmtool.replay.simulation import Simulation
from vmtool.replay.timeline_recorder import Recorder
from vmtool.replay.trace_to_result import make_store, run_replay
from vmtool.results.kv_replay import OnRefusal


@settings(max_examples=600)
@given(st.data())
def test_events_give_what_going_token_by_token_gives(replay_plans, replay_traces, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    assert_same(run_replay(trace, plan, None), Reference(plan).run(trace))


@pytest.mark.parametrize("mode", OnRefusal)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_many_steps_at_once_are_those_one_by_one(dense_cost, listed, mode, data):
    # Outputs so long, and granules so small, that steps are taken together.
    cost = dense_cost(1, 1, data.draw(st.integers(8, 40)))
    granule = data.draw(st.sampled_from([64, 256]))
    policy = make_policy("token-major", cost, granule, block=1, stride_tokens=200)
    budget = policy.committed_bytes(200) * data.draw(st.integers(8, 60)) // 10
    plan = Plan(policy, budget, 200, max_sequences=6, step_ns=7, on_refusal=mode)
    gaps = st.sampled_from([0, 5, 40, 900])
    requests = []
    at = 0
    for _ in range(data.draw(st.integers(2, 8))):
        at += data.draw(gaps)
        requests.append(Request(at, data.draw(st.integers(1, 60)), data.draw(st.integers(1, 130))))
    assert_same(run_replay(listed(requests), plan, None), Reference(plan).run(listed(requests)))


@settings(max_examples=200)
@given(st.data())
def test_shortcuts_change_nothing(replay_plans, replay_traces, data):
    plan = dataclasses.replace(data.draw(replay_plans), commit_ahead=0, retain_bytes=0)
    trace = data.draw(replay_traces)
    assert_shortcuts_change_nothing(plan, trace)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_steps_in_turn_are_those_one_after_the_other(dense_cost, listed, name, data):
    # Sequences that grow alike, so many that they take turns, and refused only now and then.
    row = data.draw(st.sampled_from([16, 24, 40 if name in ("paged", "straddle-loses") else 60]))
    window, state = Extent(Span.WINDOW, 9), Extent(Span.FIXED, 3)
    extents = data.draw(st.sampled_from([[], [window], [state], [window, state]]))
    parts = [dense_cost(1, 1, row, extent).layers[0] for extent in (None, *extents)]
    cost = SequenceCost(tuple(parts))
    granule = data.draw(st.sampled_from([80, 256, 400, 1024]))
    block = data.draw(st.integers(1, 2))
    policy = make_policy(name, cost, granule, block=block, stride_tokens=128)
    budget = policy.committed_bytes(128) * data.draw(st.sampled_from([3, 6, 50]))
    mode = data.draw(st.sampled_from(OnRefusal))
    plan = Plan(policy, budget, 128, max_sequences=12, step_ns=7, on_refusal=mode)
    length = st.integers(0, 60)
    request = st.tuples(st.sampled_from([0, 5, 7, 40, 300]), length, length.map(lambda n: n + 1))
    drawn = data.draw(st.lists(request, min_size=3, max_size=40))
    times = accumulate(gap for gap, _, _ in drawn)
    requests = [Request(at, *sizes) for at, (_, *sizes) in zip(times, drawn, strict=True)]
    assert_shortcuts_change_nothing(plan, listed(requests))


def test_a_late_request_is_admitted_before_the_steps_of_that_moment(dense_cost, listed):
    # Two at once: the later ones wait, and come at a moment at which others take blocks in turn.
    policy = make_policy("paged", dense_cost(1, 1, 16), 64, block=1, stride_tokens=128)
    budget = 50 * policy.committed_bytes(128)
    plan = Plan(policy, budget, 128, max_sequences=2, step_ns=7, prefill_ns=(0, 1))
    rows = [(0, 0, 4), (0, 0, 3), (0, 3, 4), (1, 1, 3), (1, 3, 4), (1, 0, 4), (1, 3, 2), (8, 2, 4)]
    assert_shortcuts_change_nothing(plan, listed([Request(*row) for row in rows]))


#: Ranges of which one step commits several granules, another none, and that end in the middle.
UNEQUAL_EXTENTS = [
    *(Extent(), Extent(Span.ALL, ratio=3), Extent(Span.FIXED, 3), Extent(Span.CHUNK, 14)),
    *(Extent(Span.WINDOW, size) for size in (5, 9, 20, 33)),
]
RANGES = sorted(set(POLICIES) - {"paged", "straddle-loses"})


@st.composite
def unequal_plans(draw, name, dense_cost):
    """Rules under which steps commit unequal memory, and are refused only now and then."""
    kinds = st.tuples(
        st.sampled_from([8, 24, 40, 64, 100, 300]),
        st.sampled_from(UNEQUAL_EXTENTS),
        st.integers(1, 2),
    )
    parts = draw(st.lists(kinds, min_size=1, max_size=3))
    layers = [dense_cost(count, 1, row, extent).layers[0] for row, extent, count in parts]
    cost = SequenceCost(tuple(layers), draw(st.sampled_from([0, 2])))
    granule = draw(st.sampled_from([64, 80, 256, 1024]))
    if name == "floor-per-page":
        granule = max(granule, 400)  # one token must fit
    policy = make_policy(name, cost, granule, block=1, stride_tokens=128)
    one = policy.committed_bytes(128)
    return Plan(
        policy,
        one * draw(st.sampled_from([1, 2, 3, 6, 50])) + draw(st.integers(0, one)),
        128,
        max_sequences=draw(st.sampled_from([3, 12, 40])),
        step_ns=draw(st.sampled_from([1, 7])),
        prefill_ns=(draw(st.sampled_from([0, 1, 3])), draw(st.integers(1, 2))),
        on_refusal=draw(st.sampled_from(OnRefusal)),
        prefix_tokens=8,
        prefix_cache=draw(st.booleans()),
    )


@st.composite
def bursts(draw, named):
    """Requests of which many arrive, step and end at one moment."""
    gaps = draw(st.sampled_from([[0, 5, 7, 40, 300], [0, 7, 14, 70], [0, 0, 1]]))
    outputs = st.sampled_from([0, 1, 60]) | st.integers(1, 68)
    prefixes = st.sampled_from([(), (1,), (1, 2)]) if named else st.just(())
    rows = st.tuples(st.sampled_from(gaps), st.integers(0, 60), outputs, prefixes)
    at = 0
    requests = []
    for gap, prompt, output, prefix in draw(st.lists(rows, min_size=2, max_size=40)):
        at += gap
        requests.append(Request(at, prompt, output if prompt else max(output, 1), prefix))
    return requests


@pytest.mark.parametrize("name", RANGES)
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_unequal_steps_in_closed_form_are_those_one_after_the_other(dense_cost, listed, name, data):
    plan = data.draw(unequal_plans(name, dense_cost))
    requests = data.draw(bursts(named=data.draw(st.booleans())))
    assert_shortcuts_change_nothing(plan, listed(requests))


@pytest.mark.parametrize("name", RANGES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_unequal_steps_in_closed_form_are_those_token_by_token(dense_cost, listed, name, data):
    plan = data.draw(unequal_plans(name, dense_cost))
    plan = dataclasses.replace(plan, prefix_cache=False)
    requests = data.draw(bursts(named=False))[:15]
    assert_same(run_replay(listed(requests), plan, None), Reference(plan).run(requests))


def assert_shortcuts_change_nothing(plan, trace):
    found = []
    for shortcuts in (True, False):
        account = Account(plan.budget_bytes, 0, None)
        recorder = Recorder(interval_ns=5, most_points=100)
        simulation = Simulation(
            plan, make_store(plan, account), account, recorder, shortcuts=shortcuts
        )
        simulation.run(trace)
        times = [x.data() for x in (recorder.waits, recorder.first_tokens, recorder.ends)]
        live = (recorder.live_area, recorder.peak_live)
        found.append((account, recorder.counts, recorder.points, times, live, simulation.events))
    assert found[0] == found[1]


#: So short that small traces have several named blocks.
NAME_TOKENS = 8


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_they_agree_on_shared_prefixes(replay_plans, replay_traces, listed, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    name = data.draw(st.sampled_from(["per-tensor", "kv-merged", "token-major"]))
    policy = make_policy(
        name, plan.policy.cost, plan.policy.granule, block=1, stride_tokens=plan.max_tokens
    )
    plan = dataclasses.replace(plan, policy=policy, share=True, prefix_tokens=NAME_TOKENS)
    prefixes = st.lists(st.integers(0, 1), max_size=5).map(tuple)
    named = [r._replace(prefix=data.draw(prefixes)) for r in trace]
    result = run_replay(listed(named), plan, None)
    assert_same(result, Reference(plan, NAME_TOKENS).run(named))


@pytest.mark.parametrize(("most", "interval"), [(6, 1), (100, 1), (100, 40)])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_point_has_the_least_and_most_of_its_interval(
    replay_plans, replay_traces, most, interval, data
):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    result = run_replay(
        trace, plan, None, recorder=Recorder(interval_ns=interval, most_points=most)
    )
    expected = Reference(plan).run(trace)
    points, usage = result.timeline, result.usage
    assert len(points) <= most
    assert points[-1].at_ns == result.duration_ns
    assert max(p.live_max_bytes for p in points) == usage.live.peak_bytes
    assert max(p.committed_max_bytes for p in points) == usage.committed.peak_bytes
    assert max(p.reserved_max_bytes for p in points) == usage.reserved.peak_bytes
    assert max(p.sequences_max for p in points) == result.peak_sequences
    refused = result.requests.refused_admissions + result.requests.refused_steps
    assert sum(p.refused for p in points) == refused
    start = 0
    for point in points:
        assert point.committed_min_bytes <= point.committed_bytes <= point.committed_max_bytes
        assert point.reserved_min_bytes <= point.reserved_bytes <= point.reserved_max_bytes
        assert point.sequences_min <= point.sequences <= point.sequences_max
        assert point.live_bytes <= point.live_max_bytes
        # What lasted in the stretch, and what may have begun at its very end.
        during = [x for x in expected.levels if x[0] < point.at_ns and x[1] > start]
        with_end = during + [x for x in expected.levels if x[0] == point.at_ns]
        if during:
            live, committed, sequences = zip(*(x[2:] for x in during), strict=True)
            lives, committeds, counts = zip(*(x[2:] for x in with_end), strict=True)
            assert max(live) <= point.live_max_bytes <= max(lives)
            assert point.committed_max_bytes >= max(committed)
            assert point.sequences_max >= max(sequences)
            if point is not points[-1]:  # it may have the end, when everything is released
                assert min(committeds) <= point.committed_min_bytes <= min(committed)
                assert min(counts) <= point.sequences_min <= min(sequences)
        assert point.at_ns > start or point in (points[0], points[-1])
        start = point.at_ns


@settings(max_examples=150)
@given(st.data())
def test_the_smallest_budget_that_refuses_nothing_is_found(replay_plans, replay_traces, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    enough = run_replay(trace, plan, None, find_budget=True).enough_budget_bytes

    def refused(budget):
        result = run_replay(trace, dataclasses.replace(plan, budget_bytes=budget), None)
        count = result.requests
        some = count.refused_admissions + count.refused_steps + count.refused_ahead
        assert result.enough_budget_bytes == (None if some else enough)
        return some

    assert not refused(max(enough, 1))
    assert not enough or refused(enough - 1)


def test_an_interval_without_requests_has_nothing_committed(listed, dense_cost):
    policy = make_policy("per-tensor", dense_cost(), 4096, block=1, stride_tokens=512)
    plan = Plan(policy, 1 << 20, 512, step_ns=10**6, prefill_ns=(0, 1))
    requests = [Request(0, 100, 10), Request(10**12, 100, 10)]
    points = run_replay(listed(requests), plan, None).timeline
    quiet = [p for p, before in zip(points[1:], points, strict=False) if p.at_ns == 10**12]
    assert [p.committed_max_bytes for p in quiet] == [0]
    assert max(p.at_ns for p in points if p.at_ns < 10**12) == 10**7


def assert_same(result, expected):
    requests, done, usage = result.requests, result.operations, result.usage
    for name, value in expected.n.items():
        found = getattr(requests if hasattr(requests, name) else done, name)
        # What is still there at the end is released by both, but only counted by one.
        assert found == value, name
    assert result.duration_ns == expected.now
    duration = expected.now or 1
    assert usage.live.mean_bytes == expected.areas["live"] // duration
    assert usage.committed.mean_bytes == expected.areas["committed"] // duration
    assert usage.pooled.mean_bytes == expected.areas["pooled"] // duration
    if expected.own_ranges_only:  # pools and shared prefixes have address space besides
        assert usage.reserved.mean_bytes == expected.areas["reserved"] // duration
    assert usage.live.peak_bytes == expected.peaks["live"]
    assert usage.committed.peak_bytes == expected.peaks["committed"]
    assert usage.charged.peak_bytes == expected.peaks["charged"]
    assert usage.peak_at_ns == expected.peak_at
    assert result.peak_sequences == expected.peaks["sequences"]
    assert result.waiting.samples == len(expected.waits)
    assert result.waiting.max_ns == max(expected.waits, default=None)
    assert result.first_token == summarize_samples(expected.firsts)
    assert result.end_to_end == summarize_samples(expected.ends)


def test_what_waits_behind_the_head_of_the_queue_is_not_read(dense_cost):
    policy = make_policy("token-major", dense_cost(), 4096, block=16, stride_tokens=512)
    plan = Plan(policy, 1 << 20, 512, max_sequences=1, step_ns=1000)
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
