"""Documents of earlier versions of vmtool, turned into the present ones."""

from __future__ import annotations

from typing import Any


def from_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a stress result of version 1, which vmtool 0.1 wrote, with the present keys."""
    return document
