"""Small models for the tests of the arithmetic, and any number of random ones."""

import pytest
from hypothesis import strategies as st

from vmtool.kv.element_formats import choose_formats
from vmtool.kv.geometry import Extent, Layer, LayerKind, ModelGeometry, Span, Tensor, TensorRole
from vmtool.kv.sequence_cost import LayerCost, SequenceCost, StateCost, TensorCost


@pytest.fixture(scope="session")
def dense():
    """Return a function that makes a model of equal full-attention layers."""

    def make(layers, heads, dim, dim_v=None, *, context=None, extent=None, kind=LayerKind.FULL):
        extent = extent or Extent()
        tensors = (
            Tensor("k", TensorRole.KEY, heads, dim, extent),
            Tensor("v", TensorRole.VALUE, heads, dim_v or dim, extent),
        )
        return ModelGeometry(
            "test", "test", tuple(Layer(i, kind, tensors) for i in range(layers)), context, "bf16"
        )

    return make


@pytest.fixture(scope="session")
def cost_of():
    """Return a function that makes the cost of a geometry in a format, bf16 if none is named."""

    def make(geometry, dtype=None, value=None, *, in_flight=0):
        formats = choose_formats(geometry.dtype, key=dtype, value=value or dtype)
        return SequenceCost.of(geometry, formats, in_flight=in_flight)

    return make


@pytest.fixture(scope="session")
def costs():
    """Return a strategy of sequence costs: every kind of extent, odd sizes, states."""
    extents = st.one_of(
        st.builds(Extent, st.just(Span.ALL), ratio=st.integers(1, 5), ranks=st.integers(1, 3)),
        st.just(Extent()),
        st.builds(Extent, st.just(Span.WINDOW), st.integers(1, 600)),
        st.builds(Extent, st.just(Span.CHUNK), st.integers(1, 600)),
        st.builds(Extent, st.just(Span.FIXED), st.integers(1, 600)),
    )
    tensors = st.builds(
        TensorCost,
        st.just("k"),
        st.just(TensorRole.KEY),
        st.just("test"),
        st.integers(1, 12),
        st.integers(1, 300),
        extents,
    )
    layers = st.builds(
        LayerCost,
        st.just(LayerKind.FULL),
        st.integers(1, 4).map(lambda n: tuple(range(n))),
        st.lists(tensors, min_size=1, max_size=3).map(tuple),
        st.lists(st.builds(StateCost, st.just("s"), st.integers(1, 10**5)), max_size=2).map(tuple),
    )
    return st.builds(
        SequenceCost, st.lists(layers, min_size=1, max_size=3).map(tuple), st.integers(0, 64)
    )
