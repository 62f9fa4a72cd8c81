#!/usr/bin/env python3
"""Write vmtool/schemas/*.json: the JSON Schema of every document, from what it is made of.

    make_schemas.py [--check]

``_documents.py``, the types it names, their docstrings and the tables below are the source; the
files are what users read and what vmtool checks its input against. ``--check`` writes nothing and
exits 1 if a file is not what would be written; a test does the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _documents import DOCUMENTS, MODULES, SIGNED, Document, Either, Told

from vmtool.results.stress import COUNTERS, DEVICE_COUNTERS, PHASES
from vmtool.stats import SUB_BUCKET_BITS

SCHEMAS = Path(__file__).resolve().parent.parent / "vmtool" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_INT64 = (1 << 63) - 1
#: Integers are not negative, except these. The second number is a limit where the document is read
#: back, so that any reader can hold it; elsewhere it is 2**63 - 1.
INTEGERS: dict[str, tuple[int | None, int]] = {
    "Checkpoint.process": (-_INT64, _INT64),
    "CounterSlope.grown": (-_INT64, _INT64),
    "Accident.exit_code": (-_INT64, _INT64),
    "StressSettings.seed": (-_INT64, (1 << 64) - 1),
    "StressResult.base_addresses": (0, (1 << 64) - 1),
    "HistogramData.sum_ns": (0, (1 << 96) - 1),
    "HistogramData.sum_squares": (0, (1 << 160) - 1),
    "DeviceInfo.attributes": (-1, _INT64),  # HOST_NUMA_ID where the machine has no NUMA
    "Difference.before": (None, _INT64),
    "Difference.after": (None, _INT64),
}
#: What a type alone does not say.
REFINEMENTS: dict[str, dict[str, Any]] = {
    "PhaseResult.phase": {"enum": list(PHASES)},
    "Change.phase": {"enum": list(PHASES)},
    "CounterReading.ledger": {"enum": [*COUNTERS, *DEVICE_COUNTERS]},
    "CounterSlope.ledger": {"enum": [*COUNTERS, *DEVICE_COUNTERS]},
    "HistogramData.sub_bucket_bits": {"const": SUB_BUCKET_BITS},
}


class Generator:
    """The schema of one document, and the definitions that it needs."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._definitions: dict[str, Any] = {}
        self._names = {name: value for module in MODULES for name, value in vars(module).items()}

    def schema(self, name: str) -> dict[str, Any]:
        """Return the schema of the document *name*."""
        head = {
            "schema": {"const": name},
            "version": {"const": self._document.version},
            "vmtool": {"description": "The version that wrote it.", "type": "string"},
            "command": {
                "description": "The command line.",
                "type": "array",
                "items": {"type": "string"},
            },
        }
        forms = [self._form(head, bodies) for bodies in self._document.forms]
        return {
            "$schema": DIALECT,
            "title": self._document.title,
            "description": "Keys that are not described here may be added without a new version.",
            **(forms[0] if len(forms) == 1 else {"anyOf": forms}),
            "$defs": dict(sorted(self._definitions.items())),
        }

    def _form(self, head: dict[str, Any], bodies: tuple[Any, ...]) -> dict[str, Any]:
        """Return the schema of an object with the keys of *head* and of all *bodies*."""
        keys, required = dict(head), list(head)
        for body in bodies:
            part = self._object(body, "") if isinstance(body, dict) else self._fields(body)
            keys |= part["properties"]
            required += part["required"]
        return {"type": "object", "required": required, "properties": keys}

    def _fields(self, kind: type) -> dict[str, Any]:
        """Return the schema of an object; what has a default may be missing in an older file."""
        properties = self._properties(kind)
        required = [name for name in properties if name not in _defaults(kind)]
        return {"type": "object", "required": required, "properties": properties}

    def _properties(self, kind: type) -> dict[str, Any]:
        """Return the schema of every field of *kind*."""
        told = describe(kind)[1]
        hints = typing.get_type_hints(kind, self._names | vars(sys.modules[kind.__module__]))
        found = {}
        for field in _field_names(kind):
            if field in self._document.without:
                continue
            place = f"{kind.__name__}.{field}"
            schema = self._kind(hints[field], place) | REFINEMENTS.get(place, {})
            found[field] = _told(schema, told.get(field))
        return found

    def _kind(self, kind: Any, place: str) -> dict[str, Any]:
        """Return the schema of *kind*, which stands at *place*."""
        if isinstance(kind, Told):
            return _told(self._kind(kind.kind, place), kind.description)
        if isinstance(kind, Either):
            return self._choice([self._kind(part, place) for part in kind.kinds])
        if isinstance(kind, dict):
            return self._object(kind, place)
        if isinstance(kind, list):
            return {"type": "array", "items": self._kind(kind[0], place)}
        if isinstance(kind, type) and _field_names(kind):
            return self._reference(kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if typing.get_origin(kind) is None:
            return self._scalar(kind, place)
        return self._generic(kind, place)

    def _generic(self, kind: Any, place: str) -> dict[str, Any]:
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            return self._choice([self._kind(part, place) for part in inner])
        if origin is Mapping:
            values = {} if inner[1] is Any else self._kind(inner[1], place)
            return {"type": "object"} | ({"additionalProperties": values} if values else {})
        if origin is not tuple:
            raise TypeError(f"{place}: no schema for {kind}")
        size = {} if inner[-1] is Ellipsis else {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", **size, "items": self._kind(inner[0], place)}

    def _scalar(self, kind: Any, place: str) -> dict[str, Any]:
        if kind is SIGNED:
            return {"type": "integer"}
        if kind is int:
            low, high = INTEGERS.get(place, (0, _INT64))
            limits = {} if low is None else {"minimum": low}
            return {"type": "integer", **limits} | (
                {"maximum": high} if self._document.bounded else {}
            )
        names = {bool: "boolean", float: "number", str: "string", types.NoneType: "null"}
        return {"type": names[types.NoneType if kind is None else kind]}

    def _object(self, keys: dict[str, Any], place: str) -> dict[str, Any]:
        found = {key.rstrip("?"): self._kind(kind, place) for key, kind in keys.items()}
        others = found.pop("*", None)
        required = [key for key in keys if not key.endswith(("?", "*"))]
        return {
            "type": "object",
            **({"required": required} if required else {}),
            **({"properties": found} if found else {}),
            **({} if others is None else {"additionalProperties": others}),
        }

    def _choice(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one schema for a choice; scalar types share theirs, others need ``anyOf``."""
        if all(part.get("type") not in (None, "object", "array") for part in parts):
            merged = {key: value for part in parts for key, value in part.items()}
            return merged | {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}

    def _reference(self, kind: type) -> dict[str, Any]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        if name not in self._definitions:
            self._definitions[name] = {}  # a type that holds itself finds it here
            self._definitions[name] |= _told(self._fields(kind), describe(kind)[0])
        return {"$ref": f"#/$defs/{name}"}


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass or a named tuple; nothing for other types."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", ())


def _defaults(kind: type) -> set[str]:
    """Return the fields that have a default."""
    if not dataclasses.is_dataclass(kind):
        return set(getattr(kind, "_field_defaults", ()))
    missing = dataclasses.MISSING
    return {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is not missing or field.default_factory is not missing
    }


def _told(schema: dict[str, Any], description: str | None) -> dict[str, Any]:
    return {"description": description, **schema} if description else schema


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
    schema = Generator(DOCUMENTS[name]).schema(name)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the files, or say which are not current."""
    parser = argparse.ArgumentParser(description="Write the JSON Schemas of vmtool's documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if any differs")
    check = parser.parse_args().check
    wanted = {SCHEMAS / f"{name}.json": render(name) for name in DOCUMENTS}
    stale = []
    for path in {*wanted, *SCHEMAS.iterdir()}:
        text = wanted.get(path)
        if text is not None and path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not check and text is None:
            path.unlink()
        elif not check:
            path.write_text(text or "", encoding="utf-8", newline="\n")
    if stale:
        print(f"{'not current' if check else 'written'}: {', '.join(sorted(stale))}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
