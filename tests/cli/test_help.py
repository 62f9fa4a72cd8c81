"""Help: commands under questions, options under headings, and public names that load lazily."""

import re
import subprocess
import sys

import click
import pytest

import vmtool as package
from vmtool.cli.app import COMMAND_GROUPS, COMMANDS, main
from vmtool.cli.options import BackingName
from vmtool.cli.schema import json_schema
from vmtool.errors import VmtoolError
from vmtool.memory.buffer_views import LiveViewError
from vmtool.results.document_versions import DOCUMENTS


def test_every_command_stands_under_its_question(vmtool):
    lines = vmtool("-h").stdout.splitlines()
    for question, commands in COMMAND_GROUPS.items():
        at = lines.index(question)
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == list(
            commands
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_its_output_options_last(vmtool, name):
    lines = vmtool(name, "-h").stdout.splitlines()
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings[-1] == "Output:" or name in {"schema", "completion"}
    assert lines[-1].split()[:2] == ["-h,", "--help"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal_of_40_columns(vmtool, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "40")
    lines = vmtool(name, "-h").stdout.splitlines()
    long = [line for line in lines if len(line) > 40]
    # Only the name of an option with its value, and the examples, which are copied.
    assert [x for x in long if not re.match(r"  (--\S+( \S+)*$|vmtool )", x)] == []


#: What a command needs beside the option that is empty.
NEEDED = {
    "completion": ["bash"],
    "compare": ["a", "b"],
    "fleet": ["a"],
    "grow": ["--to", "1MiB"],
    "inspect": ["1"],
    "kv-estimate": ["gpt2"],
    "kv-replay": ["trace"],
    "limits": ["commit"],
    "reserve": ["1MiB"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_hint_of_an_unknown_backing_names_what_help_and_command_accept(vmtool, name):
    for param in main.get_command(None, name).params:
        if not isinstance(param.type, BackingName):
            continue
        ran = vmtool(name, *NEEDED.get(name, ()), "--backing", "foo")
        accepted = param.type.accepted
        assert (ran.code, ran.stdout) == (2, "")
        assert ran.stderr.splitlines()[-1] == f"  hint: use {accepted}"
        assert param.help.removesuffix(".").startswith(accepted)
        for each in accepted.replace(" or ", ", ").replace(":N", ":1").split(", "):
            assert param.type.convert(each, param, None).startswith(each)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_empty_value_is_wrong_usage(vmtool, name):
    """As of a variable of a script that is not set."""
    for param in main.get_command(None, name).params:
        if not isinstance(param, click.Option) or param.is_flag:
            continue
        ran = vmtool(name, *NEEDED.get(name, ()), param.opts[0], "")
        assert (ran.code, ran.stdout) == (2, ""), param.opts
        assert any(each in ran.stderr for each in param.opts), ran.stderr


@pytest.mark.parametrize(
    "line", [("kv-estimate", ""), ("compare", "", "b"), ("stress", "--huge="), ("reserve", "")]
)
def test_an_empty_argument_is_wrong_usage(vmtool, line):
    ran = vmtool(*line)
    assert (ran.code, ran.stdout) == (2, "")


def test_a_nul_character_that_only_a_caller_in_python_can_pass_is_wrong_usage(vmtool):
    assert vmtool("doctor", "-o", "x\0y").code == 2


def test_the_public_names_are_loaded_when_they_are_used():
    program = (
        "import sys, vmtool\n"
        "assert 'vmtool.memory' not in sys.modules\n"
        "from vmtool import VirtualBuffer, estimate, open_backing\n"
        "print(estimate('llama-3.1-8b', 16 << 30).answer.max_tokens.fits)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=60
    )
    assert ran.stdout.split() == [b"131072"]
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) for name in package.__all__)
    assert package.LiveViewError is LiveViewError
    assert package.VmtoolError is VmtoolError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def descriptions(schema):
    """Every description in *schema*."""
    for key, value in schema.items():
        if key == "description" and isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from descriptions(value)


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.name)
def test_a_description_in_a_schema_needs_no_line_above_it(kind):
    made = json_schema(kind.load(), name=kind.name, version=kind.version, title=kind.title)
    found = list(descriptions(made))
    assert found
    assert [d for d in found if re.search(r"^(Of|As|Such as|The same)\b|likewise\.$", d)] == []


def test_every_command_whose_document_names_the_host_can_leave_it_out():
    named = []
    for kind in DOCUMENTS:
        made = json_schema(kind.load(), name=kind.name, version=kind.version, title=kind.title)
        if "RunConditions" in made.get("$defs", {}):
            named.append(kind.name.removeprefix("vmtool."))
    commands = {name.partition(".")[0] for name in named}
    assert commands >= {"stress", "matrix", "check", "limits", "guards", "kv-replay"}
    for name in commands:
        found = main.get_command(None, name)
        assert "name_host" in {param.name for param in found.params}, name
