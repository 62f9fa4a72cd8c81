"""The formats of traces: which one a first line is of, and what a line of each means.

Sources: the columns of the Azure LLM inference traces (AzurePublicDataset, 2023 and 2024), of the
Mooncake traces (FAST 25), of BurstGPT, and the lengths that vLLM's benchmarks write.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.kv.traces.request import LineError, Request
from vmtool.kv.traces.values import date_ns, decimal_ns, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SECOND: Final = 10**9
_MILLISECOND: Final = 10**6
# Blocks of the longest prompt.
_MAX_PREFIX: Final = 1 << 17

_PROMPT: Final = (
    *("prompt_len", "prompt_length", "prompt_tokens", "input_len", "input_length"),
    *("input_tokens", "num_prefill_tokens", "num_prompt_tokens"),
)
_OUTPUT: Final = (
    *("output_len", "output_length", "output_tokens", "completion_tokens", "generated_tokens"),
    *("num_decode_tokens", "expected_output_len", "completion_len", "response_len"),
)
#: Keys of a time, with its unit.
_TIME: Final = {
    "arrival_time": _SECOND,
    "arrived_at": _SECOND,
    "arrival": _SECOND,
    "timestamp": _SECOND,
    "timestamp_ms": _MILLISECOND,
}


@dataclass(frozen=True, slots=True)
class Format:
    """How the lines of one trace are read.

    Attributes:
        name: ``azure``, ``burstgpt``, ``mooncake`` or ``jsonl``.
        heading: Whether the first line is no request.
        timed: Whether requests have times; else they arrive as the caller says.
        parse: Makes a request of a line; raises :class:`LineError`.
    """

    name: str
    heading: bool
    timed: bool
    parse: Callable[[str], Request]


def detect(first: str) -> Format:
    """Return the format of a trace by its first line.

    Raises:
        LineError: If it is of none, saying what was found.
    """
    if "\0" in first:
        raise LineError("is binary, not a trace")
    if first.lstrip().startswith("{"):
        return _detect_objects(_object(first))
    if first.lstrip().startswith("["):
        raise LineError("is one JSON array; a trace has one JSON object a line")
    columns = [name.strip().lower() for name in _cells(first)]
    found = {name: index for index, name in enumerate(columns)}
    for known in (_azure, _burstgpt):
        reader = known(found)
        if reader is not None:
            return reader
    shown = ", ".join(columns)[:60]
    raise LineError(
        f"has the columns {shown!r}, which no known trace has (Azure: TIMESTAMP, ContextTokens, "
        "GeneratedTokens; BurstGPT: Timestamp, Request tokens, Response tokens; JSON lines: "
        "prompt_len, output_len)"
    )


def _azure(columns: Mapping[str, int]) -> Format | None:
    wanted = ("timestamp", "contexttokens", "generatedtokens")
    if not all(name in columns for name in wanted):
        return None
    at, prompt, output = (columns[name] for name in wanted)

    def parse(line: str) -> Request:
        cells = _row(line, len(columns))
        return _request(
            date_ns(cells[at], "TIMESTAMP"),
            tokens(cells[prompt], "ContextTokens"),
            tokens(cells[output], "GeneratedTokens"),
        )

    return Format("azure", heading=True, timed=True, parse=parse)


def _burstgpt(columns: Mapping[str, int]) -> Format | None:
    wanted = ("timestamp", "request tokens", "response tokens")
    if not all(name in columns for name in wanted):
        return None
    at, prompt, output = (columns[name] for name in wanted)

    def parse(line: str) -> Request:
        cells = _row(line, len(columns))
        return _request(
            decimal_ns(cells[at], "Timestamp", _SECOND),
            tokens(cells[prompt], "Request tokens"),
            tokens(cells[output], "Response tokens"),
        )

    return Format("burstgpt", heading=True, timed=True, parse=parse)


def _detect_objects(keys: Mapping[str, Any]) -> Format:
    prompt = next((key for key in _PROMPT if key in keys), None)
    output = next((key for key in _OUTPUT if key in keys), None)
    if prompt is None or output is None:
        missing = "a length of the prompt" if prompt is None else "a length of the output"
        raise LineError(f"has no key for {missing} (such as prompt_len and output_len)")
    time = next((key for key in _TIME if key in keys), None)
    mooncake = "hash_ids" in keys or (time == "timestamp" and "input_length" in keys)
    # Mooncake's times are milliseconds; the same key elsewhere has seconds.
    unit = _MILLISECOND if mooncake else _TIME.get(time or "", _SECOND)

    def parse(line: str) -> Request:
        found = _object(line)
        for key in (prompt, output, time):
            if key is not None and key not in found:
                raise LineError(f"has no {key}")
        return _request(
            decimal_ns(found[time], time, unit) if time is not None else 0,
            tokens(found[prompt], prompt),
            tokens(found[output], output),
            _prefix(found.get("hash_ids", ())),
        )

    name = "mooncake" if mooncake else "jsonl"
    return Format(name, heading=False, timed=time is not None, parse=parse)


def _request(at: int, prompt: int, output: int, prefix: tuple[int, ...] = ()) -> Request:
    if not prompt + output:
        raise LineError("has no tokens")
    return Request(at, prompt, output, prefix)


def _prefix(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_PREFIX:
        raise LineError("hash_ids is not a list of numbers")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or item.bit_length() > 64:
            raise LineError("hash_ids is not a list of numbers of 64 bits")
    return tuple(value)


def _object(line: str) -> dict[str, Any]:
    try:
        # Fractions stay text, so that times are exact.
        found = json.loads(line, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or "too deep or too long a number"
        raise LineError(f"is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise LineError("is not a JSON object")
    return found


def _row(line: str, columns: int) -> Sequence[str]:
    cells = _cells(line)
    if len(cells) != columns:
        raise LineError(f"has {len(cells)} columns instead of {columns}")
    return cells


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise LineError(f"is not CSV: {error}") from None
