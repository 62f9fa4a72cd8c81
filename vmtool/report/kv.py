"""The report of ``vmtool kv-estimate`` about one model, as plain text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError
from vmtool.kv.geometry import Span
from vmtool.kv.packing.capacity import Limit
from vmtool.report.table import pairs, paragraph, show, table
from vmtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from rich.console import Console, RenderableType

    from vmtool.kv.cost import SequenceCost
    from vmtool.kv.estimate import Budget, Estimate, Fit, PolicyAnswer, Question, TensorFit
    from vmtool.kv.packing.capacity import Capacity

_GB: Final = 10**9


def both(nbytes: int) -> str:
    """Return *nbytes* exactly, and with an IEC unit where that says more."""
    return f"{nbytes:,} B" if nbytes < 1024 else f"{nbytes:,} B ({format_size(nbytes)})"


def percent(part: Fraction | float) -> str:
    """Return *part* in per cent with enough digits to distinguish small parts from none."""
    value = float(part) * 100
    if value == 0 or value >= 99.95:
        return f"{value:.0f}%"
    return f"{value:.2g}%" if value < 1 else f"{value:.1f}%".replace(".0%", "%")


def count_of(number: int | None, noun: str) -> str:
    """Return *number* with *noun*; ``None`` is any number."""
    if number is None:
        return f"any number of {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def slope_text(slope: Fraction) -> str:
    """Return bytes for each token, or for as many tokens as make them whole."""
    if slope.denominator == 1:
        return f"{slope.numerator:,} B x tokens"
    return f"{slope.numerator:,} B x tokens / {slope.denominator}"


def formats_text(question: Question) -> str:
    """Return the element formats of K and V."""
    formats = question.formats
    if formats.key == formats.value:
        return formats.key.name
    return f"K {formats.key.name}, V {formats.value.name}"


def _format_text(question: Question) -> str:
    formats = question.formats
    summary = formats.key.summary
    if formats.key != formats.value:
        summary += f"; {formats.value.summary}"
    text = f"{formats_text(question)} ({summary}), {question.format_origin}"
    if formats.key.name.startswith("fp8"):
        from vmtool.kv.engines.vllm import stored_formats  # noqa: PLC0415 - few questions need it

        packed = stored_formats(question.geometry, formats).key.name
        if packed != formats.key.name:
            text += f"; vLLM's FLASHMLA_SPARSE keeps it as --dtype {packed}"
    return text


def why(capacity: Capacity) -> str:
    """Return what limits *capacity*."""
    return {
        Limit.BUDGET: "limited by the budget",
        Limit.CONTEXT: "limited by the context, not by the budget",
        Limit.STRIDE: "limited by the stride, not by the budget",
        Limit.FLOOR: f"the first would commit {both(capacity.committed_bytes)}",
        Limit.NONE: "nothing limits it: the cost does not grow",
    }[capacity.limit]


def to_text(estimate: Estimate, console: Console, *, explain: bool = False) -> None:
    """Print the report."""
    show(console, _parts(estimate, explain=explain))


def _parts(estimate: Estimate, *, explain: bool) -> Iterator[RenderableType]:
    yield _headline(estimate)
    yield ""
    yield pairs(_facts(estimate))
    yield ""
    yield from _tensor_parts(estimate)
    yield ""
    yield from _policy_parts(estimate)
    if explain:
        yield ""
        yield from explain_parts(estimate.question)


def _headline(estimate: Estimate) -> RenderableType:
    question, answer = estimate.question, estimate.answer
    budget = question.budget
    have = f"{format_size(budget.kv_bytes)} of KV memory"
    if answer.one.fits == 0:
        return paragraph(
            f"{question.geometry.name}: no token fits in {have}: the first commits"
            f" {both(answer.floor_bytes)} under {answer.name} on"
            f" {format_size(question.granule)} granules.",
        )
    one = _length(answer) + (" in one sequence" if answer.one.fits is not None else "")
    text = f"{question.geometry.name}: {have} holds {one}, or {_many(estimate)}"
    if estimate.prefill is not None:
        prefill = estimate.prefill.answer
        many = count_of(prefill.many.fits, "sequence")
        text += f", while decoding; {_length(prefill)} or {many}{_while(estimate.prefill)}"
    elif question.in_flight and estimate.in_flight_counts:
        text += _while(estimate)
    text += "."
    context = question.geometry.context_tokens
    if context is not None and answer.one.fits is not None and answer.one.fits > context:
        text += f" The model's context is {context:,}."
    return paragraph(text)


def _length(answer: PolicyAnswer) -> str:
    return (
        "a sequence of any length"
        if answer.one.fits is None
        else count_of(answer.one.fits, "token")
    )


def _many(estimate: Estimate) -> str:
    length = count_of(estimate.question.length, "token")
    return f"{count_of(estimate.answer.many.fits, 'sequence')} of {length}"


def _while(estimate: Estimate) -> str:
    return f" while each prefills {count_of(estimate.question.in_flight, 'token')} at once"


def _facts(estimate: Estimate) -> list[tuple[str, str]]:
    question, cost, answer = estimate.question, estimate.cost, estimate.answer
    length = question.length
    geometry = question.geometry
    rows = [("memory", _budget_text(question.budget))]
    if (geometry.tp, geometry.pp, geometry.dcp) != (1, 1, 1):
        ranks = f"tp {geometry.tp}, pp {geometry.pp}, dcp {geometry.dcp}"
        rows.append(("rank", f"{ranks}: everything here is for the fullest rank"))
    rows += [
        ("format", _format_text(question)),
        ("a sequence", _sequence_text(cost)),
        *(("layers" if i == 0 else "", text) for i, text in enumerate(_kinds(cost))),
    ]
    used = cost.bytes_for(length)
    average = f"{used / length:,.1f} B on average"
    packed = (
        f"{answer.name} on granules of {format_size(question.granule)}:"
        f" {both(answer.waste.committed_bytes)} committed at that length,"
        f" {both(answer.waste.wasted_bytes)} wasted, {format_size(answer.reserved_bytes)} reserved"
    )
    length_note = ""
    if question.length_is_assumed:
        length_note = (
            "; a length of vmtool's own choice, as neither the model nor --context says one"
        )
    rows += [
        (f"at {length:,} tokens", both(used) + length_note),
        ("a token there", f"{both(cost.marginal_bytes(length))} for the next, {average}"),
        ("packing", packed),
        ("one sequence", f"{count_of(answer.one.fits, 'token')}; {why(answer.one)}"),
        ("sequences", f"{_many(estimate)}; {why(answer.many)}"),
    ]
    if question.sequences > 1:
        count = count_of(answer.longest.fits, "token")
        rows.append((f"each of {question.sequences:,}", f"{count}; {why(answer.longest)}"))
    return rows


def _kinds(cost: SequenceCost) -> Iterator[str]:
    for layer in cost.layers:
        parts = []
        if layer.bytes_per_token:
            parts.append(f"{layer.bytes_per_token:,} B for each token kept")
        if layer.cross_bytes:
            (size,) = {t.extent.size for t in layer.tensors if t.extent.span is Span.FIXED}
            parts.append(
                f"{layer.cross_bytes:,} B of cross attention over {size:,} encoder positions"
            )
        if layer.states:
            parts.append(f"{layer.state_bytes:,} B of state")
        yield f"{layer.count} x {layer.kind.value}: {' and '.join(parts) or 'nothing'}"


def _sequence_text(cost: SequenceCost) -> str:
    text = f"{both(cost.fixed_bytes)} + {slope_text(cost.slope)}"
    if cost.saturation_tokens:
        text += f", from {cost.saturation_tokens:,} tokens on, when every window is full"
    return text


def _budget_text(budget: Budget) -> str:
    total = f"{budget.total_bytes:,} B = {budget.total_bytes / (1 << 30):.2f} GiB"
    text = f"{total} ({budget.total_bytes / _GB:.2f} GB), {budget.origin}"
    for name, nbytes in (("weights", budget.weights_bytes), ("reserve", budget.reserve_bytes)):
        if nbytes:
            text += f"; minus {format_size(nbytes)} {name}"
    return text


def _tensor_parts(estimate: Estimate) -> list[RenderableType]:
    question = estimate.question
    if not estimate.tensors:
        return [paragraph("No layer keeps anything for each token.")]
    granule = format_size(question.granule)
    headings = [
        "tensor",
        "of",
        "B/token",
        *(format_size(nbytes) for nbytes in question.granules),
        f"tile {granule}",
    ]
    rows = [
        [
            item.tensor.name,
            f"{item.layers} x {item.kind.value}",
            f"{item.tensor.bytes_per_token:,}",
            *(_fit_text(found) for found in item.fits),
            f"{_on(item, question.granule).tile_tokens:,}",
        ]
        for item in estimate.tensors
    ]
    title = f"Tokens per granule of each tensor (bytes left over), and tokens that tile {granule}"
    parts: list[RenderableType] = [paragraph(title), table(headings, rows, left=2, label=2)]
    blocks = {
        item.tensor.bytes_per_token: item.block for item in estimate.tensors if not item.tiles
    }
    for token_bytes, block in blocks.items():
        text = (
            f"A block of {question.block:,} tokens of {token_bytes:,} B straddles granules of"
            f" {granule}; {block:,} tokens do not."
        )
        parts.append(paragraph(text))
    return parts


def _on(item: TensorFit, granule: int) -> Fit:
    return next(found for found in item.fits if found.granule_bytes == granule)


def _fit_text(found: Fit) -> str:
    if not found.tokens:
        return f"0: {found.granules_per_token} granules a token"
    if not found.tail_bytes:
        return f"{found.tokens:,}"
    return f"{found.tokens:,} ({found.tail_bytes:,} B, {percent(found.tail)})"


def _policy_parts(estimate: Estimate) -> list[RenderableType]:
    question = estimate.question
    threshold = percent(question.waste_threshold)
    headings = ["packing", "1 token", "wasted", f"<{threshold} from", "one holds", "sequences"]
    rows = []
    notes = []
    found = estimate.answers()
    ones = {answer.one.fits for answer in found.values() if not isinstance(answer, UsageError)}
    for name, answer in found.items():
        if isinstance(answer, UsageError):
            notes.append(str(answer))
            continue
        rows.append(_policy_row(answer, name, chosen=name == question.policy))
        if answer.one.limit is Limit.STRIDE and len(ones) > 1:
            stride = count_of(answer.one.fits, "token")
            notes.append(f"{name}: one holds no more than its stride of {stride} (--context)")
    title = (
        f"Packing sequences of {count_of(question.length, 'token')} on granules of"
        f" {format_size(question.granule)}, the length from which less than {threshold} is wasted,"
        " and what fits"
    )
    parts: list[RenderableType] = [paragraph(title), table(headings, rows)]
    parts.extend(paragraph(note, indent="  ") for note in notes)
    return parts


def _policy_row(answer: PolicyAnswer, name: str, *, chosen: bool) -> list[str]:
    waste = answer.waste
    lost = waste.wasted_bytes / waste.committed_bytes if waste.committed_bytes else 0
    return [
        f"{name} *" if chosen else name,
        format_size(answer.floor_bytes),
        f"{format_size(waste.wasted_bytes)} ({percent(lost)})",
        "never" if answer.waste_ends is None else f"{answer.waste_ends:,}",
        "any" if answer.one.fits is None else f"{answer.one.fits:,}",
        "any" if answer.many.fits is None else f"{answer.many.fits:,}",
    ]


def explain_parts(question: Question) -> list[RenderableType]:
    """Return where each value of the geometry came from; what most share is said once."""
    facts = question.provenance
    places = Counter((fact.source.value, fact.where) for fact in facts.values())
    usual, count = max(places.items(), key=lambda item: item[1], default=(("", ""), 0))
    title = f"Where the values come from ({question.geometry.architecture})"
    if count > 1:
        title += f": {usual[0]}, {usual[1]}, unless a row says otherwise"
    else:
        usual = ("", "")
    rows = []
    for name, fact in facts.items():
        place = (fact.source.value, fact.where)
        known = 2 if place == usual else int(fact.where == usual[1])
        other = ", ".join(place[: 2 - known])
        text = f"{fact.detail} ({other})" if fact.detail and other else fact.detail or other
        rows.append([name, str(fact.value), text])
    return [paragraph(title), table(["", "value", "from"], rows, prose=2)]


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
