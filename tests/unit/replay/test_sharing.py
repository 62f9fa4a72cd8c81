"""Shared prefixes: whole granules or blocks only, each committed once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.kv.packing.policies import make_policy
from vmtool.kv.traces.request_formats import Request
from vmtool.replay.rules import Plan
from vmtool.replay.trace_to_result import run_replay
from vmtool.results.kv_replay import OnRefusal

RANGED = ("per-tensor", "kv-merged", "token-major")


def plan_of(cost, policy, granule, *, share=True, budget=1 << 40):
    made = make_policy(policy, cost, granule, block=16, stride_tokens=8192)
    return Plan(made, budget, 8192, step_ns=1000, prefill_ns=(1, 1), share=share)


def at_once(*prefixes, prompt=1536):
    return [Request(0, prompt, 5, prefix) for prefix in prefixes]


def distinct_granules(policy, requests, tokens):
    """Return what is committed at *tokens* if every granule inside a common prefix exists once.

    A granule is known by what it holds: its place, and the names of the blocks up to its end if
    those cover it, else its sequence.
    """
    seen = set()
    total = 0
    for number, request in enumerate(requests):
        for index, item in enumerate(policy.ranges):
            nbytes = item.bytes_held(tokens(request), 0)
            for at in range(-(-nbytes // policy.granule)):
                end = (at + 1) * policy.granule
                blocks = -(-end // (512 * item.token_bytes))
                named = blocks <= min(len(request.prefix), request.prompt_tokens // 512)
                key = request.prefix[:blocks] if named else ("own", number)
                if (index, at, key) not in seen:
                    seen.add((index, at, key))
                    total += item.copies * policy.granule
    return total


@pytest.mark.parametrize("policy", RANGED)
@given(data=st.data())
def test_each_distinct_granule_is_committed_once(dense_cost, policy, data):
    granule = data.draw(st.sampled_from([4096, 10_000, 65536]))
    cost = dense_cost(data.draw(st.integers(1, 2)), 1, data.draw(st.integers(8, 70)))
    prefixes = data.draw(
        st.lists(st.lists(st.integers(0, 1), max_size=4).map(tuple), min_size=1, max_size=6)
    )
    requests = [
        Request(0, data.draw(st.integers(1, 2300)), 0 + data.draw(st.integers(0, 3)), prefix)
        for prefix in prefixes
    ]
    plan = plan_of(cost, policy, granule)
    result = run_replay(listed(requests), plan, None)
    admitted = distinct_granules(plan.policy, requests, lambda r: r.prompt_tokens)
    # Nothing has grown when all are admitted, and growth adds only granules of one's own.
    grown = distinct_granules(plan.policy, requests, lambda r: r.total_tokens)
    assert admitted <= result.usage.committed.peak_bytes <= grown
    alone = sum(plan.policy.committed_bytes(r.prompt_tokens) for r in requests)
    assert result.usage.saved.peak_bytes >= alone - admitted
    if all(r.output_tokens == 0 for r in requests):
        assert result.usage.committed.peak_bytes == admitted
        assert result.usage.saved.peak_bytes == alone - admitted


class listed(list):  # noqa: N801 - a trace that is a list
    name = format = "test"

    class reading:  # noqa: N801
        requests = lines = late = bad = 0
        bad_lines = ()


def test_paged_shares_whole_blocks(dense_cost):
    cost = dense_cost(1, 1, 64)
    plan = plan_of(cost, "paged", 4096)
    shared = run_replay(listed(at_once((1, 2, 3), (1, 2, 9), (1, 2, 3))), plan, None)
    block = 16 * 2 * 64
    per_name = 512 // 16 * block
    assert shared.usage.saved.peak_bytes == (2 + 3) * per_name
    assert shared.operations.not_committed_bytes == (2 + 3) * per_name


def test_an_unused_prefix_is_released(dense_cost):
    plan = plan_of(dense_cost(1, 1, 64), "token-major", 4096)
    apart = [Request(0, 1024, 1, (1, 2)), Request(10**9, 1024, 1, (1, 2))]
    result = run_replay(listed(apart), plan, None)
    assert result.usage.saved.peak_bytes == 0


def test_without_sharing_nothing_is_saved(dense_cost):
    plan = plan_of(dense_cost(1, 1, 64), "token-major", 4096, share=False)
    result = run_replay(listed(at_once((1, 2, 3), (1, 2, 3))), plan, None)
    assert result.usage.saved.peak_bytes == result.operations.not_committed_bytes == 0


def test_the_block_that_the_prompt_does_not_fill_is_not_shared(dense_cost):
    plan = plan_of(dense_cost(1, 1, 64), "token-major", 4096)
    result = run_replay(listed(at_once((1, 2), (1, 2), prompt=1000)), plan, None)
    assert result.usage.saved.peak_bytes == 512 * 128


def test_equal_names_after_unequal_ones_are_not_shared(dense_cost):
    plan = plan_of(dense_cost(1, 1, 64), "token-major", 4096)
    result = run_replay(listed(at_once((1, 7, 7), (2, 7, 7))), plan, None)
    assert result.usage.saved.peak_bytes == 0


@pytest.mark.parametrize("policy", ["per-tensor", "head-major", "floor-per-page", "paged"])
@pytest.mark.parametrize("mode", OnRefusal)
def test_totals_agree_with_shared_prefixes_under_a_tight_budget(dense_cost, policy, mode):
    cost = dense_cost(2, 2, 50)
    plan = plan_of(cost, policy, 8192)
    one = plan.policy.committed_bytes(2100)
    requests = [
        Request(i * 300, 1100 + 37 * (i % 9), 40 + i % 70, (i % 2, i % 3, 5)) for i in range(120)
    ]
    tight = Plan(
        plan.policy,
        one * 5 // 2,
        8192,
        max_sequences=8,
        step_ns=1000,
        prefill_ns=(1, 2),
        on_refusal=mode,
        retain_bytes=one,
    )
    result = run_replay(listed(requests), tight, None)
    ended = result.requests
    assert result.usage.saved.peak_bytes > 0
    assert ended.finished + ended.rejected + ended.cut + ended.too_large == 120
    assert result.usage.live.peak_bytes <= result.usage.committed.peak_bytes <= one * 5 // 2
