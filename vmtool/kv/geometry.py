"""What a model, or one rank of it, keeps per sequence: layers, their tensors, and the tokens of each.

Geometry counts *elements*; the element format (and so the bytes) is applied elsewhere. Everything
here is pure, immutable and exact.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Source(enum.Enum):
    """Where a geometry value came from."""

    FILE = "file"
    DEFAULT = "default"
    DERIVED = "derived"
    FLAG = "flag"
    BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Provenance:
    """One resolved value and where it came from.

    Attributes:
        value: The value that was used.
        source: The kind of place.
        where: The file, the architecture, or the flag.
        detail: The key in the file, or the formula.
    """

    value: int | str
    source: Source
    where: str
    detail: str = ""


class LayerKind(enum.Enum):
    """How one layer remembers the past."""

    FULL = "full attention"
    MLA = "latent attention"
    WINDOW = "sliding window"
    CHUNK = "chunked local"
    COMPRESSED = "compressed attention"
    CROSS = "cross attention"
    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    GATED_DELTA = "gated delta net"
    KIMI_DELTA = "kimi delta attention"
    LINEAR = "linear attention"
    GATED_LINEAR = "gated linear recurrence"
    SHORT_CONV = "short convolution"
    RWKV = "rwkv"
    PARALLEL = "attention and state in parallel"
    SHARED = "shared kv"
    NONE = "no attention"


class TensorRole(enum.Enum):
    """What a tensor holds, which decides the element formats that can apply to it."""

    KEY = "k"
    VALUE = "v"
    LATENT = "latent"
    INDEX = "index"


class Span(enum.Enum):
    """Which tokens of a sequence a tensor keeps."""

    ALL = "all"
    WINDOW = "window"
    CHUNK = "chunk"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Extent:
    """How many tokens a tensor holds for a sequence of *n* tokens.

    Attributes:
        span: Which tokens are kept.
        size: Tokens in the window, in the chunk, or in total for ``FIXED``; 0 for ``ALL``.
        ratio: Consecutive tokens that are compressed into one entry.
        ranks: Ranks among which the tokens are divided (decode context parallelism).
    """

    span: Span = Span.ALL
    size: int = 0
    ratio: int = 1
    ranks: int = 1

    def tokens_held(self, n: int, in_flight: int = 0) -> int:
        """Return the entries one rank holds for a sequence of *n* tokens.

        Args:
            n: Tokens in the sequence, 0 or more.
            in_flight: Tokens that one step may add before old ones are dropped. A window then
                needs ``window - 1 + in_flight`` entries and a chunk ``chunk + in_flight``; 0 and 1
                mean plain decoding, where a window holds ``window`` and a chunk ``chunk``.
        """
        if self.span is Span.FIXED:
            return self.size
        kept = n
        if self.span is Span.WINDOW:
            kept = min(n, self.size - 1 + max(in_flight, 1))
        elif self.span is Span.CHUNK:
            kept = min(n, self.size + in_flight)
        return _ceil_div(_ceil_div(kept, self.ranks), self.ratio)

    @property
    def grows(self) -> bool:
        """Whether a longer sequence always needs more, however long it already is."""
        return self.span is Span.ALL


@dataclass(frozen=True, slots=True)
class Tensor:
    """One cached tensor of one layer: ``heads`` rows of ``dim`` elements for each token kept.

    Attributes:
        name: ``k``, ``v``, ``latent``, ``index``, ``cross_k`` or ``cross_v``.
        role: What the rows are.
        heads: Rows per token on this rank. Block formats apply to each row on its own.
        dim: Elements in a row.
        extent: The tokens that are kept.
        rope_dim: The last elements of a latent row that carry positions; 0 elsewhere.
        replicated: Whether every rank holds all of it, whatever divides the heads.
        own_type: Whether it is kept in the model's type, whatever the format of K and V.
    """

    name: str
    role: TensorRole
    heads: int
    dim: int
    extent: Extent = field(default_factory=Extent)
    rope_dim: int = 0
    replicated: bool = False
    own_type: bool = False

    @property
    def elements_per_token(self) -> int:
        """Elements for each token kept."""
        return self.heads * self.dim

    def tokens_held(self, n: int, in_flight: int = 0) -> int:
        """Return the entries kept for a sequence of *n* tokens; see `Extent.tokens_held`."""
        return self.extent.tokens_held(n, in_flight)


@dataclass(frozen=True, slots=True)
class StatePart:
    """A part of a state tensor that TP divides by whole heads.

    Attributes:
        heads: Heads, groups or channels: the count that TP divides.
        head_elements: Elements for each of them.
        replicates: Whether a single head is copied to every rank (Mamba-2's one group).
    """

    heads: int
    head_elements: int
    replicates: bool = False


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A recurrent or convolution state: the same size whatever the length of the sequence.

    Attributes:
        name: ``conv``, ``ssm``, ``recurrent`` or ``shift``.
        parts: What it is made of, one after the other in one tensor.
        dtype: ``fp32``, ``fp16`` or ``bf16`` where the model fixes it; ``None`` is the model's own.
        taps: Of a convolution, the past inputs that it keeps; 0 for other states.
    """

    name: str
    parts: tuple[StatePart, ...]
    dtype: str | None = None
    taps: int = 0

    @property
    def elements(self) -> int:
        """Elements for each sequence."""
        return sum(part.heads * part.head_elements for part in self.parts)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the model.

    Attributes:
        index: Its position in the whole model, from 0.
        kind: How it remembers.
        tensors: What grows or is capped; empty for layers that keep nothing per token.
        states: What is fixed per sequence.
        shares: The index of an earlier layer whose tensors it reads, all that it reads if it is ``SHARED``.
        draft: Whether it only predicts draft tokens: an MTP layer, or one of a draft model.
    """

    index: int
    kind: LayerKind
    tensors: tuple[Tensor, ...] = ()
    states: tuple[StateTensor, ...] = ()
    shares: int | None = None
    draft: bool = False

    @property
    def window(self) -> int | None:
        """Tokens in this layer's window or chunk, or ``None``."""
        for tensor in self.tensors:
            if tensor.extent.span in (Span.WINDOW, Span.CHUNK):
                return tensor.extent.size
        return None

    def elements_held(self, n: int, in_flight: int = 0) -> int:
        """Return the elements of tensors and states for a sequence of *n* tokens."""
        return sum(t.elements_per_token * t.tokens_held(n, in_flight) for t in self.tensors) + sum(
            state.elements for state in self.states
        )


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cost the same.

    Attributes:
        kind: Their kind.
        tensors: The tensors that each has.
        states: The states that each has.
        indices: Which layers they are.
        draft: Whether they only predict draft tokens.
    """

    kind: LayerKind
    tensors: tuple[Tensor, ...]
    states: tuple[StateTensor, ...]
    indices: tuple[int, ...]
    draft: bool = False

    @property
    def count(self) -> int:
        """How many layers."""
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """A model, or the part of it that one rank holds.

    Attributes:
        name: What the user called it.
        architecture: The ``model_type`` or architecture it was resolved as.
        layers: Every layer of this rank, in order.
        context_tokens: The longest sequence the model was made for, or ``None`` if not stated.
        dtype: ``fp32``, ``fp16`` or ``bf16``: the model's own element type; ``None`` if not stated.
        provenance: Where each value came from.
        tp: Ranks among which the heads are divided.
        pp: Stages into which the layers are divided.
        dcp: Ranks among which the tokens are divided.
        cache_dtype: The format of K and V that a quantised checkpoint asks for, or ``None``.
        file_format: ``gguf`` or ``onnx`` where the file is one that some engines read in another way.
        assumed: Whether the architecture is not known, and is taken for standard attention because
            all of its fields are standard.
        mtp_layers: Layers that only predict further tokens, which engines use for draft tokens;
            ``None`` if the model has some whose caches are not modelled.
        draft: The model that predicts draft tokens, ``MTP`` for layers of its own, or empty.
        stages: Every stage of the pipeline, of which this is the fullest; empty without one.
        query_heads: Heads that attend, which ``tp`` divides; ``None`` if not stated.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    context_tokens: int | None = None
    dtype: str | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    cache_dtype: str | None = None
    file_format: str = ""
    assumed: bool = False
    mtp_layers: tuple[Layer, ...] | None = ()
    draft: str = ""
    stages: tuple[ModelGeometry, ...] = ()
    query_heads: int | None = None

    @property
    def title(self) -> str:
        """Its name, and that of its draft."""
        return f"{self.name} with {self.draft}" if self.draft else self.name

    def groups(self) -> tuple[LayerGroup, ...]:
        """Return the layers grouped by equal cost, in order of first appearance."""
        found: dict[
            tuple[LayerKind, tuple[Tensor, ...], tuple[StateTensor, ...], bool], list[int]
        ] = {}
        for layer in self.layers:
            key = (layer.kind, layer.tensors, layer.states, layer.draft)
            found.setdefault(key, []).append(layer.index)
        return tuple(
            LayerGroup(kind, tensors, states, tuple(indices), draft)
            for (kind, tensors, states, draft), indices in found.items()
        )

    def with_draft(self, model: ModelGeometry | None = None) -> ModelGeometry:
        """Return the model with the layers that predict draft tokens, and their caches.

        Args:
            model: The model that predicts them; ``None`` is the MTP layers of this one, if it has any.

        Raises:
            UsageError: If what its MTP layers keep is not modelled.
        """
        added = self.mtp_layers if model is None else model.layers
        if added is None:
            raise UsageError(
                f"the MTP layers of {self.architecture} are not modelled",
                hint="leave out --draft-tokens, or name a draft model with --draft-model",
            )
        first = len(self.layers)
        layers = tuple(
            replace(
                layer,
                index=first + i,
                shares=None if layer.shares is None else first + layer.shares,
                draft=True,
            )
            for i, layer in enumerate(added)
        )
        name = "MTP" if model is None else model.name
        return replace(self, layers=self.layers + layers, draft=name if layers else "")

    def shard(
        self,
        *,
        tp: int = 1,
        pp: int = 1,
        dcp: int = 1,
        stages: tuple[int, ...] | None = None,
        weigh: Callable[[ModelGeometry], int] | None = None,
    ) -> ModelGeometry:
        """Return what the fullest rank holds.

        Heads are divided by *tp*, and copied when there are fewer heads than ranks; a latent is
        complete on every rank. Layers are divided into *pp* stages as vLLM does, and the stage
        that weighs most is returned. *dcp* divides the tokens of layers that keep all of them among
        ranks that would hold copies. *stages* are the layers of each stage, where they are not
        divided evenly. *weigh* returns how much a stage holds; by default that is the elements of a
        sequence of the model's context length.

        Raises:
            UsageError: If heads, layers or ranks cannot be divided so, naming the field.
        """
        for flag, ranks in (("tp", tp), ("pp", pp), ("dcp", dcp)):
            if ranks < 1:
                raise UsageError(f"{flag} = {ranks}: it must be 1 or more")
        if self.query_heads is None and tp > _MOST_RANKS:
            raise UsageError(
                f"tp = {tp}: it must be at most {_MOST_RANKS}",
                hint="engines refuse more ranks than attention heads, and no model has that many heads",
            )
        if (self.tp, self.pp, self.dcp) != (1, 1, 1):
            raise UsageError(f"{self.name} is already divided among ranks")
        if tp % dcp:
            raise UsageError(f"dcp = {dcp} does not divide tp = {tp}: it reuses the ranks of tp")
        divided = [
            replace(
                self,
                layers=tuple(_shard_layer(layer, tp, dcp) for layer in stage),
                tp=tp,
                pp=pp,
                dcp=dcp,
            )
            for stage in _stages(self, pp, stages)
        ]
        if self.query_heads is not None and self.query_heads % tp:
            raise UsageError(
                f"tp = {tp} does not divide the {self.query_heads} attention heads of {self.name}",
                hint="choose a tp that divides the number of heads, as engines require",
            )
        if pp == 1:
            return divided[0]
        return replace(max(divided, key=weigh or _elements), stages=tuple(divided))


def _elements(stage: ModelGeometry) -> int:
    n = stage.context_tokens or _DEFAULT_WEIGHING_TOKENS
    return sum(layer.elements_held(n) for layer in stage.layers)


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


#: Of tp, where the number of query heads is not known.
_MOST_RANKS = 1024
#: Where stages are weighed against each other when the model states no context length.
_DEFAULT_WEIGHING_TOKENS = 1 << 17


def _stages(
    geometry: ModelGeometry, pp: int, stages: tuple[int, ...] | None
) -> list[tuple[Layer, ...]]:
    """Return the layers of each pipeline stage.

    The last stage also has the layers that predict draft tokens.
    """
    layers = tuple(layer for layer in geometry.layers if not layer.draft)
    if pp > len(layers):
        raise UsageError(f"pp = {pp}: {geometry.name} has only {len(layers)} layers")
    if stages is None:
        # vLLM's get_pp_indices: the remainder goes to the stages before the last, from the end.
        counts = [len(layers) // pp] * pp
        for i in range(len(layers) % pp):
            counts[-2 - i] += 1
    else:
        counts = list(stages)
        if sum(counts) != len(layers) or len(counts) != pp:
            raise UsageError(
                f"--pp-layers: {'+'.join(map(str, counts))} is {sum(counts)} layers, but"
                f" {geometry.name} has {len(layers)}"
            )
    divided = []
    start = 0
    for count in counts:
        stage = layers[start : start + count]
        for layer in stage:
            if layer.shares is not None and not start <= layer.shares < start + count:
                raise UsageError(
                    f"pp = {pp} puts layer {layer.index} and layer {layer.shares}, whose KV it"
                    " shares, into different stages"
                )
        divided.append(stage)
        start += count
    divided[-1] += geometry.layers[len(layers) :]
    return divided


def _shard_layer(layer: Layer, tp: int, dcp: int) -> Layer:
    tensors = tuple(_shard_tensor(tensor, layer, tp, dcp) for tensor in layer.tensors)
    states = tuple(
        replace(state, parts=tuple(_shard_part(part, state, layer, tp) for part in state.parts))
        for state in layer.states
    )
    return replace(layer, tensors=tensors, states=states)


def _shard_tensor(tensor: Tensor, layer: Layer, tp: int, dcp: int) -> Tensor:
    what = f"layer {layer.index} ({layer.kind.value}), tensor {tensor.name}"
    extent = tensor.extent
    if dcp > 1:
        if extent.span is not Span.ALL:
            raise UsageError(f"{what}: dcp = {dcp} can only divide layers that keep all tokens")
        extent = replace(extent, ranks=dcp)
    if tensor.replicated or tensor.role in (TensorRole.LATENT, TensorRole.INDEX):
        return replace(tensor, extent=extent)  # one row for all query heads: every rank needs it
    heads = _divide(tensor.heads, tp, f"{what}: kv_heads = {tensor.heads}", replicates=True)
    copies = max(tp // tensor.heads, 1)
    if copies % dcp:
        raise UsageError(
            f"{what}: kv_heads = {tensor.heads} at tp = {tp} leaves"
            f" {copies} {'copy' if copies == 1 else 'copies'} of each head, which dcp = {dcp} does"
            " not divide"
        )
    return replace(tensor, heads=heads, extent=extent)


def _shard_part(part: StatePart, state: StateTensor, layer: Layer, tp: int) -> StatePart:
    what = f"layer {layer.index} ({layer.kind.value}), state {state.name}: heads = {part.heads}"
    replicates = part.replicates and part.heads == 1
    return replace(part, heads=_divide(part.heads, tp, what, replicates=replicates))


def _divide(heads: int, tp: int, what: str, *, replicates: bool) -> int:
    if heads % tp == 0:
        return heads // tp
    if replicates and tp % heads == 0:
        return 1
    raise UsageError(
        f"{what} cannot be divided among tp = {tp} ranks",
        hint="choose a tp that divides the number of heads"
        + (", or is a multiple of it" if replicates else ""),
    )


def whole_layer(layers: tuple[Layer, ...]) -> Layer | None:
    """Return the layer that costs most of those that keep every token and no state, if there is one."""
    found = [
        layer
        for layer in layers
        if layer.kind in (LayerKind.FULL, LayerKind.MLA)
        and all(tensor.extent == Extent() for tensor in layer.tensors)
    ]
    return max(found, key=lambda layer: layer.elements_held(1), default=None)


def pair(kv_heads: int, dim_k: int, dim_v: int, held: Extent | None = None) -> tuple[Tensor, ...]:
    """Return K and V tensors of *kv_heads* rows for each token that *held* keeps."""
    held = held or Extent()
    return (
        Tensor("k", TensorRole.KEY, kv_heads, dim_k, held),
        Tensor("v", TensorRole.VALUE, kv_heads, dim_v, held),
    )
