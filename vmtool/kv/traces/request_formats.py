"""A request of a trace, and the line formats of trace files, read exactly and checked for range."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


#: No model's context is longer; a larger number is a mistake or an attack.
MAX_TOKENS: Final = 1 << 26
#: Tokens of one block of Mooncake's ``hash_ids``.
PREFIX_TOKENS: Final = 512
# Blocks of the longest prompt.
_MAX_PREFIX: Final = 1 << 17
_SECOND: Final = 10**9
_MILLISECOND: Final = 10**6
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - only differences count
_DATE: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):([0-5]\d)(?:\.(\d{1,9})\d*)?(?:Z|[+-]00:?00)?", re.ASCII
)
# A date is some 56 years after the epoch, and numbers may count from there as well; only the
# distance to the first one must be small.
_MAX_SINCE_EPOCH: Final = 1 << 38
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
#: Arrival time since any moment in ns, prompt tokens, output tokens, names of the prompt's blocks.
Row: TypeAlias = tuple[int, int, int, tuple[int, ...]]


class Request(NamedTuple):  # a tuple is made fast, and a trace may have millions
    """The request of one line of a trace.

    Attributes:
        arrival_ns: When it arrives, after the first request of the trace.
        prompt_tokens: Tokens that are there at once.
        output_tokens: Tokens that are generated one by one.
        prefix: Names of the prompt's blocks of :data:`PREFIX_TOKENS` tokens, from its beginning:
            requests whose first names are equal have these blocks in common.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


class LineError(ValueError):
    """A line that is not a request; the message says why."""


@dataclass(frozen=True, slots=True)
class Format:
    """How the lines of one trace are read.

    Attributes:
        name: ``azure``, ``burstgpt``, ``mooncake`` or ``jsonl``.
        heading: Whether the first line is a heading.
        timed: Whether requests have times; else they arrive as the caller says.
        parse: Makes a request of a line; raises :class:`LineError`.
    """

    name: str
    heading: bool
    timed: bool
    parse: Callable[[str], Row]


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
        raise LineError("is one JSON array; a trace has one JSON object per line")
    columns = [name.strip().lower() for name in _cells(first)]
    found = {name: index for index, name in enumerate(columns)}
    for name, labels, read_time in _TABLES:
        if all(label.lower() in found for label in labels):
            return _table(name, labels, read_time, found)
    shown = ", ".join(columns)[:60]
    raise LineError(
        f"has the columns {shown!r}, which no supported trace has (Azure: TIMESTAMP, ContextTokens, "
        "GeneratedTokens; BurstGPT: Timestamp, Request tokens, Response tokens; JSON lines: "
        "prompt_len, output_len)"
    )


def _table(
    name: str,
    labels: Sequence[str],
    read_time: Callable[[str, str], int],
    columns: Mapping[str, int],
) -> Format:
    """Return the format of a table with *labels* above the time, the prompt and the output."""
    time, prompt, output = labels
    at, prompt_at, output_at = (columns[label.lower()] for label in labels)

    def parse(line: str) -> Row:
        cells = _row(line, len(columns))
        return _request(
            read_time(cells[at], time),
            _token_count(cells[prompt_at], prompt),
            _token_count(cells[output_at], output),
        )

    return Format(name, heading=True, timed=True, parse=parse)


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

    def parse(line: str) -> Row:
        found = _object(line)
        for key in (prompt, output, time):
            if key is not None and key not in found:
                raise LineError(f"has no {key}")
        return _request(
            _decimal_ns(found[time], time, unit) if time is not None else 0,
            _token_count(found[prompt], prompt),
            _token_count(found[output], output),
            _prefix(found.get("hash_ids", ())),
        )

    name = "mooncake" if mooncake else "jsonl"
    return Format(name, heading=False, timed=time is not None, parse=parse)


def _request(at: int, prompt: int, output: int, prefix: tuple[int, ...] = ()) -> Row:
    if not prompt + output:
        raise LineError("has no tokens")
    return at, prompt, output, prefix


