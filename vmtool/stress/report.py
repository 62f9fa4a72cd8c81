"""What a worker tells its parent, and how it travels: one JSON object a line."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from vmtool.results import (  # noqa: TC001 - decoding reads the types
    CallFailure,
    Checkpoint,
    LedgerSlope,
    MethodResult,
    StressSettings,
    Verdict,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What one worker is to do.

    Attributes:
        settings: Of the whole run; ``budget_bytes`` is this worker's share.
        worker: Which worker it is.
        checks: Whether to take checkpoints of the ledgers.
    """

    settings: StressSettings
    worker: int
    checks: bool = True


@dataclass(frozen=True, slots=True)
class WorkerError:
    """A refusal that ended the worker before its first cycle, to be raised again by the parent."""

    exit_code: int
    kind: str
    message: str
    cause: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker found, so far or in the end.

    Attributes:
        complete: Whether it ended by itself with everything asked for.
        interrupted: Whether it was told to stop before.
        checkpoint_ns: Time in checkpoints.
        busy_ns: Time in rounds, checkpoints included.
        verdicts: Checks that only the worker can make.
    """

    worker: int
    complete: bool
    interrupted: bool
    overhead_ns: int
    base_addresses: tuple[int, ...]
    resident_before_bytes: int | None
    resident_after_bytes: int | None
    methods: tuple[MethodResult, ...]
    checkpoints: tuple[Checkpoint, ...]
    checkpoint_ns: int
    busy_ns: int
    slopes: tuple[LedgerSlope, ...]
    verdicts: tuple[Verdict, ...]
    failures: tuple[CallFailure, ...]


def encode(message: str, value: Any = None) -> str:
    """Return one line that carries *value* under the name *message*."""
    return json.dumps({"message": message, "value": _plain(value)}, separators=(",", ":")) + "\n"


def decode(cls: type[_T], value: Any) -> _T:
    """Return the instance of *cls* that :func:`encode` was given, from parsed JSON.

    Raises:
        TypeError, ValueError, KeyError: If *value* is something else.
    """
    return typing.cast("_T", _decode(cls, value))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        if value is None:
            return None
        return _decode(next(a for a in arguments if a is not types.NoneType), value)
    if origin is tuple:
        if arguments[-1] is ...:
            return tuple(_decode(arguments[0], item) for item in value)
        return tuple(_decode(a, item) for a, item in zip(arguments, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {f.name: _decode(hints[f.name], value[f.name]) for f in dataclasses.fields(kind)}
        return kind(**fields)  # type: ignore[operator]
    return value
