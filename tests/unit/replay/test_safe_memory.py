"""What a replay needs of the host."""

from vmtool.kv.packing.policies import make_policy
from vmtool.replay.rules import Plan
from vmtool.replay.safe_memory import host_demand


def plan_of(cost, policy="token-major", budget=1 << 20, **changes):
    made = make_policy(policy, cost, 4096, block=16, stride_tokens=512)
    return Plan(made, budget, 512, step_ns=1000, **changes)


def test_the_demand_covers_what_a_replay_reserves_and_commits(dense_cost):
    cost = dense_cost()
    demand = host_demand(plan_of(cost, max_sequences=3))
    one = plan_of(cost).policy.committed_bytes(512)
    assert (demand.commit_bytes, demand.reserve_bytes, demand.mappings) == (1 << 20, 3 * one, 6)
    paged = host_demand(plan_of(cost, "paged"))
    assert paged.mappings == 2 * (1 << 20) // 4096
    assert paged.reserve_bytes >= 1 << 20
