"""The report of ``vmtool kv-estimate`` about one model, as plain text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from vmtool.errors import printable
from vmtool.kv.estimate_result import FormatOrigin
from vmtool.kv.geometry import Source
from vmtool.kv.packing.capacity import Limit
from vmtool.report.console import paragraph, show
from vmtool.report.table import pairs, table
from vmtool.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from rich.console import Console, RenderableType

    from vmtool.kv.estimate_result import (
        Budget,
        EstimateResult,
        Fit,
        LayerBytes,
        Need,
        PolicyResult,
        SequenceBytes,
        TensorResult,
    )
    from vmtool.kv.geometry import Provenance
    from vmtool.kv.packing.capacity import Capacity

_GB: Final = 10**9
#: Where a value came from: only the kind of place, and with its name.
_PLACES: Final = {
    Source.FILE: ("file", "{}"),
    Source.DEFAULT: ("default", "default of {}"),
    Source.DERIVED: ("derived", "derived from {}"),
    Source.FLAG: ("option", "option {}"),
    Source.BUILTIN: ("built-in", "built-in, from {}"),
}


def both(nbytes: int) -> str:
    """Return *nbytes* exactly, and with an IEC unit where that says more."""
    return f"{nbytes:,} B" if nbytes < 1024 else f"{nbytes:,} B ({format_size(nbytes)})"


def percent(part: Fraction | float) -> str:
    """Return *part* in per cent with enough digits to distinguish small parts from none."""
    value = float(part) * 100
    if value == 0 or value >= 99.95:
        return f"{value:.0f} %"
    return f"{value:.2g} %" if value < 1 else f"{value:.1f}".removesuffix(".0") + " %"


def any_or_count_of(number: int | None, noun: str) -> str:
    """Return *number* with *noun*; ``None`` is any number."""
    return f"any number of {noun}s" if number is None else count_of(number, noun)


def slope_text(sequence: SequenceBytes) -> str:
    """Return bytes for each token, or for as many tokens as make them whole."""
    if sequence.slope_tokens == 1:
        return f"{sequence.slope_bytes:,} B x tokens"
    return f"{sequence.slope_bytes:,} B x tokens / {sequence.slope_tokens}"


def formats_text(key: str, value: str) -> str:
    """Return the element formats of K and V."""
    return key if key == value else f"K {key}, V {value}"


def why(capacity: Capacity) -> str:
    """Return what limits *capacity*."""
    return {
        Limit.BUDGET: "limited by the budget",
        Limit.CONTEXT: "limited by the context, not by the budget",
        Limit.STRIDE: "limited by the stride, not by the budget",
        Limit.FLOOR: f"the first would commit {both(capacity.committed_bytes)}",
        Limit.NONE: "the cost does not grow",
    }[capacity.limit]


def to_text(result: EstimateResult, console: Console, *, packing: bool = False) -> None:
    """Print the report.

    Args:
        result: What was found out.
        console: Where it goes.
        packing: Whether to print every granule and packing policy too.
    """
    show(console, _parts(result, packing=packing))


def _parts(result: EstimateResult, *, packing: bool) -> Iterator[RenderableType]:
    yield paragraph(headline(result))
    yield ""
    yield pairs(facts_of(result))
    if packing:
        yield ""
        yield from _tensor_parts(result)
        yield ""
        yield from _policy_parts(result)
    if result.provenance is not None:
        yield ""
        yield from _explain_parts(result)


# ---- the answer -----------------------------------------------------------------------------


def headline(result: EstimateResult) -> str:
    """Return the answer in one sentence or two."""
    name = result.model.name
    if result.model.draft:
        name += f" with {result.model.draft}"
    if result.budget is None:
        return f"{name}: {_cost_answer(result)}"
    have = f"{format_size(result.budget.kv_bytes)} of KV memory{_per_rank(result)}"
    if result.budget.weights_bytes:
        weights = format_size(result.budget.weights_bytes)
        have += f", after {_about(result.budget)}{weights} of weights,"
    answer = result.answer
    if answer.max_tokens is None or answer.max_sequences is None:
        return f"{name}: {_cost_answer(result)}"
    if answer.max_tokens.fits == 0:
        return (
            f"{name}: no token fits in {have.rstrip(',')}: the first commits {both(answer.floor_bytes)} under"
            f" {result.policy} on {format_size(result.granule_bytes)} granules."
        )
    if result.sequences > 1:
        return f"{name}: {_fit_answer(result, answer.max_sequences, have.rstrip(','))}"
    text = f"{name}: {have} holds {_length(answer.max_tokens)}"
    if answer.max_tokens.fits is not None:
        text += " in one sequence"
    text += f", or {_sequences(answer.max_sequences, result)}"
    if result.prefill is not None:
        prefill = result.prefill
        many = any_or_count_of(prefill.max_sequences.fits, "sequence")
        text += f", while decoding; {_length(prefill.max_tokens)} or {many}"
        text += _while(prefill.in_flight_tokens)
    elif result.in_flight_tokens and result.in_flight_counts:
        text += _while(result.in_flight_tokens)
    text += "."
    context, fits = result.model.context_tokens, answer.max_tokens.fits
    if context is not None and fits is not None and fits > context:
        text += f" The model's context is {context:,}."
    return text


def _cost_answer(result: EstimateResult) -> str:
    """Return what the requested sequences need, or what a token and a sequence cost."""
    if result.sequences > 1:
        return f"{_need_text(result, result.need)}."
    sequence = result.sequence
    length = count_of(result.context_tokens, "token")
    per_rank = _per_rank(result)
    cost = f"a sequence of {length} takes {format_size(sequence.at_context_bytes)}{per_rank}"
    if sequence.tokens_per_gib is None:
        return f"{cost}, and a longer one takes no more ({_format(result)})."
    token = f"{sequence.slope_bytes:,} B a token"
    if sequence.slope_tokens > 1:
        token = f"{sequence.slope_bytes:,} B for every {sequence.slope_tokens:,} tokens"
    return (
        f"{token}{per_rank} ({_format(result)}); {cost}; each further GiB holds"
        f" {count_of(sequence.tokens_per_gib, 'token')}."
    )


def _need_text(result: EstimateResult, need: Need) -> str:
    length = count_of(need.context_tokens, "token")
    text = (
        f"{count_of(need.sequences, 'sequence')} of {length} need {format_size(need.total_bytes)}"
    )
    model = result.model
    if (model.tp, model.pp) != (1, 1):
        ranks = ranks_text(model.tp, model.pp)
        text += f" ({format_size(need.rank_bytes)} per rank at {ranks})"
    return text


def ranks_text(tp: int, pp: int, dcp: int = 1) -> str:
    """Return how a model is divided, such as ``tp 8, pp 2``."""
    return f"tp {tp}" + "".join(
        f", {name} {ranks}" for name, ranks in (("pp", pp), ("dcp", dcp)) if ranks > 1
    )


def _per_rank(result: EstimateResult) -> str:
    return " per rank" if result.model.tp * result.model.pp > 1 else ""


def _fit_answer(result: EstimateResult, many: Capacity, have: str) -> str:
    need = result.need
    fits = "fit in" if need.fits else "do not fit in"
    length = count_of(need.context_tokens, "token")
    return (
        f"{count_of(need.sequences, 'sequence')} of {length} {fits} {have}: they need"
        f" {format_size(need.rank_bytes)}{_per_rank(result)}, and {any_or_count_of(many.fits, 'sequence')}"
        f" {'fits' if many.fits == 1 else 'fit'}."
    )


def _length(capacity: Capacity) -> str:
    if capacity.fits is None:
        return "a sequence of any length"
    return count_of(capacity.fits, "token")


def _sequences(capacity: Capacity, result: EstimateResult) -> str:
    length = count_of(result.context_tokens, "token")
    return f"{any_or_count_of(capacity.fits, 'sequence')} of {length}"


def _while(tokens: int) -> str:
    return f" while each prefills {count_of(tokens, 'token')} at once"


def _format(result: EstimateResult) -> str:
    return formats_text(result.format_k, result.format_v)


# ---- the facts ------------------------------------------------------------------------------


def facts_of(result: EstimateResult) -> list[tuple[str, str]]:
    """Return the names and texts of the table below the first line."""
    model, sequence, answer = result.model, result.sequence, result.answer
    length = result.context_tokens
    rows = []
    if result.budget is not None:
        rows.append(("memory", _memory_text(result.budget)))
    if (model.tp, model.pp, model.dcp) != (1, 1, 1):
        ranks = ranks_text(model.tp, model.pp, model.dcp)
        rows.append(("rank", f"{ranks}: everything here is for the fullest rank"))
    rows += [
        ("format", _format_text(result)),
        ("a sequence", _sequence_text(sequence)),
        *(("layers" if i == 0 else "", _layer_text(item)) for i, item in enumerate(result.layers)),
    ]
    assumed = ", as no context is stated"
    whole = sequence.at_context_bytes % length == 0
    average = f"{sequence.at_context_bytes / length:,.{0 if whole else 1}f} B on average"
    packed = (
        f"{format_size(answer.committed_bytes)} committed, {format_size(answer.wasted_bytes)} wasted"
        f" ({result.policy} on {format_size(result.granule_bytes)})"
    )
    rows += [
        (
            "at context",
            f"{both(sequence.at_context_bytes)} for {count_of(length, 'token')}"
            + (assumed if result.context_assumed else ""),
        ),
        ("next token", f"{both(sequence.next_token_bytes)}, {average}"),
        ("packing", packed),
    ]
    # The first line has both; here is only what limits them, if it is not the budget.
    if answer.max_tokens is not None and answer.max_tokens.limit is not Limit.BUDGET:
        text = f"{any_or_count_of(answer.max_tokens.fits, 'token')}; {why(answer.max_tokens)}"
        rows.append(("max tokens", text))
    if answer.max_sequences is not None and answer.max_sequences.limit is not Limit.BUDGET:
        text = (
            f"{any_or_count_of(answer.max_sequences.fits, 'sequence')}; {why(answer.max_sequences)}"
        )
        rows.append(("sequences", text))
    if answer.max_tokens_each is not None and result.sequences > 1:
        text = f"{any_or_count_of(answer.max_tokens_each.fits, 'token')}; {why(answer.max_tokens_each)}"
        rows.append((f"each of {result.sequences:,}", text))
    return rows


def _format_text(result: EstimateResult) -> str:
    text = f"{_format(result)} ({result.format_summary}), {_ORIGINS[result.format_origin]}"
    if result.packed_format:
        text += f"; vLLM's FLASHMLA_SPARSE keeps it as --dtype {result.packed_format}"
    return text


_ORIGINS: Final = {
    FormatOrigin.GIVEN: "as given",
    FormatOrigin.CHECKPOINT: "as the checkpoint says",
    FormatOrigin.MODEL: "the model's own",
    FormatOrigin.SERVED: "as vLLM serves models of fp32 (llama.cpp: fp16)",
    FormatOrigin.ASSUMED: "assumed (vLLM: as the weights; llama.cpp: fp16)",
    FormatOrigin.ENGINE: "the engine's default",
}


def _sequence_text(sequence: SequenceBytes) -> str:
    text = f"{both(sequence.fixed_bytes)} + {slope_text(sequence)}"
    if sequence.saturation_tokens:
        text += f", from {sequence.saturation_tokens:,} on"
    return text


def _layer_text(layer: LayerBytes) -> str:
    parts = []
    if layer.bytes_per_token:
        parts.append(f"{layer.bytes_per_token:,} B a kept token")
    if layer.cross_attention_bytes:
        parts.append(
            f"{layer.cross_attention_bytes:,} B of cross attention over"
            f" {layer.cross_attention_tokens:,} positions"
        )
    if layer.state_bytes:
        parts.append(f"{layer.state_bytes:,} B of state")
    kind = f"{layer.kind.value} of the draft" if layer.draft else layer.kind.value
    return f"{len(layer.indices)} x {kind}: {', '.join(parts) or 'nothing'}"


def weights_text(budget: Budget, *, per_rank: bool) -> str:
    """Return how large the weights are, whether that is on each of several ranks, and its source."""
    each = " per rank" if per_rank else ""
    return f"{_about(budget)}{format_size(budget.weights_bytes)}{each}, {budget.weights_origin}"


def budget_text(budget: Budget) -> str:
    """Return the memory of a rank, and what is subtracted from it."""
    weights = f"minus weights of {weights_text(budget, per_rank=False)}"
    return _budget_text(budget, _gib(budget), weights)


def _memory_text(budget: Budget) -> str:
    """Return `budget_text` with the memory in GB too, but without the size of the weights.

    That is in the first line.
    """
    total = f"{_gib(budget)} ({budget.total_bytes / _GB:.2f} GB)"
    return _budget_text(budget, total, f"weights {budget.weights_origin}")


def _gib(budget: Budget) -> str:
    return f"{budget.total_bytes / (1 << 30):.2f} GiB"


def _budget_text(budget: Budget, total: str, weights: str) -> str:
    text = f"{total}, {budget.origin}; "
    text += weights if budget.weights_origin else "no weights subtracted"
    if budget.reserve_bytes:
        text += f"; minus {format_size(budget.reserve_bytes)} for other memory"
    return text


def _about(budget: Budget) -> str:
    return "about " if budget.weights_origin.startswith(("as published", "computed")) else ""


# ---- granules and policies ------------------------------------------------------------------


def _tensor_parts(result: EstimateResult) -> list[RenderableType]:
    if not result.tensors:
        return [paragraph("No layer keeps anything per token.")]
    granule = format_size(result.granule_bytes)
    sizes = [format_size(item.granule_bytes) for item in result.tensors[0].granules]
    headings = ["tensor", "of", "B/token", *sizes, f"tile {granule}"]
    rows = [
        [
            item.name,
            f"{item.layers} x {item.kind.value}",
            f"{item.bytes_per_token:,}",
            *(_fit_text(found) for found in item.granules),
            f"{_on(item, result.granule_bytes).tile_tokens:,}",
        ]
        for item in result.tensors
    ]
    title = f"Tokens per granule of each tensor (bytes left over), and tokens that tile {granule}"
    parts: list[RenderableType] = [paragraph(title), table(headings, rows, left=2, label=2)]
    blocks = {
        item.bytes_per_token: item.suggested_block_tokens
        for item in result.tensors
        if not item.block_tiles
    }
    for token_bytes, block in blocks.items():
        text = (
            f"A block of {result.block_tokens:,} tokens of {token_bytes:,} B straddles granules of"
            f" {granule}; {block:,} tokens do not."
        )
        parts.append(paragraph(text))
    return parts


def _on(item: TensorResult, granule: int) -> Fit:
    return next(found for found in item.granules if found.granule_bytes == granule)


def _fit_text(found: Fit) -> str:
    if not found.tokens:
        return f"0: {found.granules_per_token} granules a token"
    if not found.tail_bytes:
        return f"{found.tokens:,}"
    tail = percent(found.tail_bytes / found.granule_bytes)
    return f"{found.tokens:,} ({found.tail_bytes:,} B, {tail})"


def _policy_parts(result: EstimateResult) -> list[RenderableType]:
    threshold = percent(result.waste_threshold / 1000)
    headings = ["packing", "1 token", "wasted", f"under {threshold} waste from"]
    if result.budget is not None:
        headings += ["max tokens", "max sequences"]
    rows = []
    notes = []
    possible = [answer for answer in result.policies.values() if not answer.impossible]
    longest = {None if a.max_tokens is None else a.max_tokens.fits for a in possible}
    for name, answer in result.policies.items():
        if answer.impossible:
            notes.append(answer.impossible)
            continue
        rows.append(_policy_row(answer, name, chosen=name == result.policy))
        most = answer.max_tokens
        if most is not None and most.limit is Limit.STRIDE and len(longest) > 1:
            stride = any_or_count_of(most.fits, "token")
            notes.append(f"{name}: no sequence is longer than its stride of {stride} (--context)")
    title = (
        f"Packing sequences of {count_of(result.context_tokens, 'token')} on granules of"
        f" {format_size(result.granule_bytes)}, and the length from which less than {threshold} is"
        " wasted"
    )
    parts: list[RenderableType] = [paragraph(title), table(headings, rows)]
    return [*parts, *(paragraph(note, indent="  ") for note in notes)]


def _policy_row(answer: PolicyResult, name: str, *, chosen: bool) -> list[str]:
    return [
        f"{name} *" if chosen else name,
        format_size(answer.floor_bytes),
        waste_text(answer),
        "never" if answer.waste_ends_tokens is None else f"{answer.waste_ends_tokens:,}",
        *(
            capacity_text(capacity)
            for capacity in (answer.max_tokens, answer.max_sequences)
            if capacity is not None
        ),
    ]


def waste_text(answer: PolicyResult) -> str:
    """Return the waste of a sequence, and what part of its memory that is."""
    lost = answer.wasted_bytes / answer.committed_bytes if answer.committed_bytes else 0
    return f"{format_size(answer.wasted_bytes)} ({percent(lost)})"


def capacity_text(capacity: Capacity | None) -> str:
    """Return how many fit, in a table; empty without a budget."""
    if capacity is None:
        return ""
    return "any" if capacity.fits is None else f"{capacity.fits:,}"


# ---- where the values come from -------------------------------------------------------------


def _explain_parts(result: EstimateResult) -> list[RenderableType]:
    title, rows = explained(result)
    return [paragraph(title), table(["", "value", "from"], rows, prose=2)]


def _place(fact: Provenance, *, named: bool) -> str:
    """Return where a value came from, *named* or only by its kind."""
    kind, words = _PLACES[fact.source]
    if fact.where.startswith("built-in "):
        words = words.replace("built-in, from ", "")
    return words.format(fact.where) if named else kind


def explained(result: EstimateResult) -> tuple[str, list[list[str]]]:
    """Return a title, and the origin of each value of the geometry; a common origin is stated once."""
    facts = result.provenance or {}
    places = Counter((fact.source.value, fact.where) for fact in facts.values())
    usual, count = max(places.items(), key=lambda item: item[1], default=(("", ""), 0))
    title = f"Where the values of {result.model.architecture} come from"
    if count > 1:
        kind = "the defaults of " if usual[0] == Source.DEFAULT.value else ""
        title = (
            f"The values of {result.model.architecture} come from {kind}{printable(usual[1])}, "
            "unless a row says otherwise"
        )
    else:
        usual = ("", "")
    rows = []
    for name, fact in facts.items():
        place = (fact.source.value, fact.where)
        known = 2 if place == usual else int(fact.where == usual[1])
        other = "" if known == 2 else _place(fact, named=not known)
        text = f"{fact.detail} ({other})" if fact.detail and other else fact.detail or other
        rows.append([name, printable(str(fact.value)), printable(text)])
    return title, rows
