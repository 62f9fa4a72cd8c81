"""The published JSON Schemas of the documents that vmtool writes."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UsageError

if TYPE_CHECKING:
    from vmtool.report.validate import Schema

_DIRECTORY: Final = Path(__file__).resolve().parent.parent / "schemas"


def schema_names() -> tuple[str, ...]:
    """Return the name of every document that has a schema, such as ``vmtool.stress``."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.json")))


@cache
def load_schema(name: str) -> Schema:
    """Return the schema of the document called *name*; ``vmtool.`` in front may be left out.

    Raises:
        UsageError: If there is no such document.
    """
    names = schema_names()
    full = name if name.startswith("vmtool.") else f"vmtool.{name}"
    if full not in names:
        near = get_close_matches(name, [known.removeprefix("vmtool.") for known in names], n=1)
        raise UsageError(
            f"no document is called {name!r}",
            hint=f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}",
        )
    schema: dict[str, Any] = json.loads((_DIRECTORY / f"{full}.json").read_text(encoding="utf-8"))
    return schema
