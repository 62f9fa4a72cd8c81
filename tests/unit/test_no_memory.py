"""A lack of memory in its many forms, and the limit that may be why."""

import errno

import pytest

from vmtool.no_memory import is_no_memory, why_no_memory


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
