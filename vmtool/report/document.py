"""Documents of commands whose result type is not in vmtool.results yet; it goes when all are."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from vmtool import __version__


def document(
    schema: str, version: int, *, command: list[str], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a document that names what it is and what made it.

    Args:
        schema: Such as ``vmtool.granularity``.
        version: Raised when a key changes its meaning; new keys do not raise it.
        command: The command line.
        body: The result's own keys; dataclasses and enums inside are converted.
    """
    head = {"schema": schema, "version": version, "vmtool": __version__, "command": command}
    return {**head, **{key: plain(value) for key, value in body.items()}}


def dumps(body: dict[str, Any]) -> str:
    """Return one document, in ASCII: file names may hold what no encoding has or a terminal obeys.

    NaN and infinity, which JSON does not have, are an error.
    """
    return json.dumps(body, indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return *value* as JSON has it; a ``NamedTuple`` is an object here, unlike in msgspec."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value
