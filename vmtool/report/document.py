"""Results as JSON documents: a schema name, a version, integers with their unit in the key."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import IO, Any

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


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: frozen results as objects, enums by value, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def dump(body: dict[str, Any], file: IO[str]) -> None:
    """Write one document; NaN and infinity, which JSON does not have, are an error."""
    json.dump(body, file, indent=2, ensure_ascii=False, allow_nan=False)
    file.write("\n")
