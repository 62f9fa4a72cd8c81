"""A replay on real memory: the same bytes as simulated, checked, and nothing left afterwards."""

import dataclasses
import gc
import json
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vmtool.errors import CheckFailedError, UnavailableError, UsageError
from vmtool.kv.packing.policies import POLICIES, make_policy
from vmtool.kv.traces.request_formats import Request
from vmtool.kv.traces.trace import Trace
from vmtool.memory.backing_by_name import open_backing
from vmtool.memory.counters import read_range
from vmtool.memory.cuda.backing import CudaBacking
from vmtool.replay.real_memory import open_memory
from vmtool.replay.rules import Plan
from vmtool.replay.trace_to_result import run_replay
from vmtool.results.kv_replay import OnRefusal

GRANULE = 64 << 10


def without_real(result):
    return dataclasses.replace(result, real=None)


def plan_of(cost, policy, *, granule=GRANULE, budget=60 * GRANULE, **changes):
    made = make_policy(policy, cost, granule, block=16, stride_tokens=4096)
    return Plan(made, budget, 4096, step_ns=10**6, prefill_ns=(10**9, 8000), **changes)


def trace(seed=0, **more):
    return Trace(
        "synthetic:requests=60,rate=50,prompt=600,output=60,longest=2000,prefixes=3", seed=seed
    )


def counts_of(real):
    """How often each operation was timed."""
    return {timing.operation: timing.summary.samples for timing in real.timings}


def replay_on(backing, plan, requests, **changes):
    with open_memory(backing, plan.policy.granule, plan.budget_bytes, plan.retain_bytes) as memory:
        result = run_replay(requests, plan, None, memory=memory, **changes)
        memory.check(0, 0)  # nothing is left
    counts = counts_of(result.real)
    assert counts.get("reserve") == counts.get("unreserve")
    return result


@pytest.fixture
def reserved(monkeypatch):
    """Every reservation that the host's or a device's backing makes from here on."""
    found = []

    def watch(kind):
        reserve = kind.reserve

        def reserve_and_note(backing, nbytes):
            found.append(reserve(backing, nbytes))
            return found[-1]

        monkeypatch.setattr(kind, "reserve", reserve_and_note)

    watch(type(open_backing()))
    watch(CudaBacking)
    return found


@pytest.mark.parametrize("mode", OnRefusal)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_byte_count_is_as_simulated(dense_cost, policy, mode):
    plan = plan_of(dense_cost(2, 2, 128), policy, on_refusal=mode, commit_ahead=8)
    simulated = run_replay(trace(), plan, None)
    real = replay_on(open_backing(), plan, trace())
    assert without_real(real) == simulated
    assert real.real.ledger_peak_bytes == simulated.usage.committed.peak_bytes
    counts = counts_of(real.real)
    assert counts["commit"] == simulated.operations.commits
    assert counts["touch"] == simulated.operations.commits
    assert counts["release"] == simulated.operations.releases
    assert simulated.requests.refused_admissions > 0  # the budget was met


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_rules_and_traces_agree(replay_plans, replay_traces, data):
    # The same rules with a granule that the host has.
    backing = open_backing()
    plan, requests = data.draw(replay_plans), data.draw(replay_traces)
    policy = plan.policy
    granule = backing.granularity
    cost = policy.cost
    if any(tensor.bytes_per_token * 4 > granule for _, tensor in cost.tensors()):
        return
    made = make_policy(policy.name, cost, granule, block=2, stride_tokens=plan.max_tokens)
    budget = made.committed_bytes(plan.max_tokens) * 3
    plan = dataclasses.replace(plan, policy=made, budget_bytes=budget, retain_bytes=0)
    assert without_real(replay_on(backing, plan, requests)) == run_replay(requests, plan, None)


