"""Results as JSON: one type describes a document, writes it, checks it and reads it back.

msgspec does the work. It is given what Python's own :mod:`json` has read, because JSON from a file
must first pass checks that no type can state: no key twice, no control characters, bounded depth.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import msgspec

from vmtool.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")

#: A run's document has some 100 KB; the bound keeps a wrong file from filling memory.
MAX_BYTES: Final = 64 << 20
_MAX_DEPTH: Final = 64
_MAX_DIGITS: Final = 40
#: What could steer a terminal or hide text, and unpaired surrogates, which cannot be written.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: The same in JSON's ASCII; the first two alternatives are what must be left alone: an escaped
#: backslash, and a pair of surrogates, which is one character.
_UNPRINTABLE_ESCAPE: Final = re.compile(
    r"\\\\|\\ud[89ab]..\\ud[c-f]..|(\\[bfr]|\\u(?:00[01789].|202[a-e]|206[6-9]|d[89a-f]..))"
)
_AT: Final = re.compile(r"(.*) - at `\$\.?(.*?)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_TYPE: Final = re.compile(r"`(.*?)`")
#: The same as bytes, for ASCII without escapes.
_CONTROL: Final = bytes([*range(9), *range(0x0B, 0x20), 0x7F])
_DECODER: Final = msgspec.json.Decoder()
#: What JSON calls Python's types.
_JSON_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}


class DocumentError(ValueError):
    """A value that is not what its type says.

    Attributes:
        field: The place, such as ``phases[0].count``; empty for the document itself.
        problem: What is wrong there.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: dataclasses as objects, enums by value, tuples as arrays."""
    return msgspec.to_builtins(value, str_keys=True)


def encode(value: Any, head: Mapping[str, Any] | None = None, *, indent: int | None = 2) -> str:
    """Return *value* as JSON text, with the keys of *head* first.

    It is ASCII, and what :func:`parse` refuses in a string, such as a byte of a file's name that is
    not UTF-8, is written as the text of its escape.

    Raises:
        ValueError: If a number is NaN or infinite, which JSON does not have.
    """
    body = plain(value)
    separators = (",", ":") if indent is None else None
    whole = {**head, **body} if head is not None else body
    text = json.dumps(whole, indent=indent, allow_nan=False, separators=separators)
    return (_UNPRINTABLE_ESCAPE.sub(_as_text, text) if "\\" in text else text) + "\n"


def _as_text(found: re.Match[str]) -> str:
    return f"\\{found[1]}" if found[1] else found[0]


def decode(kind: type[_T], value: Any) -> _T:
    """Return *value*, as :mod:`json` reads it, as *kind*; keys that *kind* lacks are ignored.

    Raises:
        DocumentError: If a key is missing or a value has another type.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        problem, field = (match[1], match[2]) if match else (str(error), "")
        if missing := _MISSING.fullmatch(problem):
            field, problem = f"{field}.{missing[1]}".lstrip("."), "is missing"
        problem = _TYPE.sub(_as_json_says, problem)
        raise DocumentError(field, f"{problem[0].lower()}{problem[1:]}") from error


def _as_json_says(found: re.Match[str]) -> str:
    """Return the alternatives of a type in JSON's words: ``int | null`` is ``integer or null``."""
    return " or ".join(_JSON_TYPES.get(name, name) for name in found[1].split(" | "))


def parse(path: str, content: bytes | str) -> dict[str, Any]:
    """Return the JSON object in *content*, which may be hostile.

    Args:
        path: What to call it in a message.
        content: JSON; as bytes in UTF-8.

    Raises:
        InputError: If it is not a JSON object, holds what JSON forbids (NaN, infinity) or what is
            ambiguous (a duplicate key), is nested too deeply, or holds control characters.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(path, f"is not JSON: {error.msg}", field=where) from error
    except RecursionError as error:
        raise InputError(path, "is nested too deeply") from error
    except ValueError as error:
        raise InputError(path, str(error)) from error
    if not isinstance(value, dict):
        raise InputError(path, "is JSON, but not an object of named fields")
    suspicious = "\\u" in text or _UNPRINTABLE.search(text) is not None
    depth = _depth(value, check_text=suspicious)
    if depth is None:
        raise InputError(path, "a string in it contains control characters")
    if depth > _MAX_DEPTH:
        raise InputError(path, "is nested too deeply")
    return value


def parse_quickly(path: str, content: bytes) -> dict[str, Any]:
    """Return what :func:`parse` returns, in a third of the time for what vmtool writes.

    That is ASCII without a key given twice: as many keys are left when it is read as it has. Whatever
    else there is, and what is wrong, :func:`parse` says. Depth is bounded by Python's stack, and
    the digits of an integer by the document.

    Args:
        path: What to call it in a message.
        content: JSON in UTF-8.

    Raises:
        InputError: As by :func:`parse`.
    """
    if content.isascii() and b"\\u" not in content:
        with suppress(msgspec.DecodeError, RecursionError, OverflowError):
            value = _DECODER.decode(content)
            keys = msgspec.json.format(content, indent=-1).count(b'":')
            if (
                isinstance(value, dict)
                and len(content.translate(None, _CONTROL)) == len(content)
                and msgspec.json.encode(value).count(b'":') == keys
            ):
                return value
    return parse(path, content)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key[:60]!r} in one object")
            seen.add(key)
    return value


def _depth(value: Any, *, check_text: bool) -> int | None:
    """Return how deeply *value* is nested; ``None`` if a string in it contains control characters."""
    depth = 0
    level = [value]
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
                if check_text and any(map(_UNPRINTABLE.search, item)):
                    return None
            elif isinstance(item, list):
                inner.extend(item)
            elif check_text and isinstance(item, str) and _UNPRINTABLE.search(item):
                return None
        level = inner
        depth += 1
    return depth - 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large for a floating-point number")
    return number


def _bounded(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits, over {_MAX_DIGITS}")
    return int(text)
