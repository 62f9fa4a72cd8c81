"""What one sequence costs in bytes: a fixed part, and a slope per token.

Geometry counts elements; here the element formats turn them into exact bytes. Layers that cost the
same are counted together, so a question takes time by the kinds of layers and not by their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from vmtool.kv.geometry import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.kv.element_formats import Formats
    from vmtool.kv.geometry import Extent, LayerKind, ModelGeometry, TensorRole


@dataclass(frozen=True, slots=True)
class TensorCost:
    """One cached tensor of one layer, in bytes.

    Attributes:
        name: As in the geometry: ``k``, ``v``, ``latent``, ``index``, ``cross_k``, ``cross_v``.
        role: What the rows are.
        format_name: Their element format.
        heads: Rows for each token.
        row_bytes: Bytes of one row, scales included.
        extent: The tokens that are kept.
    """

    name: str
    role: TensorRole
    format_name: str
    heads: int
    row_bytes: int
    extent: Extent

    @property
    def bytes_per_token(self) -> int:
        """Bytes for each token kept."""
        return self.heads * self.row_bytes

    @property
    def slope(self) -> Fraction:
        """Bytes for each further token of a long sequence: 0 for what is capped or fixed."""
        if not self.extent.grows:
            return Fraction(0)
        return Fraction(self.bytes_per_token, self.extent.ratio * self.extent.ranks)

    def bytes_held(self, tokens: int, in_flight: int = 0) -> int:
        """Return the bytes kept for a sequence of *tokens*."""
        return self.bytes_per_token * self.extent.tokens_held(tokens, in_flight)


@dataclass(frozen=True, slots=True)
class StateCost:
    """One recurrent state of one layer: the same bytes for every sequence.

    Attributes:
        name: As in the geometry.
        nbytes: Its bytes.
        taps: Of a convolution, the past inputs that it keeps; 0 for other states.
    """

    name: str
    nbytes: int
    taps: int = 0


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Layers that cost the same.

    Attributes:
        kind: How they remember.
        indices: Which layers of the model they are.
        tensors: The tensors of each of them.
        states: The states of each of them.
        draft: Whether they only predict draft tokens.
    """

    kind: LayerKind
    indices: tuple[int, ...]
    tensors: tuple[TensorCost, ...]
    states: tuple[StateCost, ...]
    draft: bool = False

    @property
    def count(self) -> int:
        """How many layers."""
        return len(self.indices)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one of them keeps of each token that it holds of the sequence."""
        return sum(t.bytes_per_token for t in self.tensors if t.extent.span is not Span.FIXED)

    @property
    def cross_bytes(self) -> int:
        """Bytes that one of them keeps of an encoder's output, whatever the sequence."""
        return sum(t.bytes_held(0) for t in self.tensors if t.extent.span is Span.FIXED)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of one of them."""
        return sum(state.nbytes for state in self.states)

    def bytes_for(self, tokens: int, in_flight: int = 0) -> int:
        """Return the bytes of one of these layers for a sequence of *tokens*."""
        held = sum(tensor.bytes_held(tokens, in_flight) for tensor in self.tensors)
        return held + self.state_bytes


@dataclass(frozen=True, slots=True)
class SequenceCost:
    """The bytes of one sequence on one rank, before any rounding to granules.

    Attributes:
        layers: The layers, grouped by cost.
        in_flight: Tokens that one step may add before a window drops old ones.
    """

    layers: tuple[LayerCost, ...]
    in_flight: int = 0

    @classmethod
    def of(cls, geometry: ModelGeometry, formats: Formats, *, in_flight: int = 0) -> SequenceCost:
        """Return what a sequence of *geometry* costs in *formats*.

        Raises:
            UsageError: If a format cannot store a tensor's rows.
        """
        layers = tuple(
            LayerCost(
                group.kind,
                group.indices,
                tuple(
                    TensorCost(
                        tensor.name,
                        tensor.role,
                        formats.of(tensor).name,
                        tensor.heads,
                        formats.of(tensor).bytes_per_row(tensor),
                        tensor.extent,
                    )
                    for tensor in group.tensors
                ),
                tuple(StateCost(s.name, formats.state_bytes(s), s.taps) for s in group.states),
                group.draft,
            )
            for group in geometry.groups()
        )
        return cls(layers, in_flight)

    def tensors(self) -> Iterator[tuple[int, TensorCost]]:
        """Yield every tensor with the number of layers that have one like it."""
        for layer in self.layers:
            for tensor in layer.tensors:
                yield layer.count, tensor

    def tokens_held(self, tensor: TensorCost, tokens: int) -> int:
        """Return the tokens that *tensor* holds of a sequence of *tokens*."""
        return tensor.extent.tokens_held(tokens, self.in_flight)

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes of a sequence of *tokens*."""
        return sum(layer.count * layer.bytes_for(tokens, self.in_flight) for layer in self.layers)

    def marginal_bytes(self, tokens: int) -> int:
        """Return what the token after *tokens* adds."""
        return self.bytes_for(tokens + 1) - self.bytes_for(tokens)

    @property
    def slope(self) -> Fraction:
        """Bytes that each token adds once every window is full."""
        return sum((count * tensor.slope for count, tensor in self.tensors()), Fraction(0))

    @property
    def saturation_tokens(self) -> int:
        """The length from which every window and chunk is full, so that only the slope remains."""
        full = [0]
        for _, tensor in self.tensors():
            extent = tensor.extent
            if extent.span is Span.WINDOW:
                full.append(extent.size - 1 + max(self.in_flight, 1))
            elif extent.span is Span.CHUNK:
                full.append(extent.size + self.in_flight)
        return max(full)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a long sequence that do not depend on its length.

        States, cross-attention and full windows: ``bytes_for(n) == fixed_bytes + slope * n`` for
        every *n* from :attr:`saturation_tokens` that ratio and ranks divide.
        """
        states = sum(layer.count * layer.state_bytes for layer in self.layers)
        capped = sum(
            count * tensor.bytes_held(self.saturation_tokens, self.in_flight)
            for count, tensor in self.tensors()
            if not tensor.extent.grows
        )
        return states + capped
