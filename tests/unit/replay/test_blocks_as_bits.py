"""Blocks as bits of integers, compared with a byte for each block."""

import dataclasses
from math import lcm

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from vmtool.kv.packing.policies import make_policy
from vmtool.kv.packing.shapes_and_block_classes import BlockClass, BlockPool, EntryCount
from vmtool.replay import blocks_as_bits
from vmtool.replay.account import Account
from vmtool.replay.blocks_as_bits import BlockMasks
from vmtool.replay.blocks_as_bytes import BlockFlags
from vmtool.replay.simulation import Simulation
from vmtool.replay.timeline_recorder import Recorder
from vmtool.replay.trace_to_result import make_store

GRANULE = 96


@st.composite
def blocks_both_ways(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 8, 16, 32, 48, 96]), min_size=1, max_size=3))
    pools = [BlockPool(draw(st.integers(1, 2)), size, drops_straddling=False) for size in sizes]
    kind = BlockClass(tuple(pools), EntryCount(), 1)
    section = lcm(*[GRANULE // size for size in sizes]) * draw(st.integers(1, 40))
    both = BlockMasks(kind, GRANULE, section), BlockFlags(kind, GRANULE, lambda size, n: 0)
    assert len({each.place(GRANULE, 5000) for each in both}) == 1
    return both


def same(both, found):
    """Return what both found; their spans are the same too."""
    first, second = found
    assert first[:2] == second[:2]
    assert [*both[0].spans(first[2])] == [*both[1].spans(second[2])]
    return first


@settings(max_examples=150)
@given(blocks_both_ways(), st.data())
def test_they_commit_and_release_what_bytes_say(both, data):
    held, committed = [], 0
    count = st.one_of(st.integers(1, 9), st.integers(1, 200))
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["use", "add", "each", "each", "release", "release"]))
        if what == "use":
            counts = data.draw(st.lists(count, min_size=1, max_size=3))
            lows = [each.low for each in both]
            taken = [each.take(sum(counts)) for each in both]
            found = [e.use(low, blocks) for e, low, blocks in zip(both, lows, taken, strict=True)]
            granules, _, _ = same(both, found)
            if data.draw(st.integers(0, 3)):
                parts = [e.split(blocks, counts) for e, blocks in zip(both, taken, strict=True)]
                held += zip(*parts, strict=True)
                committed += granules
            else:
                for each, blocks, (_, _, new) in zip(both, taken, found, strict=True):
                    each.undo(new)
                    each.give(blocks)
        elif what == "add":
            if not held or data.draw(st.booleans()):
                held.append(tuple(each.take(0) for each in both))
            mine = data.draw(st.sampled_from(held))
            more, most = data.draw(count), data.draw(st.integers(0, 30))
            added = [e.add(part, more, most) for e, part in zip(both, mine, strict=True)]
            assert added[0] == added[1]
            committed += added[0][0] if added[0] else 0
        elif what == "each":
            numbers = data.draw(st.lists(st.integers(0, 99), max_size=40)) if held else []
            takers = [held[number % len(held)] for number in numbers]
            found = [[*e.take_each([t[at] for t in takers])] for at, e in enumerate(both)]
            assert found[0] == found[1]
            committed += sum(granules for _, granules, _ in found[0])
        elif held:
            mine = held.pop(data.draw(st.integers(0, len(held) - 1)))
            if held and data.draw(st.booleans()):  # with what another had
                for each, part, more in zip(both, mine, held.pop(), strict=True):
                    each.join(part, more)
            committed -= same(both, [e.release(p) for e, p in zip(both, mine, strict=True)])[0]
        assert committed >= 0
        assert both[0].all_free is both[1].all_free
    for mine in held:
        committed -= same(both, [e.release(part) for e, part in zip(both, mine, strict=True)])[0]
    assert committed == 0
    assert both[0].all_free


def test_blocks_that_cross_an_edge_are_kept_as_bytes():
    def pools(*sizes):
        return BlockClass(
            tuple(BlockPool(1, n, drops_straddling=False) for n in sizes), EntryCount(), 1
        )

    assert BlockMasks.of(pools(32, 48), GRANULE)
    assert BlockMasks.of(pools(32, 36), GRANULE) is None
    assert BlockMasks.of(pools(2 * GRANULE), GRANULE) is None
    assert BlockMasks.of(pools(1), 1 << 20) is None  # a section would have a million blocks


class ListedCalls:
    """Memory that lists what is done to it."""

    def __init__(self):
        self.done = []

    def __getattr__(self, name):
        return lambda *args: self.done.append((name, args))


@pytest.mark.parametrize("policy", ["paged", "straddle-loses"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_replay_with_bits_is_that_with_bytes(
    replay_plans, replay_traces, replay_costs, listed, policy, data
):
    plan, trace = data.draw(replay_plans), data.draw(replay_traces)
    cost = data.draw(replay_costs)
    sizes = [tensor.bytes_per_token for _, tensor in cost.tensors()]
    sizes += [state.nbytes for layer in cost.layers for state in layer.states]
    assume(lcm(*sizes) < 1 << 12)
    granule = lcm(*sizes) * data.draw(st.integers(3, 40))  # where blocks often fill it
    block = data.draw(st.integers(1, 3))
    packed = make_policy(policy, cost, granule, block=block, stride_tokens=plan.max_tokens)
    budget = packed.committed_bytes(plan.max_tokens) * data.draw(st.integers(3, 60)) // 10
    rules = {"prefix_tokens": 8, "prefix_cache": plan.share and data.draw(st.booleans())}
    plan = dataclasses.replace(plan, policy=packed, budget_bytes=max(budget, 1), **rules)
    prefixes = st.lists(st.integers(0, 1), max_size=5).map(tuple)
    requests = listed([request._replace(prefix=data.draw(prefixes)) for request in trace])
    section = data.draw(st.sampled_from([1, 8, 1024]))

    def replayed(memory):
        account = Account(plan.budget_bytes, plan.retain_bytes, memory)
        recorder = Recorder(interval_ns=5, most_points=100)
        simulation = Simulation(plan, make_store(plan, account), account, recorder)
        simulation.run(requests)
        account.memory = None
        return account, recorder.counts, recorder.points, recorder.live_area

    for real in (False, True):
        memories = [ListedCalls() if real else None for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks_as_bits, "SECTION_BLOCKS", section)
            with_bits = replayed(memories[0])
            patch.setattr(BlockMasks, "of", lambda kind, granule: None)
            assert replayed(memories[1]) == with_bits
        assert not real or memories[0].done == memories[1].done
