"""What the fullest of several ranks holds: heads, layers and tokens divided among them."""

from __future__ import annotations

from dataclasses import replace

from vmtool.errors import UsageError
from vmtool.kv.geometry import (
    Layer,
    ModelGeometry,
    Role,
    Span,
    StatePart,
    StateTensor,
    Tensor,
)

#: Where stages are weighed against each other when the model states no context length.
_DEFAULT_WEIGHING_TOKENS = 1 << 17


def shard(geometry: ModelGeometry, *, tp: int, pp: int, dcp: int) -> ModelGeometry:
    """Return what the fullest rank holds; see `ModelGeometry.shard`."""
    for flag, ranks in (("tp", tp), ("pp", pp), ("dcp", dcp)):
        if ranks < 1:
            raise UsageError(f"{flag} = {ranks}: it must be 1 or more")
    if (geometry.tp, geometry.pp, geometry.dcp) != (1, 1, 1):
        raise UsageError(f"{geometry.name} is already divided among ranks")
    if tp % dcp:
        raise UsageError(f"dcp = {dcp} does not divide tp = {tp}: it reuses the ranks of tp")
    stage = _fullest_stage(geometry, pp)
    layers = tuple(_shard_layer(layer, tp, dcp) for layer in stage)
    return replace(geometry, layers=layers, tp=tp, pp=pp, dcp=dcp)


def _fullest_stage(geometry: ModelGeometry, pp: int) -> tuple[Layer, ...]:
    """Return the pipeline stage that holds most elements at the model's context length."""
    layers = geometry.layers
    if pp > len(layers):
        raise UsageError(f"pp = {pp}: {geometry.name} has only {len(layers)} layers")
    # vLLM's get_pp_indices: the remainder goes to the stages before the last, from the end.
    counts = [len(layers) // pp] * pp
    for i in range(len(layers) % pp):
        counts[-2 - i] += 1
    stages = []
    start = 0
    for count in counts:
        stage = layers[start : start + count]
        for layer in stage:
            if layer.shares is not None and not start <= layer.shares < start + count:
                raise UsageError(
                    f"pp = {pp} puts layer {layer.index} and layer {layer.shares}, whose KV it"
                    " shares, into different stages"
                )
        stages.append(stage)
        start += count
    n = geometry.context_tokens or _DEFAULT_WEIGHING_TOKENS
    return max(stages, key=lambda stage: sum(layer.elements_held(n) for layer in stage))


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
    if tensor.role in (Role.LATENT, Role.INDEX):
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
        hint="choose a tp that divides the heads"
        + (", or a multiple of them" if replicates else ""),
    )
