"""Plain tables and paragraphs: aligned where they fit, told row by row where they do not."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.report.columns import WIDE, pairs, paragraph, table, text_width

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
