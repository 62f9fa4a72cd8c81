"""Results as JSON documents: a schema name, a version, integers with their unit in the key."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from vmtool import __version__
from vmtool.documents import plain

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def dump(body: dict[str, Any], file: IO[str]) -> None:
    """Write one document, in ASCII: file names may hold what no encoding has or a terminal obeys.

    NaN and infinity, which JSON does not have, are an error.
    """
    json.dump(body, file, indent=2, allow_nan=False)
    file.write("\n")
