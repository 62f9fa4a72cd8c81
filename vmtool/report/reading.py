"""Result files as input: bounded, checked against their schema, and never trusted."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn

from vmtool.documents import decode
from vmtool.errors import InputError
from vmtool.report.schema import load_schema
from vmtool.report.validate import SchemaViolation, validate
from vmtool.results.stress import STRESS_SCHEMA, STRESS_VERSION, StressResult
from vmtool.stats import SUB_BUCKET_BITS, bucket_start

if TYPE_CHECKING:
    from vmtool.results.stress import CallResult, PhaseResult
    from vmtool.stats import HistogramData

#: A run's document has some 100 KB; the bound keeps a wrong file from filling memory.
MAX_BYTES: Final = 64 << 20
_MAX_DIGITS: Final = 80
# Where the largest sample of 63 bits is counted.
_LAST_BUCKET: Final = ((64 - SUB_BUCKET_BITS) << SUB_BUCKET_BITS) - 1
# What could steer a terminal or hide text, and half characters, which cannot be written.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run of stress as a file holds it.

    Attributes:
        path: The file.
        command: The command line that made it.
        vmtool: The version that made it.
    """

    path: str
    command: tuple[str, ...]
    vmtool: str
    result: StressResult


def read_run(path: str) -> StoredRun:
    """Return the run of stress in the file at *path*.

    Raises:
        InputError: If the file cannot be read, is too big, is not JSON, or is not a document of
            a version that this vmtool knows; the message names the place.
    """
    document = read_document(path)
    _check_kind(path, document)
    try:
        validate(document, load_schema(STRESS_SCHEMA))
    except SchemaViolation as violation:
        raise InputError(path, violation.problem, field=violation.field or None) from violation
    result = decode(StressResult, document)
    _check_histograms(path, result)
    return StoredRun(path, tuple(document["command"]), document["vmtool"], result)


def read_document(path: str) -> dict[str, Any]:
    """Return the JSON object in the file at *path*.

    Raises:
        InputError: If there is none, or it holds what JSON forbids (NaN, infinity) or what has no
            single meaning (a key given twice).
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(path, f"cannot be read: {reason}") from error
    if len(content) > MAX_BYTES:
        raise InputError(path, f"is larger than {MAX_BYTES >> 20} MiB, which no result is")
    try:
        text = content.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(path, f"is not JSON: {error.msg}", field=where) from error
    except RecursionError as error:
        raise InputError(path, "is nested too deeply") from error
    except ValueError as error:
        raise InputError(path, str(error)) from error
    if ("\\u" in text or _UNPRINTABLE.search(text)) and not _printable(value):
        raise InputError(path, "a string in it holds control characters")
    if not isinstance(value, dict):
        raise InputError(path, "holds no JSON object, which a document of vmtool is")
    return value


def _check_kind(path: str, document: dict[str, Any]) -> None:
    kind, version = document.get("schema"), document.get("version")
    if kind != STRESS_SCHEMA:
        hint = "write one with: vmtool stress --json -o FILE"
        if isinstance(kind, str):
            problem = f"is a document {kind[:60]!r}, not {STRESS_SCHEMA!r}"
            raise InputError(path, problem, field="schema", hint=hint)
        problem = f"is no document of vmtool: its 'schema' is not {STRESS_SCHEMA!r}"
        raise InputError(path, problem, hint=hint)
    if isinstance(version, int) and version > STRESS_VERSION:
        raise InputError(
            path,
            f"has version {version if version < 10**9 else 'over a billion'}; this vmtool knows "
            f"{STRESS_VERSION}",
            field="version",
            hint="read it with the vmtool that wrote it, or a newer one",
        )


def _check_histograms(path: str, result: StressResult) -> None:
    """Check what no schema can say: that a histogram agrees with itself."""
    for i, method in enumerate(result.methods):
        parts: dict[str, PhaseResult | CallResult] = {
            **{f"phases[{j}]": phase for j, phase in enumerate(method.phases)},
            **{f"calls[{j}]": call for j, call in enumerate(method.calls)},
        }
        for name, part in parts.items():
            problem = _inconsistency(part.histogram)
            if problem is not None:
                raise InputError(path, problem, field=f"methods[{i}].{name}.histogram")
            if part.summary.samples != part.histogram.count:
                raise InputError(
                    path,
                    f"{part.summary.samples} is not the histogram's {part.histogram.count}",
                    field=f"methods[{i}].{name}.summary.samples",
                )


def _inconsistency(data: HistogramData) -> str | None:
    indexes = [index for index, _ in data.buckets]
    if indexes and indexes[-1] > _LAST_BUCKET:
        return f"bucket {indexes[-1]} is beyond the last, {_LAST_BUCKET}"
    if any(low >= high for low, high in pairwise(indexes)):
        return "the buckets do not ascend"
    if sum(count for _, count in data.buckets) != data.count:
        return "the buckets do not add up to count"
    if indexes and not (
        bucket_start(indexes[0]) <= data.min_ns < bucket_start(indexes[0] + 1)
        and bucket_start(indexes[-1]) <= data.max_ns < bucket_start(indexes[-1] + 1)
    ):
        return "min_ns and max_ns are not in the first and the last bucket"
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:60]!r} is given twice in one object")
            seen.add(key)
    return value


def _printable(value: Any) -> bool:
    """Return whether no string in *value* holds control characters."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest.extend(item)
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
        elif isinstance(item, str) and _UNPRINTABLE.search(item):
            return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} does not fit a floating-point number")
    return number


def _bounded(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits, over {_MAX_DIGITS}")
    return int(text)
