"""The event-driven replay against one that goes token by token and works everything out anew."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_reference import Reference

from vmtool.kv.policies import make_policy
from vmtool.replay.run import run_replay


@settings(max_examples=600)
@given(st.data())
def test_events_give_what_going_token_by_token_gives(replay_plans, replay_traces, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    assert_same(run_replay(trace, plan, None), Reference(plan).run(trace))


@pytest.fixture
def short_names(monkeypatch):
    """Make a named block of a prefix so short that small traces have several."""
    monkeypatch.setattr("vmtool.replay.ranges.PREFIX_TOKENS", 8)
    return 8


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_they_agree_on_shared_prefixes(replay_plans, replay_traces, listed, short_names, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    name = data.draw(st.sampled_from(["per-tensor", "kv-merged", "token-major"]))
    policy = make_policy(
        name, plan.policy.cost, plan.policy.granule, block=1, stride_tokens=plan.max_tokens
    )
    plan = dataclasses.replace(plan, policy=policy, share=True)
    prefixes = st.lists(st.integers(0, 1), max_size=5).map(tuple)
    named = [dataclasses.replace(r, prefix=data.draw(prefixes)) for r in trace]
    result = run_replay(listed(named), plan, None)
    assert_same(result, Reference(plan, short_names).run(named))


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
    assert result.peak_sequences == expected.peaks["sequences"]
    assert result.waiting.samples == len(expected.waits)
    assert result.waiting.max_ns == max(expected.waits, default=None)