def test_a_step_stalls_unless_memory_is_committed_early_enough(dense_cost):
    cost = dense_cost(1, 1, 2048)
    late = replay_on(open_backing(), plan_of(cost, "token-major"), trace())
    assert late.real.stalled_steps == late.real.stepping_commits > 0
    # A step of a second and an hour ahead: no commit takes so long.
    early = dataclasses.replace(
        plan_of(cost, "token-major", commit_ahead=16, budget=4000 * GRANULE), step_ns=10**9
    )
    found = replay_on(open_backing(), early, trace())
    assert found.real.stepping_commits > 0
    assert found.real.stalled_steps == found.real.stall_ns == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident by range")
@pytest.mark.parametrize("touch", [True, False])
def test_only_what_is_touched_is_resident(reserved, touch):
    with open_memory(open_backing(), GRANULE, 10 * GRANULE, touch=touch) as memory:
        memory.reserve(1, 100 * GRANULE, "sequences")
        memory.commit(1, [(GRANULE, 2 * GRANULE), (50 * GRANULE, GRANULE)], None)
        resident = read_range(reserved[0].base, 100 * GRANULE).resident_bytes
        memory.release(1, [(GRANULE, 2 * GRANULE), (50 * GRANULE, GRANULE)])
        memory.unreserve(1)
        result = memory.result()
    assert resident == (3 * GRANULE if touch else 0)
    timings = {timing.operation: timing.total_ns for timing in result.timings}
    assert result.touched == ("touch" in timings) == touch
    assert timings["admission"] == timings["commit"] + timings.get("touch", 0)


