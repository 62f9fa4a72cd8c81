"""``vmtool schema``: the JSON Schema of a document that vmtool writes."""

from __future__ import annotations

import click

from vmtool.cli.options import output_file_option


@click.command()
@click.argument("name", required=False)
@output_file_option
def command(name: str | None, path: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a document, or list the documents.

    \b
    vmtool schema                   the documents, one a line
    vmtool schema stress -o stress.schema.json
    """  # noqa: D301 - click's own mark
    from vmtool.cli.output import Output
    from vmtool.report.schema import load_schema, schema_names

    output = Output(as_json=name is not None, path=path)
    schema = {} if name is None else load_schema(name)
    output.emit(lambda: schema, lambda console: console.print("\n".join(schema_names())))