def _prefix(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_PREFIX:
        raise LineError("hash_ids is not a list of numbers")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or item.bit_length() > 64:
            raise LineError("hash_ids is not a list of numbers of 64 bits")
    return tuple(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise LineError(f"has the key {_shown(twice)} twice")
    return found


_DECODER: Final = json.JSONDecoder(parse_float=str, parse_constant=str, object_pairs_hook=_unique)


def _object(line: str) -> dict[str, Any]:
    try:
        # Fractions stay text, so that times are exact.
        found = _DECODER.decode(line)
    except LineError:
        raise
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or "nesting is too deep, or a number is too long"
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


def _token_count(value: Any, name: str) -> int:
    """Return *value*, a JSON number or the text of one, as a count of tokens.

    Raises:
        LineError: If it is not a whole number from 0 to the most that a request may have.
    """
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 9:
        number = int(value)  # nearly all
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.isascii() and len(value) <= 20:
        text = value.strip()
        whole, _, rest = text.partition(".")  # spreadsheets write 12.0
        if not whole.isdigit() or rest.strip("0"):
            raise LineError(f"{name} {_shown(value)} is not a count of tokens")
        number = int(whole)
    else:
        raise LineError(f"{name} {_shown(value)} is not a count of tokens")
    if not 0 <= number <= MAX_TOKENS:
        raise LineError(f"{name} {_shown(number)} is not from 0 to {MAX_TOKENS}")
    return number


def _decimal_ns(value: Any, name: str, unit_ns: int) -> int:
    """Return *value*, a number of units of *unit_ns*, in whole nanoseconds.

    Raises:
        LineError: If it is no finite number from 0 to some 8,700 years.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise LineError(f"{name} {_shown(value)} is not a time")
    if isinstance(value, str) and len(value) > 40:
        raise LineError(f"{name} {_shown(value)} is not a time")
    limit = _MAX_SINCE_EPOCH * 10**9 // unit_ns
    if isinstance(value, int):
        if not 0 <= value <= limit:
            raise LineError(f"{name} {_shown(value)} is not from 0 to {limit}")
        return value * unit_ns
    try:
        number = Decimal(value.strip())
    except InvalidOperation:
        raise LineError(f"{name} {_shown(value)} is not a time") from None
    # The order matters: comparing NaN raises, and 1e999999999 must never be written out.
    if not number.is_finite() or number < 0 or number > limit:
        raise LineError(f"{name} {_shown(value)} is not from 0 to {limit}")
    return int(number * unit_ns)


def _date_ns(text: str, name: str) -> int:
    """Return a date and time such as ``2023-11-16 18:17:03.9799600`` in ns after 1970.

    Raises:
        LineError: If it is none.
    """
    match = _DATE.fullmatch(text.strip()) if len(text) <= 64 else None
    if match is None:
        raise LineError(f"{name} {_shown(text)} is not a date and time")
    minute, second, fraction = match.groups()
    try:
        since_ns = _minute_ns(minute)
    except ValueError:
        raise LineError(f"{name} {_shown(text)} is not a date and time") from None
    if not 0 <= since_ns < _MAX_SINCE_EPOCH * _SECOND:
        raise LineError(f"{name} {_shown(text)} is not after 1970")
    return since_ns + int(second) * _SECOND + int((fraction or "").ljust(9, "0"))


@lru_cache(maxsize=64)
def _minute_ns(text: str) -> int:
    since = datetime.fromisoformat(text) - _EPOCH
    return (since.days * 86400 + since.seconds) * _SECOND


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    if isinstance(value, (dict, list)):
        return "(a list or an object)"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _seconds_ns(text: str, name: str) -> int:
    return _decimal_ns(text, name, _SECOND)


#: Tables by the columns of their time, prompt and output, and how the time is read.
_TABLES: Final = (
    ("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date_ns),
    ("burstgpt", ("Timestamp", "Request tokens", "Response tokens"), _seconds_ns),
)
