"""stderr is wrapped between words on a terminal and left alone elsewhere."""

import sys

from vmtool.cli.streams import tell

MESSAGE = (
    "vmtool: warning: 55 commits took over 10 times the median (up to 8.56 ms)",
    "  run again",
)


def test_a_pipe_gets_the_message_as_it_is(capsys):
    tell(*MESSAGE)
    assert capsys.readouterr().err == "\n".join(MESSAGE) + "\n"


def test_a_terminal_gets_no_line_wider_than_itself(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    tell(*MESSAGE)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(MESSAGE).split())
    assert lines[1].startswith("  ")


def test_a_long_word_is_not_cut(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    number = "1" * 30
    tell(f"{number} bytes")
    assert number in capsys.readouterr().err


def test_a_name_in_a_message_cannot_command_the_terminal(capsys):
    tell("vmtool: error: \x1b]0;title\x07\x9b31m: a\nb: is not JSON", "  hint: \udcff")
    assert capsys.readouterr().err == (
        "vmtool: error: \\x1b]0;title\\x07\\x9b31m: a\\nb: is not JSON\n  hint: \\udcff\n"
    )
