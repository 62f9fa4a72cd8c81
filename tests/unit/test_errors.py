"""Text from outside, made safe to print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import printable, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Qwen3 8B µ", "Qwen3 8B µ"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b31m", "\\x9b31m"),  # the same to a terminal, as one character
        ("a\nb\rc", "a\\nb\\rc"),
        ("\u202ecba", "\\u202ecba"),  # right to left
        ("\udcff", "\\udcff"),  # a byte of a file name that is not UTF-8
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_every_text_can_be_encoded_and_stays_on_its_line(text):
    shown = printable(text)
    assert shown.encode("utf-8").decode("utf-8") == shown
    assert len(shown.splitlines()) <= 1


def test_lines_stay_and_what_a_terminal_would_obey_is_spelled_out():
    assert printable_lines("a\x1b[2J\n\nb\u202e\x07\n") == "a\\x1b[2J\n\nb\\u202e\\x07\n"
