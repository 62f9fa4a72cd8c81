"""Where lines of words are broken."""

import pytest
from printed import printed
from rich.text import Text

from vmtool.report.paragraphs import paragraph, verbatim


def lines(part):
    """What is printed of *part* in ten columns."""
    return printed(lambda console: console.print(part), 10)


@pytest.mark.parametrize("text", ["17,179,869,184 B of memory", Text("17,179,869,184 B of memory")])
def test_words_are_broken_between_them_only(text):
    assert lines(text) == lines(paragraph(text)) == ["17,179,869,184", "B of", "memory"]


def test_a_log_line_is_never_broken():
    assert lines(verbatim("GPU KV cache size: 1 token")) == ["GPU KV cache size: 1 token"]
