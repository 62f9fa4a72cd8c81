"""Text and attributes of a page are escaped, once."""

import re
from html import unescape

from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import printable
from vmtool.report.page import Markup, join, tag


@given(st.text(), st.text())
def test_text_and_attributes_are_escaped(text, value):
    made = tag("p", text, title=value)
    inner = re.fullmatch(r'<p title="([^"<>]*)">([^<>]*)</p>', made, re.DOTALL)
    spelled = ["\n".join(map(printable, each.split("\n"))) for each in (value, text)]
    assert [unescape(inner[1]), unescape(inner[2])] == spelled


def test_control_characters_are_spelled_out_in_text_and_attributes():
    assert tag("p", "a\x1b[2J\nb\u202e", title="\x07") == (
        '<p title="\\x07">a\\x1b[2J\nb\\u202e</p>'
    )


def test_markup_is_not_escaped_twice():
    assert tag("b", tag("i", "a<b")) == "<b><i>a&lt;b</i></b>"
    assert isinstance(join("a", Markup("<br>")), Markup)
    assert (
        tag("line", stroke_width=1.2345, x=None, class_="a")
        == '<line stroke-width="1.23" class="a"></line>'
    )
