"""Unused prefixes are kept while there is room, and those unused for longest are evicted first."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vmtool.kv.packing.policies import make_policy
from vmtool.kv.traces.request_formats import Request
from vmtool.memory.backing_by_name import open_backing
from vmtool.replay.real_memory import open_memory
from vmtool.replay.rules import Plan
from vmtool.replay.trace_to_result import run_replay
from vmtool.results.kv_replay import OnRefusal

#: So short that small traces have several named blocks.
NAME_TOKENS = 8
RANGES = ["per-tensor", "kv-merged", "token-major"]
POOLS = ["paged", "straddle-loses"]
ANY = {"max_examples": 150, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def keeping(plan, name, **changes):
    """Return *plan* under the policy *name*, with prefixes kept."""
    policy = make_policy(
        name, plan.policy.cost, plan.policy.granule, block=2, stride_tokens=plan.max_tokens
    )
    return dataclasses.replace(
        plan, policy=policy, share=True, prefix_cache=True, prefix_tokens=NAME_TOKENS, **changes
    )


def draw_named(data, trace, names):
    return [r._replace(prefix=data.draw(names)) for r in trace]


@settings(**ANY)
@given(st.data())
def test_prefixes_that_are_never_used_again_change_no_decision(
    replay_plans, replay_traces, listed, data
):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    # Who is preempted would find its own prefix again.
    plan = keeping(plan, data.draw(st.sampled_from(RANGES)), on_refusal=OnRefusal.REJECT)
    own = [r._replace(prefix=tuple(range(100 * at, 100 * at + 5))) for at, r in enumerate(trace)]
    kept = run_replay(listed(own), plan, None)
    released = run_replay(listed(own), dataclasses.replace(plan, prefix_cache=False), None)
    for name in ("requests", "duration_ns", "peak_sequences", "first_token", "end_to_end"):
        assert getattr(kept, name) == getattr(released, name)
    assert kept.usage.live == released.usage.live
    assert kept.usage.committed.mean_bytes >= released.usage.committed.mean_bytes
    assert kept.usage.committed.peak_bytes <= plan.budget_bytes
    assert kept.prefix_cache.saved_tokens == kept.prefix_cache.reused_bytes == 0


@settings(**ANY)
@given(st.data())
def test_without_a_limit_all_that_was_there_once_is_hit(replay_plans, replay_traces, listed, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    if any(t.bytes_per_token * 8 > plan.policy.granule for _, t in plan.policy.cost.tensors()):
        return  # straddle-loses refuses such blocks
    plan = keeping(plan, data.draw(st.sampled_from(RANGES + POOLS)), budget_bytes=1 << 40)
    named = draw_named(data, trace, st.lists(st.integers(0, 1), max_size=5).map(tuple))
    result = run_replay(listed(named), plan, None)
    seen, saved, prompts = set(), 0, 0
    for request in named:
        if request.total_tokens > plan.max_tokens:
            continue
        blocks = request.prefix[: request.prompt_tokens // NAME_TOKENS]
        paths = [blocks[: n + 1] for n in range(len(blocks))]
        hits = NAME_TOKENS * sum(path in seen for path in paths)
        saved += min(hits, max(request.prompt_tokens - 1, 0))
        prompts += request.prompt_tokens
        seen |= set(paths)
    cache = result.prefix_cache
    assert cache.saved_tokens == saved
    assert result.requests.prompt_tokens == prompts - saved
    assert cache.hit_rate == (saved / prompts if prompts else 0)
    assert cache.kept.peak_bytes == cache.evicted_bytes  # all of it, and at the end
    assert result.enough_budget_bytes is None


@settings(**ANY)
@given(st.data())
def test_the_books_are_right_under_any_rules(replay_plans, replay_traces, listed, data):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    if any(t.bytes_per_token * 8 > plan.policy.granule for _, t in plan.policy.cost.tensors()):
        return
    plan = keeping(plan, data.draw(st.sampled_from(RANGES + POOLS)))
    named = draw_named(data, trace, st.lists(st.integers(0, 1), max_size=5).map(tuple))
    result = run_replay(listed(named), plan, None)  # it checks its ledger at every moment
    usage, count = result.usage, result.requests
    assert usage.committed.peak_bytes <= plan.budget_bytes
    assert 0 <= usage.fragmentation <= usage.waste <= 1
    ended = (count.finished, count.too_long, count.too_large, count.rejected, count.cut)
    assert sum(ended) == count.arrived
    assert result.operations.commit_bytes == result.operations.release_bytes


def test_the_longest_unused_prefix_makes_room(dense_cost, listed):
    # A block has 2 layers x K and V x 8 tokens x 2 x 16 B: a granule of 256 B in each of 4 ranges.
    cost = dense_cost()
    block = 4 * 256
    # Two prefixes of two blocks fit beside what a sequence has besides: one granule a range.
    budget = 2 * 2 * block + block
    policy = make_policy("per-tensor", cost, 256, block=1, stride_tokens=64)
    plan = Plan(
        policy,
        budget,
        64,
        step_ns=1,
        prefill_ns=(1, 1),
        prefix_cache=True,
        prefix_tokens=NAME_TOKENS,
    )
    requests = [Request(10**6 * at, 17, 1, (ord(name), 0)) for at, name in enumerate("ABACAB")]
    result = run_replay(listed(requests), plan, None)
    cache = result.prefix_cache
    # A is hit twice. C takes the place of B, and B that of C.
    assert cache.saved_tokens == 2 * 2 * NAME_TOKENS
    assert cache.reused_bytes == 2 * 2 * block
    assert cache.evicted_bytes == (2 + 2 + 2 * 2) * block  # the last two at the end
    assert cache.kept.peak_bytes == 2 * 2 * block
    # 17 tokens take 17 ns, and 1 ns where 16 are there.
    assert result.first_token.min_ns == 1 + 1
    assert result.first_token.max_ns == 17 + 1
    assert result.usage.waste < 0.2  # what is kept is not wasted


@pytest.mark.parametrize("policy", ["per-tensor", "paged"])
def test_real_memory_keeps_the_same(dense_cost, listed, policy):
    granule = 64 << 10
    cost = dense_cost(2, 2, 4096)
    made = make_policy(policy, cost, granule, block=8, stride_tokens=64)
    plan = Plan(made, 40 * granule, 64, step_ns=10**6, prefix_cache=True, prefix_tokens=NAME_TOKENS)
    requests = [Request(10**7 * at, 20, 9, (at * at % 7, at % 2)) for at in range(40)]
    simulated = run_replay(listed(requests), plan, None)
    with open_memory(open_backing(), granule, plan.budget_bytes) as memory:
        real = run_replay(listed(requests), plan, None, memory=memory)
    assert dataclasses.replace(real, real=None) == simulated
    assert simulated.prefix_cache.reused_bytes > 0
    assert simulated.prefix_cache.evicted_bytes > simulated.prefix_cache.kept.peak_bytes
