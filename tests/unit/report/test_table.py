"""Plain tables and paragraphs: aligned where they fit, told row by row where they do not."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.report.table import (
    WIDE,
    comparison,
    pairs,
    paragraph,
    table,
    text_width,
)

HEADINGS = ("name", "bytes", "share")
ROWS = (("k", "2,048", "50%"), ("latent", "1,152", "6.25%"))
CELLS = st.text("0123456789,.%", min_size=1, max_size=12)


def test_columns_are_aligned():
    assert table(HEADINGS, ROWS, 80) == [
        "name     bytes   share",
        "k        2,048     50%",
        "latent   1,152   6.25%",
    ]


def test_columns_move_together_before_the_table_is_given_up():
    assert table(HEADINGS, ROWS, 21)[0] == "name    bytes  share"
    assert table(HEADINGS, ROWS, 20)[0] == "name    bytes  share"


def test_a_table_that_is_too_wide_is_told_row_by_row():
    assert table(HEADINGS, ROWS, 19) == [
        "k",
        "  bytes: 2,048",
        "  share: 50%",
        "latent",
        "  bytes: 1,152",
        "  share: 6.25%",
    ]


def test_several_cells_can_name_a_row_and_empty_ones_are_left_out():
    rows = [("k", "32 x full", "2,048", "")]
    assert table(("", "of", "bytes", "note"), rows, 12, left=2, label=2) == [
        "k 32 x full",
        "  bytes:",
        "    2,048",
    ]


def test_headings_take_several_lines_before_anything_else_moves():
    headings = ("policy", "peak committed", "64 KiB")
    assert table(headings, [("paged", "8 GiB", "32")], 25) == [
        "             peak",
        "policy  committed  64 KiB",  # what begins with a number stays whole
        "paged       8 GiB      32",
    ]


def test_a_table_of_few_rows_is_turned():
    headings = ("policy", "wasted", "sequences", "best")
    rows = [("paged", "41%", "44", ""), ("other", "8%", "35", "yes")]
    assert table(headings, rows, 23) == [
        "policy     paged  other",
        "wasted       41%     8%",
        "sequences     44     35",
        "best                yes",
    ]


def test_a_table_of_many_rows_is_told_in_parts_that_repeat_the_names():
    headings = ("policy", "wasted", "sequences", "commits", "best")
    rows = [(name, "41%", "44", "1,131.0", "") for name in ("paged", "other", "third")]
    assert table(headings, rows, 25) == [
        "policy  wasted  sequences",
        "paged      41%         44",
        "other      41%         44",
        "third      41%         44",
        "",
        "policy  commits  best",
        "paged   1,131.0",
        "other   1,131.0",
        "third   1,131.0",
    ]


def test_words_at_the_end_of_a_row_go_on_below():
    rows = [("layers", "62", "num_layers"), ("kinds", "52 sliding", "the usual arrangement")]
    assert table(("", "value", "from"), rows, 31, prose=2) == [
        "        value       from",
        "layers  62          num_layers",
        "kinds   52 sliding  the usual",
        "                    arrangement",
    ]
    assert max(map(len, table(("", "value", "from"), rows, 27, prose=2))) <= 27


def test_a_comparison_says_once_what_every_row_has_in_common():
    headings = ("policy", "granule", "finished", "wasted", "")
    rows = [("paged", "2MiB", "200", "41%", ""), ("other", "2MiB", "200", "8%", "best")]
    assert comparison(headings, rows, 80, names=2) == [
        "The same in every row: granule 2MiB; finished 200",
        "",
        "policy   wasted",
        "paged       41%",
        "other        8%   best",
    ]
    assert comparison(headings, rows[:1], 80, names=2) == [
        "policy   granule   finished   wasted",
        "paged    2MiB           200      41%",
    ]
    assert comparison(headings, rows[:1] * 2, 80, names=2) == [
        "policy   granule   finished   wasted",
        *["paged    2MiB           200      41%"] * 2,
    ]


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5), st.integers(1, 60))
def test_no_cell_is_ever_cut(rows, width):
    text = "\n".join(table(HEADINGS, rows, width))
    assert all(cell in text for row in rows for cell in row)


def test_pairs_continue_under_their_value():
    assert pairs([("a", "one two three"), ("long name", "x")], 32) == [
        "a           one two three",
        "long name   x",
    ]
    assert pairs([("a", "one two three"), ("long name", "x")], 20) == [
        "a",
        "  one two three",
        "long name   x",
    ]


def test_a_paragraph_breaks_between_words_only():
    assert paragraph("17,179,869,184 B of memory", 10) == ["17,179,869,184", "B of", "memory"]


def test_the_width_is_the_terminals_and_wide_where_there_is_none(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def fileno(self):
            return 1

    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((57, 20)))
    monkeypatch.delenv("COLUMNS", raising=False)
    assert (text_width(io.StringIO()), text_width(Terminal())) == (WIDE, 57)
    monkeypatch.setenv("COLUMNS", "44")
    assert text_width(Terminal()) == 44


@pytest.mark.parametrize("columns", ["", "0", "x"])
def test_columns_that_are_no_width_are_passed_over(monkeypatch, columns):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def fileno(self):
            return 1

    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    assert text_width(Terminal()) == 80


@given(
    st.lists(st.tuples(CELLS, *[CELLS] * 6), min_size=1, max_size=6),
    st.integers(1, 100),
    st.integers(0, 2),
)
def test_no_arrangement_loses_a_cell(rows, width, prose):
    headings = ("name", "one holds", "peak committed", "", "64 KiB", "f", "best of all")
    for lines in (
        table(headings, rows, width, left=2, label=2, prose=prose),
        comparison(headings, rows, width, names=2),
    ):
        text = "\n".join(lines)
        assert all(cell in text for row in rows for cell in row)
