"""Whether a document is what its JSON Schema says: the part of draft 2020-12 that ours use.

The published schemas are also what vmtool checks a result file against before it reads it, so
there is one description of a document and not two. A test holds this against another
implementation of the standard. One difference is meant: ``1.0`` is no integer here, because the
code that follows computes with exact integers.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
#: Keywords that assert something; the rest of :data:`KEYWORDS` only describes.
_ASSERTIONS: Final = (
    *("$ref", "anyOf", "type", "const", "enum", "minimum", "maximum"),
    *("required", "properties", "additionalProperties", "items", "minItems", "maxItems"),
)
KEYWORDS: Final = frozenset(
    (*_ASSERTIONS, "$schema", "$id", "$defs", "title", "description", "examples")
)


class SchemaViolation(Exception):  # noqa: N818 - it describes a document, not a failure of ours
    """The first place where a document is not what its schema says.

    Attributes:
        field: The place, such as ``phases[0].count``; empty for the document itself.
        problem: What is wrong there.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


def validate(value: Any, schema: Schema) -> None:
    """Check *value*, as :mod:`json` reads it, against *schema*.

    Raises:
        SchemaViolation: At the first difference.
    """
    _check(value, schema, schema.get("$defs", {}), "")


def _check(value: Any, schema: Schema, definitions: dict[str, Schema], field: str) -> None:
    if "$ref" in schema:
        _check(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, field)
    if "anyOf" in schema:
        _check_any(value, schema["anyOf"], definitions, field)
    _check_type(value, schema, field)
    if "const" in schema and not _same(value, schema["const"]):
        raise SchemaViolation(field, f"{_show(value)} is not {_show(schema['const'])}")
    if "enum" in schema and not any(_same(value, known) for known in schema["enum"]):
        known = ", ".join(_show(item) for item in schema["enum"])
        raise SchemaViolation(field, f"{_show(value)} is none of {known}")
    if isinstance(value, dict):
        _check_object(value, schema, definitions, field)
    elif isinstance(value, list):
        _check_array(value, schema, definitions, field)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(value, schema, field)


def _check_any(
    value: Any, choices: list[Schema], definitions: dict[str, Schema], field: str
) -> None:
    """Check that one of *choices* fits; the first that does not says why none does."""
    first: SchemaViolation | None = None
    for choice in choices:
        try:
            _check(value, choice, definitions, field)
        except SchemaViolation as violation:
            first = first or violation
        else:
            return
    if first is not None:
        raise first


def _check_type(value: Any, schema: Schema, field: str) -> None:
    if "type" not in schema:
        return
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_has_type(value, name) for name in names):
        raise SchemaViolation(field, f"{_show(value)} is not of type {' or '.join(names)}")


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # an int to Python, and no number to JSON
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _check_object(
    value: dict[str, Any], schema: Schema, definitions: dict[str, Schema], field: str
) -> None:
    for key in schema.get("required", ()):
        if key not in value:
            raise SchemaViolation(_join(field, key), "is missing")
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in properties:
            _check(item, properties[key], definitions, _join(field, key))
        elif others is False:
            raise SchemaViolation(_join(field, _shorten(key)), "is not a known key")
        elif others is not True:
            _check(item, others, definitions, _join(field, _shorten(key)))


def _check_array(
    value: list[Any], schema: Schema, definitions: dict[str, Schema], field: str
) -> None:
    if len(value) < schema.get("minItems", 0):
        raise SchemaViolation(field, f"has {len(value)} items, under {schema['minItems']}")
    if len(value) > schema.get("maxItems", len(value)):
        raise SchemaViolation(field, f"has {len(value)} items, over {schema['maxItems']}")
    if "items" in schema:
        for index, item in enumerate(value):
            _check(item, schema["items"], definitions, f"{field}[{index}]")


def _check_number(value: float, schema: Schema, field: str) -> None:
    if "minimum" in schema and value < schema["minimum"]:
        raise SchemaViolation(field, f"{_show(value)} is under {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        raise SchemaViolation(field, f"{_show(value)} is over {schema['maximum']}")


def _same(value: Any, known: Any) -> bool:
    return isinstance(value, bool) == isinstance(known, bool) and bool(value == known)


def _join(field: str, key: str) -> str:
    return f"{field}.{key}" if field else key


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _show(value: Any) -> str:
    """Return *value* for a message: a container by its kind, a scalar cut to a line's part."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return _shorten(repr(value))
