"""Frozen result types as the values that JSON has, and back."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: frozen results as objects, enums by value, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):  # a NamedTuple
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def decode(kind: type[_T], value: Any) -> _T:
    """Return *value* as *kind*, a dataclass; keys that it does not have are left out.

    The value must have passed its schema: nothing is checked here a second time.
    """
    return typing.cast("_T", _decode(kind, value))


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _decode(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(_decode(arguments[0], item) for item in value)
        return tuple(_decode(a, item) for a, item in zip(arguments, value, strict=True))
    if origin is Mapping:
        return value
    if isinstance(kind, type):
        if is_dataclass(kind):
            known = ((name, of) for name, of in _fields(kind) if name in value)
            return kind(**{name: _decode(of, value[name]) for name, of in known})
        if issubclass(kind, enum.Enum):
            return kind(value)
    return value


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))
