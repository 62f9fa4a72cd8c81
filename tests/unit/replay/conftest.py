"""Small models, traces and rules for the tests of replays."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from vmtool.kv.geometry import Extent, LayerKind, Span, TensorRole
from vmtool.kv.packing.policies import POLICIES, make_policy
from vmtool.kv.sequence_cost import LayerCost, SequenceCost, StateCost, TensorCost
from vmtool.kv.traces.request_formats import Request
from vmtool.replay.rules import Plan
from vmtool.results.kv_replay import OnRefusal


@dataclass
class ListedTrace:
    """A trace that is a list of requests."""

    requests: list
    name: str = "listed"
    format: str = "test"
    reading: object = field(
        default_factory=lambda: SimpleNamespace(requests=0, lines=0, late=0, bad=0, bad_lines=[])
    )

    def __iter__(self):
        return iter(self.requests)


def tensor(name, heads, row, extent=None):
    return TensorCost(name, TensorRole.KEY, "test", heads, row, extent or Extent())


def layers(count, tensors, states=()):
    return LayerCost(LayerKind.FULL, tuple(range(count)), tuple(tensors), tuple(states))


EXTENTS = st.one_of(
    st.just(Extent()),
    st.builds(Extent, st.just(Span.ALL), ratio=st.integers(1, 4), ranks=st.integers(1, 2)),
    st.builds(Extent, st.sampled_from([Span.WINDOW, Span.CHUNK, Span.FIXED]), st.integers(1, 40)),
)
COSTS = st.builds(
    SequenceCost,
    st.lists(
        st.builds(
            layers,
            st.integers(1, 3),
            st.lists(
                st.builds(tensor, st.just("k"), st.integers(1, 3), st.integers(1, 40), EXTENTS),
                min_size=1,
                max_size=2,
            ),
            st.lists(st.builds(StateCost, st.just("s"), st.integers(1, 300)), max_size=1),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    st.integers(0, 3),
)


@st.composite
def plans(draw):
    """Rules under which a few short requests meet every kind of refusal."""
    cost = draw(COSTS)
    granule = draw(st.sampled_from([64, 256, 1000, 4096]))
    max_tokens = draw(st.integers(20, 60))
    name = draw(st.sampled_from(sorted(POLICIES)))
    widest = max(t.bytes_per_token for _, t in cost.tensors())
    if name in ("floor-per-page", "straddle-loses"):
        granule = max(granule, 4 * widest)  # what is larger they refuse
    block = draw(st.integers(1, 4))
    policy = make_policy(name, cost, granule, block=block, stride_tokens=max_tokens)
    one = policy.committed_bytes(max_tokens)
    return Plan(
        policy,
        budget_bytes=max(one * draw(st.integers(3, 40)) // 10, 1),
        max_tokens=max_tokens,
        max_sequences=draw(st.integers(1, 5)),
        prefill_ns=(draw(st.integers(0, 30)), draw(st.integers(1, 3))),
        step_ns=draw(st.integers(1, 20)),
        on_refusal=draw(st.sampled_from(OnRefusal)),
        commit_ahead=draw(st.sampled_from([0, 0, 1, 7])),
        retain_bytes=granule * draw(st.integers(0, 20)),
        share=draw(st.booleans()),
    )


@st.composite
def traces(draw):
    """A few requests, some of which arrive together."""
    at = 0
    requests = []
    for _ in range(draw(st.integers(1, 9))):
        at += draw(st.sampled_from([0, 0, 1, 5, 40, 300]))
        prompt = draw(st.integers(0, 45))
        requests.append(Request(at, prompt, draw(st.integers(0 if prompt else 1, 25))))
    return ListedTrace(requests)


@pytest.fixture(scope="session")
def replay_plans():
    return plans()


@pytest.fixture(scope="session")
def replay_traces():
    return traces()


@pytest.fixture(scope="session")
def replay_costs():
    return COSTS


@pytest.fixture(scope="session")
def listed():
    return ListedTrace


@pytest.fixture(scope="session")
def dense_cost():
    """Return a function that makes the cost of equal layers with K and V."""

    def make(count=2, heads=2, row=16, extent=None):
        kv = [tensor("k", heads, row, extent), tensor("v", heads, row, extent)]
        return SequenceCost((layers(count, kv),))

    return make
