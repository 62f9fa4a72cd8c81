#!/usr/bin/env python3
"""Write vmtool/schemas/*.json: the JSON Schema of every document, from the types that it is made of.

    make_schemas.py [--check]

The types, their docstrings and the tables below are the source; the files are what users read and
what vmtool checks its input against. ``--check`` writes nothing and exits 1 if a file is not what
would be written; a test does the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it also runs where vmtool is not installed

from vmtool.results import LEDGERS, PHASES
from vmtool.stats import SUB_BUCKET_BITS

SCHEMAS = ROOT / "vmtool" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Every document: its version, what it is, and the types whose fields are its keys.
DOCUMENTS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "vmtool.stress": (1, "A run of vmtool stress", ("vmtool.results:StressResult",)),
    "vmtool.compare": (
        1,
        "Two runs of vmtool stress held against each other",
        ("vmtool.report.compare:ComparedRuns", "vmtool.compare:Comparison"),
    ),
}

_INT64 = (1 << 63) - 1
#: Every integer is from 0 to 2**63 - 1, so that any reader can hold it, except these.
INTEGERS: dict[str, tuple[int | None, int]] = {
    "Checkpoint.process": (-_INT64, _INT64),
    "LedgerSlope.grown": (-_INT64, _INT64),
    "Accident.exit_code": (-_INT64, _INT64),
    "StressSettings.seed": (-_INT64, (1 << 64) - 1),
    "StressResult.base_addresses": (0, (1 << 64) - 1),
    "HistogramData.sum_ns": (0, (1 << 96) - 1),
    "HistogramData.sum_squares": (0, (1 << 160) - 1),
    "Difference.before": (None, (1 << 64) - 1),
    "Difference.after": (None, (1 << 64) - 1),
}
#: What a type alone does not say.
REFINEMENTS: dict[str, dict[str, Any]] = {
    "PhaseResult.phase": {"enum": list(PHASES)},
    "Change.phase": {"enum": list(PHASES)},
    "LedgerReading.ledger": {"enum": list(LEDGERS)},
    "LedgerSlope.ledger": {"enum": list(LEDGERS)},
    "HistogramData.sub_bucket_bits": {"const": SUB_BUCKET_BITS},
}


class Generator:
    """The definitions that one document needs, collected while its keys are described."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def document(self, name: str, version: int, title: str, kinds: tuple[str, ...]) -> Any:
        """Return the schema of the document *name*."""
        properties: dict[str, Any] = {
            "schema": {"const": name},
            "version": {"const": version},
            "vmtool": {"description": "The version that wrote it.", "type": "string"},
            "command": {
                "description": "The command line.",
                "type": "array",
                "items": {"type": "string"},
            },
        }
        for path in kinds:
            module, _, kind = path.partition(":")
            properties |= self.properties(getattr(importlib.import_module(module), kind))
        return {
            "$schema": DIALECT,
            "title": title,
            "description": "Keys that are not described here may be added without a new version.",
            "type": "object",
            "required": list(properties),
            "properties": properties,
            "$defs": dict(sorted(self.definitions.items())),
        }

    def properties(self, kind: type) -> dict[str, Any]:
        """Return the schema of every field of the dataclass *kind*."""
        told = describe(kind)[1]
        hints = typing.get_type_hints(kind)
        found = {}
        for field in dataclasses.fields(kind):
            place = f"{kind.__name__}.{field.name}"
            schema = self.schema(hints[field.name], place) | REFINEMENTS.get(place, {})
            if place == "HistogramData.buckets":
                schema["items"]["items"] = {"type": "integer", "minimum": 0, "maximum": _INT64}
            if field.name in told:
                schema = {"description": told[field.name], **schema}
            found[field.name] = schema
        return found

    def schema(self, kind: Any, place: str) -> dict[str, Any]:
        """Return the schema of the type *kind*, which stands at *place*."""
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            return self._union([self.schema(part, place) for part in inner])
        if origin is tuple and inner[-1] is Ellipsis:
            return {"type": "array", "items": self.schema(inner[0], place)}
        if origin is tuple:
            items = self.schema(inner[0], place)
            return {"type": "array", "minItems": len(inner), "maxItems": len(inner), "items": items}
        if origin is Mapping:
            values = {} if inner[1] is Any else self.schema(inner[1], place)
            return {"type": "object"} | ({"additionalProperties": values} if values else {})
        if dataclasses.is_dataclass(kind):
            return self._reference(typing.cast("type", kind))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if kind is int:
            low, high = INTEGERS.get(place, (0, _INT64))
            return {"type": "integer", "minimum": -high if low is None else low, "maximum": high}
        names = {bool: "boolean", float: "number", str: "string", types.NoneType: "null"}
        return {"type": names[kind]}

    def _union(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one schema for a choice; scalar types share theirs, others need ``anyOf``."""
        if all("type" in part for part in parts):
            merged = {key: value for part in parts for key, value in part.items()}
            return merged | {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}

    def _reference(self, kind: type) -> dict[str, Any]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        if name not in self.definitions:
            self.definitions[name] = {}  # a type that holds itself finds it here
            properties = self.properties(kind)
            self.definitions[name] |= {
                "description": describe(kind)[0],
                "type": "object",
                "required": list(properties),
                "properties": properties,
            }
        return {"$ref": f"#/$defs/{name}"}


def describe(kind: type) -> tuple[str, dict[str, str]]:
    """Return the first sentence of a docstring and the description of each attribute."""
    head, _, attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in attributes.split("\n\n")[0].splitlines():
        if match := re.fullmatch(r" {4}(\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] += " " + line.strip()
    return _plain(head.split("\n\n")[0]), {key: _plain(text) for key, text in found.items()}


def _plain(text: str) -> str:
    """Return a docstring's words without its markup; JSON's null is not called ``None``."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", " ".join(text.split()))
    return re.sub(r"\*(\w+)\*", r"\1", text.replace("``None``", "null").replace("``", ""))


def render(name: str) -> str:
    """Return the text of one schema file."""
    schema = Generator().document(name, *DOCUMENTS[name])
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the files, or say which are not current."""
    parser = argparse.ArgumentParser(description="Write the JSON Schemas of vmtool's documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if any differs")
    check = parser.parse_args().check
    stale = []
    for name in DOCUMENTS:
        path, text = SCHEMAS / f"{name}.json", render(name)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text, encoding="utf-8", newline="\n")
    if stale:
        print(f"{'not current' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
