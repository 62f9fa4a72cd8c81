"""Stored results of replays: shortcuts must not change one byte or nanosecond of them."""

import random

from vmtool.kv.element_formats import choose_formats
from vmtool.kv.packing.policies import POLICIES, make_policy
from vmtool.kv.sequence_cost import SequenceCost
from vmtool.kv.sources.model_lookup import load
from vmtool.kv.traces.request_formats import Request
from vmtool.replay.rules import Plan
from vmtool.replay.trace_to_result import run_replay
from vmtool.results.kv_replay import OnRefusal


def requests(count=40):
    """Return requests of some lengths, half of them with a prompt that begins like another's."""
    drawn = random.Random(1)
    at = 0
    found = []
    for number in range(count):
        at += drawn.randrange(10**9)
        prompt, output = drawn.randrange(1, 4000), drawn.randrange(1, 400)
        first = 100 * drawn.randrange(4) if number % 2 else 1000 * number
        found.append(Request(at, prompt, output, tuple(range(first, first + prompt // 512))))
    return found


def line(name, result):
    counts, used, done = result.requests, result.usage, result.operations
    numbers = (
        *(result.events, result.duration_ns, counts.finished, counts.decode_steps),
        *(counts.refused_admissions, counts.refused_steps, counts.refused_ahead),
        *(counts.preemptions, counts.deadlocks, counts.stalled_ns),
        *(used.committed.peak_bytes, used.committed.mean_bytes, used.peak_at_ns),
        *(used.live.peak_bytes, used.live.mean_bytes, used.reserved.mean_bytes),
        *(done.commits, done.commit_bytes, done.releases, done.not_committed_bytes),
        *(used.fragmentation, used.waste, result.waiting.p99_ns, result.end_to_end.p99_ns),
    )
    return f"{name}: {' '.join(map(str, numbers))}"


#: How the replays of a policy differ.
WAYS = {
    "wait": {"on_refusal": OnRefusal.WAIT, "share": False},
    "reject": {"on_refusal": OnRefusal.REJECT, "share": False},
    "preempt": {"on_refusal": OnRefusal.PREEMPT, "share": False},
    "shared": {"on_refusal": OnRefusal.WAIT},
    "cached": {"prefix_cache": True},
    "ahead": {"commit_ahead": 20},
    "unlimited": {"budget_bytes": 1 << 50},
}


def test_a_replay_gives_what_it_gave(golden, listed):
    model = load("gpt-oss-20b")
    cost = SequenceCost.of(model, choose_formats(model.dtype, key=None, value=None))
    trace = listed(requests())
    lines = []
    for policy in sorted(POLICIES):
        packed = make_policy(policy, cost, 65536, block=16, stride_tokens=4500)
        budget = packed.committed_bytes(4500) * 5 // 2
        for way, changes in WAYS.items():
            plan = Plan(packed, max_tokens=4500, **{"budget_bytes": budget, **changes})
            lines.append(line(f"{policy} {way}", run_replay(trace, plan, None)))
    golden("replay-results", lambda console: console.print("\n".join(lines)), width=500)
