"""The report of ``vmtool kv-estimate`` about one model, as a JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.estimate import Estimate, PolicyAnswer, TensorFit


def to_body(estimate: Estimate, *, explain: bool = False) -> dict[str, Any]:
    """Return the keys of the JSON document."""
    question, cost = estimate.question, estimate.cost
    geometry, budget = question.geometry, question.budget
    body = {
        "model": {
            "name": geometry.name,
            "architecture": geometry.architecture,
            "layers": len(geometry.layers),
            "context_tokens": geometry.context_tokens,
            "tp": geometry.tp,
            "pp": geometry.pp,
            "dcp": geometry.dcp,
        },
        "format_k": question.formats.key.name,
        "format_v": question.formats.value.name,
        "format_origin": question.format_origin,
        "budget": {
            "total_bytes": budget.total_bytes,
            "weights_bytes": budget.weights_bytes,
            "reserve_bytes": budget.reserve_bytes,
            "kv_bytes": budget.kv_bytes,
            "origin": budget.origin,
        },
        "context_tokens": question.length,
        "sequences": question.sequences,
        "granule_bytes": question.granule,
        "block_tokens": question.block,
        "in_flight_tokens": question.in_flight,
        "sequence": _sequence_body(cost, question.length),
        "layers": _layer_bodies(cost),
        "tensors": [_tensor_body(item) for item in estimate.tensors],
        "policy": question.policy,
        "policies": {
            name: {"impossible": str(answer)}
            if isinstance(answer, UsageError)
            else policy_body(answer)
            for name, answer in estimate.answers().items()
        },
    }
    if estimate.prefill is not None:
        prefill = estimate.prefill
        body["prefill"] = {
            "in_flight_tokens": prefill.question.in_flight,
            "one_sequence": prefill.answer.one,
            "sequences_of_context": prefill.answer.many,
        }
    if explain:
        body["provenance"] = question.provenance
    return body


def _sequence_body(cost: SequenceCost, length: int) -> dict[str, Any]:
    return {
        "fixed_bytes": cost.fixed_bytes,
        "slope_bytes": cost.slope.numerator,
        "slope_tokens": cost.slope.denominator,
        "saturation_tokens": cost.saturation_tokens,
        "at_context_bytes": cost.bytes_for(length),
        "marginal_bytes": cost.marginal_bytes(length),
    }


def _layer_bodies(cost: SequenceCost) -> list[dict[str, Any]]:
    return [
        {
            "kind": layer.kind,
            "indices": layer.indices,
            "bytes_per_token_held": layer.bytes_per_token,
            "cross_attention_bytes": layer.cross_bytes,
            "state_bytes": layer.state_bytes,
        }
        for layer in cost.layers
    ]


def _tensor_body(item: TensorFit) -> dict[str, Any]:
    tensor = item.tensor
    return {
        "name": tensor.name,
        "kind": item.kind,
        "layers": item.layers,
        "format": tensor.format_name,
        "heads": tensor.heads,
        "row_bytes": tensor.row_bytes,
        "bytes_per_token": tensor.bytes_per_token,
        "extent": tensor.extent,
        "granules": item.fits,
        "block_tiles": item.tiles,
        "suggested_block_tokens": item.block,
    }


def policy_body(answer: PolicyAnswer) -> dict[str, Any]:
    """Return the JSON object of what one policy makes of the question."""
    return {
        "floor_bytes": answer.floor_bytes,
        "reserved_bytes": answer.reserved_bytes,
        "used_bytes": answer.waste.used_bytes,
        "committed_bytes": answer.waste.committed_bytes,
        "wasted_bytes": answer.waste.wasted_bytes,
        "waste_ends_tokens": answer.waste_ends,
        "one_sequence": answer.one,
        "sequences_of_context": answer.many,
        "longest_for_sequences": answer.longest,
    }
