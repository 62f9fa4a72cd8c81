"""Tables in reports: aligned where it fits, row by row where it does not, never cut."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from vmtool.report.console import paragraph, result_console, show
from vmtool.report.table import ReportTable, comparison, pairs, table

HEADINGS = ("name", "bytes", "share")
ROWS = (("k", "2,048", "50%"), ("latent", "1,152", "6.25%"))
CELLS = st.text("0123456789,.%", min_size=1, max_size=12)


def lines(width, *parts):
    """What is printed of *parts* in *width* columns, without blanks at the ends of lines."""
    file = io.StringIO()
    show(result_console(file, width=width), parts)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_columns_are_aligned():
    assert lines(80, table(HEADINGS, ROWS)) == [
        "name     bytes   share",
        "k        2,048     50%",
        "latent   1,152   6.25%",
    ]


def test_columns_move_together_before_the_table_is_given_up():
    assert lines(21, table(HEADINGS, ROWS))[0] == "name    bytes  share"
    assert lines(20, table(HEADINGS, ROWS))[0] == "name    bytes  share"


def test_a_table_that_is_too_wide_becomes_names_with_values():
    assert lines(19, table(HEADINGS, ROWS)) == [
        "k",
        "  bytes: 2,048",
        "  share: 50%",
        "latent",
        "  bytes: 1,152",
        "  share: 6.25%",
    ]


def test_several_cells_can_name_a_row_and_empty_ones_are_left_out():
    rows = [("k", "32 x full", "2,048", "")]
    assert lines(12, table(("", "of", "bytes", "note"), rows, left=2, label=2)) == [
        "k 32 x full",
        "  bytes:",
        "    2,048",
    ]


def test_headings_take_several_lines_before_anything_else_moves():
    headings = ("policy", "peak committed", "64 KiB")
    assert lines(25, table(headings, [("paged", "8 GiB", "32")])) == [
        "             peak",
        "policy  committed  64 KiB",  # what begins with a number stays whole
        "paged       8 GiB      32",
    ]


def test_words_at_the_end_of_a_row_continue_below():
    rows = [("layers", "62", "num_layers"), ("kinds", "52 sliding", "the usual arrangement")]
    assert lines(31, table(("", "value", "from"), rows, prose=2)) == [
        "        value       from",
        "layers  62          num_layers",
        "kinds   52 sliding  the usual",
        "                    arrangement",
    ]


def test_a_row_and_a_cell_can_have_a_style():
    made = ReportTable("", "x")
    made.add_row("a", Text("1", "bold"), style="red")
    assert lines(80, made) == ["    x", "a   1"]


def test_a_comparison_says_once_what_every_row_has_in_common():
    headings = ("policy", "granule", "finished", "wasted", "")
    rows = [("paged", "2MiB", "200", "41%", ""), ("other", "2MiB", "200", "8%", "best")]
    assert lines(80, *comparison(headings, rows, names=2)) == [
        "The same in every row: granule 2MiB; finished 200",
        "",
        "policy   wasted",
        "paged       41%",
        "other        8%   best",
    ]
    assert lines(80, *comparison(headings, rows[:1], names=2)) == [
        "policy   granule   finished   wasted",
        "paged    2MiB           200      41%",
    ]


def test_pairs_continue_under_their_value():
    rows = [("a", "one two three"), ("long name", "x")]
    assert lines(32, pairs(rows)) == ["a           one two three", "long name   x"]
    assert lines(20, pairs(rows)) == ["a", "  one two three", "long name", "  x"]


def test_nothing_steers_the_terminal():
    assert lines(80, "a\x1b[2J\u202eb", table(("x",), [("\x1b[0m",)])) == [
        "a\\x1b[2J\\u202eb",
        "x",
        "\\x1b[0m",
    ]


@given(
    st.lists(st.tuples(CELLS, *[CELLS] * 6), min_size=1, max_size=6),
    st.integers(1, 100),
    st.integers(0, 2),
)
def test_no_arrangement_loses_a_cell_or_is_wider_than_its_longest_word(rows, width, prose):
    headings = ("name", "max tokens", "peak committed", "", "64 KiB", "f", "best of all")
    for found in (
        lines(width, table(headings, rows, left=2, label=2, prose=prose)),
        lines(width, *comparison(headings, rows, names=2)),
    ):
        text = "\n".join(found)
        named = [i for i, heading in enumerate(headings) if heading]  # others hold a mark
        assert all(row[i] in text for row in rows for i in named)
        assert max(map(len, found)) <= max(width, 16)


def test_a_line_break_in_a_name_breaks_no_line():
    assert lines(80, paragraph("before: a\nb.json"), pairs([("label\n", "x\ny")])) == [
        "before: a\\nb.json",
        "label\\n   x\\ny",
    ]
