"""``vmtool schema``: the JSON Schema of a document that vmtool writes."""

from __future__ import annotations

import re
from typing import Any

import click

from vmtool.cli.options import Command, completing, output_file_option


def _names() -> list[str]:
    from vmtool.results.document_versions import DOCUMENTS

    return [document.name.removeprefix("vmtool.") for document in DOCUMENTS]


@click.command("schema", cls=Command)
@click.argument("name", required=False, shell_complete=completing(_names))
@output_file_option
def command(name: str | None, path: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a document, or list the documents.

    \b
    vmtool schema                   the documents, one per line
    vmtool schema stress -o stress.schema.json
    """  # noqa: D301 - click's own mark
    import json

    from vmtool.cli.output import Output
    from vmtool.results.document_versions import DOCUMENTS, document_named

    output = Output(path=path)
    if name is None:
        output.write("".join(f"{document.name}\n" for document in DOCUMENTS))
        return
    document = document_named(name)
    made = json_schema(
        document.load(), name=document.name, version=document.version, title=document.title
    )
    output.write(json.dumps(made, indent=2) + "\n")


def json_schema(kind: type, *, name: str, version: int, title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the document that *kind* describes.

    The description of a key is what the class's docstring says under ``Attributes``.
    """
    import msgspec

    generated = msgspec.json.schema(kind)
    definitions: dict[str, Any] = generated["$defs"]
    for definition in definitions.values():
        _describe(definition)
    body = definitions.pop(generated["$ref"].rpartition("/")[2])
    head: dict[str, Any] = {
        "schema": {"const": name},
        "version": {"const": version},
        "vmtool": {"type": "string", "description": "The version of vmtool that wrote it."},
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The command line.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": body.get("description", title),
        "type": "object",
        "properties": {**head, **body["properties"]},
        "required": [*head, *body.get("required", ())],
        "$defs": definitions,
    }


def _describe(definition: dict[str, Any]) -> None:
    """Divide a docstring into the description of the class and one for each of its fields."""
    head, _, attributes = definition.get("description", "").partition("Attributes:\n")
    if head:
        definition["description"] = _unmarked(head.split("\n\n")[0])
    name = ""
    found: dict[str, str] = {}
    for line in attributes.split("\n\n")[0].splitlines():
        if match := re.fullmatch(r" {4}(\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] += " " + line.strip()
    for key, text in found.items():
        if key in definition["properties"]:
            field = definition["properties"][key]
            definition["properties"][key] = {"description": _unmarked(text), **field}


def _unmarked(text: str) -> str:
    """Return a docstring's words without its markup; JSON's null is not called ``None``."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", " ".join(text.split()))
    return re.sub(r"\*(\w+)\*", r"\1", text.replace("``None``", "null").replace("``", ""))
