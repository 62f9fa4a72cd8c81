"""Policies on small granules."""

import pytest
from hypothesis import strategies as st

from vmtool.errors import UsageError
from vmtool.kv.packing.policies import make_policy

#: The longest sequence that they are for.
LONGEST = 400


@pytest.fixture(scope="session")
def policies(costs):
    """Return a function that makes a strategy of policies with one of the names."""

    @st.composite
    def make(draw, names):
        name, cost = draw(st.sampled_from(names)), draw(costs)
        granule = draw(st.sampled_from([64, 1000, 4096, 65536]))
        block = draw(st.integers(1, 20))
        try:
            return make_policy(name, cost, granule, block=block, stride_tokens=LONGEST)
        except UsageError:  # floor-per-page and straddle-loses refuse what is larger than a granule
            instead = "paged" if "paged" in names else "token-major"
            return make_policy(instead, cost, granule, block=block, stride_tokens=LONGEST)

    return make
