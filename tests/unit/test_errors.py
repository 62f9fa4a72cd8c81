"""A lack of memory in its many forms; text from outside, made safe to print."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmtool.errors import is_no_memory, printable, printable_lines, why_no_memory


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


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MemoryError(), True),
        (SystemError("error return without exception set"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (SyntaxError("\\N escapes not supported (can't load unicodedata module)"), True),
        (ImportError("cannot import name 'x' from 'y'"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ValueError("a defect"), False),
    ],
)
def test_a_lack_of_memory_is_recognised(error, found):
    assert is_no_memory(error) is found


def test_an_error_that_followed_from_a_lack_of_memory_is_one():
    error = ValueError("field 'target' is required for AnnAssign")  # seen while compiling
    error.__context__ = MemoryError()
    assert is_no_memory(error)


def test_a_defect_near_a_limit_is_attributed_to_it():
    files = {
        "/proc/self/limits": "Max data size             20971520             unlimited   bytes",
        "/proc/self/status": "VmPeak:\t99999 kB\nVmData:\t   18000 kB\n",
    }
    error = ModuleNotFoundError("No module named 'vmtool.units'")
    assert is_no_memory(error, lambda path: files.get(path, ""))
    files["/proc/self/status"] = "VmData:\t    2000 kB\n"
    assert not is_no_memory(error, lambda path: files.get(path, ""))


@pytest.mark.parametrize(
    ("soft", "hard", "hint"),
    [
        (20480, "unlimited", "raise it (ulimit -v), and run again"),
        (20480, "40960", "raise it (ulimit -v), and run again"),
        (
            20480,
            "20480",
            "raise its hard limit (limits.conf, the unit, or the container's flags), and run again",
        ),
    ],
)
def test_a_limit_is_raised_where_that_works(soft, hard, hint):
    files = {"/proc/self/limits": f"Max address space         {soft:<20} {hard:<20} bytes"}
    assert why_no_memory(lambda path: files.get(path, "")) == ("RLIMIT_AS is 20 KiB", hint)


def test_lines_stay_and_what_a_terminal_would_obey_is_spelled_out():
    assert printable_lines("a\x1b[2J\n\nb\u202e\x07\n") == "a\\x1b[2J\n\nb\\u202e\\x07\n"
