"""What a console prints to a terminal and elsewhere, and where lines are broken."""

import io

import pytest
from printed import printed
from rich.text import Text

from vmtool.report.console import WIDE, paragraph, result_console, show, verbatim


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"])
@pytest.mark.parametrize("stream", [_Terminal, io.StringIO])
def test_only_a_terminal_gets_colour_and_none_with_no_color(stream, variable, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(variable, "1")
    file = stream()

    show(result_console(file, width=80), [paragraph("problem", style="bold red")])

    escapes = {"NO_COLOR": "\x1b[1m"}.get(variable, "\x1b[1;31m")
    assert file.getvalue() == (f"{escapes}problem\x1b[0m\n" if stream is _Terminal else "problem\n")


def test_nothing_limits_a_line_without_a_terminal():
    console = result_console(io.StringIO())
    assert console.width == WIDE


def lines(part):
    """What is printed of *part* in ten columns."""
    return printed(lambda console: console.print(part), 10)


@pytest.mark.parametrize("text", ["17,179,869,184 B of memory", Text("17,179,869,184 B of memory")])
def test_words_are_broken_between_them_only(text):
    assert lines(text) == lines(paragraph(text)) == ["17,179,869,184", "B of", "memory"]


def test_a_log_line_is_never_broken():
    assert lines(verbatim("GPU KV cache size: 1 token")) == ["GPU KV cache size: 1 token"]
