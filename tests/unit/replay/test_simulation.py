"""The event-driven replay against one that goes token by token and works everything out anew."""

from hypothesis import given, settings
from hypothesis import strategies as st
from replay_reference import Reference

from vmtool.replay.run import run_replay


@settings(max_examples=600)
@given(st.data())
def test_events_give_what_going_token_by_token_gives(replay_plans, replay_traces, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    result = run_replay(trace, plan, None)
    expected = Reference(plan).run(trace)
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
    if not expected.pools:
        assert usage.reserved.mean_bytes == expected.areas["reserved"] // duration
    assert usage.live.peak_bytes == expected.peaks["live"]
    assert usage.committed.peak_bytes == expected.peaks["committed"]
    assert usage.charged.peak_bytes == expected.peaks["charged"]
    assert result.peak_sequences == expected.peaks["sequences"]
    assert result.waiting.samples == len(expected.waits)
    assert result.waiting.max_ns == max(expected.waits, default=None)