@pytest.mark.parametrize(
    ("method", "prefault", "populated"),
    [("fixed", False, False), ("fixed", True, True), ("advise", False, True)],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux faults pages in at commit")
def test_pages_that_come_with_the_commit_are_reported(reserved, method, prefault, populated):
    backing = open_backing(method=method, prefault=prefault)
    with open_memory(backing, GRANULE, 10 * GRANULE, touch=False) as memory:
        memory.reserve(1, 10 * GRANULE, "sequences")
        memory.commit(1, [(0, 2 * GRANULE)], None)
        resident = read_range(reserved[0].base, 10 * GRANULE).resident_bytes
        memory.release(1, [(0, 2 * GRANULE)])
        memory.unreserve(1)
        assert memory.result().populated == populated
    assert resident == (2 * GRANULE if populated else 0)


def test_memory_that_differs_is_found(dense_cost, reserved):
    plan = plan_of(dense_cost(), "token-major")
    with open_memory(open_backing(), GRANULE, plan.budget_bytes) as memory:
        memory.reserve(-1, GRANULE, "sequences")
        memory.commit(-1, [(0, GRANULE)], None)
        with pytest.raises(CheckFailedError, match="bytes are leased"):
            run_replay(trace(), plan, None, memory=memory)
    assert {each.closed for each in reserved} == {True}


def test_an_interruption_leaves_nothing(dense_cost):
    plan = plan_of(dense_cost(2, 2, 128), "per-tensor")
    left = iter(range(50))
    result = replay_on(open_backing(), plan, trace(), stop=lambda: next(left, None) is None)
    assert not result.complete
    assert result.requests.unfinished > 0
    assert result.operations.commit_bytes == result.operations.release_bytes > 0


@pytest.mark.skipif(sys.platform == "win32", reason="the fault names a POSIX call")
def test_a_refusal_by_the_platform_leaves_nothing(dense_cost, reserved):
    from vmtool.memory.inject_option import parse_fault
    from vmtool.memory.injected_faults import FaultyCalls

    # The third commit of the default method; view maps each granule by a call of its own.
    call = "MapViewOfFile3:3" if sys.platform == "win32" else "mmap:3"
    backing = open_backing(faults=FaultyCalls([parse_fault(call)]))
    plan = plan_of(dense_cost(2, 2, 128), "per-tensor")
    with open_memory(backing, GRANULE, plan.budget_bytes) as memory:
        result = run_replay(trace(), plan, None, memory=memory)
    assert not result.complete
    assert re.search(r"ENOMEM|ERROR_COMMITMENT_LIMIT", result.accident.error)
    assert result.requests.arrived  # what was done until then
    assert {each.closed for each in reserved} == {True}
    memory.check(0, 0)


def test_the_host_refuses_other_granules_and_to_keep_memory():
    with pytest.raises(UsageError, match="not a multiple") as caught:
        open_memory(open_backing(), 5000, 1 << 20)
    assert (
        caught.value.hint
        == f"use --granule {-(-5000 // open_backing().granularity) * open_backing().granularity}"
    )
    with pytest.raises(UnavailableError, match="cannot keep"):
        open_memory(open_backing(), GRANULE, 1 << 20, retain=GRANULE)


@pytest.mark.parametrize("retain", [0, 30 * GRANULE, 1 << 40])
@pytest.mark.parametrize("policy", ["per-tensor", "paged"])
def test_the_stand_in_device_agrees_with_and_without_a_pool(fakecuda, dense_cost, policy, retain):
    fakecuda.reset(granularity="64KiB")
    plan = plan_of(dense_cost(2, 2, 128), policy, retain_bytes=retain)
    simulated = run_replay(trace(), plan, None)
    backing = open_backing("cuda")
    real = replay_on(backing, plan, trace())
    assert without_real(real) == simulated
    assert real.real.ledger_peak_bytes == simulated.usage.charged.peak_bytes
    assert not real.real.touched
    assert real.real.populated
    assert real.real.machine.device.fresh_zero
    assert (simulated.operations.reused_bytes > 0) == (retain > 0)
    assert fakecuda.report()["live"]["physical_bytes"] == 0
    del real
    gc.collect()
    backing.context.close()


@pytest.mark.parametrize("policy", ["per-tensor", "head-major"])
def test_a_shared_prefix_is_mapped_into_each_sequence_and_committed_once(
    fakecuda, dense_cost, listed, reserved, policy
):
    fakecuda.reset(granularity="64KiB")
    # A block of 512 tokens fills two granules of each tensor.
    plan = plan_of(dense_cost(1, 2, 128), policy, budget=1 << 30)
    prompt, name = 1536, (7, 8, 9)
    requests = [Request(0, prompt, 1, name) for _ in range(3)]
    backing = open_backing("cuda")
    watched = []
    with open_memory(backing, GRANULE, plan.budget_bytes) as memory:
        check = memory.check

        def look(committed, pooled):
            check(committed, pooled)
            created = fakecuda.report()["calls"]["cuMemCreate"]["calls"]
            watched.append((created, [each.blocks.total for each in reserved if not each.closed]))

        memory.check = look
        real = run_replay(listed(requests), plan, None, memory=memory)
    assert without_real(real) == run_replay(listed(requests), plan, None)
    whole = plan.policy.committed_bytes(prompt)
    assert max(sizes.count(whole) for _, sizes in watched) == 3
    # The driver made handles for what the simulation committed, and no more.
    assert watched[-1][0] * GRANULE == real.operations.commit_bytes < 3 * whole
    assert real.operations.not_committed_bytes > 0
    counts = counts_of(real.real)
    assert counts["share"] == counts["unshare"] > 0
    held = {each.holder: each.held_bytes for each in real.real.held}
    assert set(held) <= {"sequences", "prefixes"}
    assert held["prefixes"] > 0
    assert sum(held.values()) == real.real.ledger_peak_bytes
    assert real.real.method == "cold"
    gc.collect()
    backing.context.close()


def test_a_pooled_device_takes_from_its_pool_what_was_released(run_with_fakecuda):
    arguments = ["kv-replay", "synthetic:requests=20,rate=2,prompt=64,output=8", "--json"]
    device = ["--model", "qwen3-0.6b", "--budget", "512MiB", "--backing", "cuda"]
    ran = run_with_fakecuda([*arguments, *device, "--method", "pooled"])
    result = json.loads(ran.stdout)
    assert result["real"]["method"] == "pooled"
    assert result["operations"]["reused_bytes"] > 0
    assert sum(each["held_bytes"] for each in result["real"]["held"]) > 0
