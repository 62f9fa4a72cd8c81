"""``vmtool schema``: the JSON Schema of a document that vmtool writes."""

from __future__ import annotations

import click

from vmtool.cli.options import Command, completing, output_file_option


def _names() -> list[str]:
    from vmtool.results.kinds import DOCUMENTS

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
    from vmtool.documents import schema
    from vmtool.results.kinds import DOCUMENTS, document_named

    output = Output(path=path)
    if name is None:
        output.write("".join(f"{document.name}\n" for document in DOCUMENTS))
        return
    document = document_named(name)
    made = schema(
        document.load(), name=document.name, version=document.version, title=document.title
    )
    output.write(json.dumps(made, indent=2) + "\n")
