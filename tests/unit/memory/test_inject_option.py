"""What --inject takes: a call, its number and an effect."""

import errno
import sys

import pytest

from vmtool.errors import UsageError
from vmtool.memory.inject_option import parse_fault
from vmtool.memory.injected_faults import Fault

if sys.platform == "win32":
    pytest.skip("the faults of Windows are in tests/windows", allow_module_level=True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("mmap:3", Fault("mmap", 3, False, "ENOMEM")),
        ("munmap:1=eagain", Fault("munmap", 1, False, "EAGAIN")),
        ("mmap:2+=SKIP", Fault("mmap", 2, True, "SKIP")),
        ("mmap:7=SIGKILL", Fault("mmap", 7, False, "SIGKILL")),
        ("mmap:7=HANG", Fault("mmap", 7, False, "HANG")),
        (f"mmap:7={errno.EPERM}", Fault("mmap", 7, False, "EPERM")),
    ],
)
def test_a_fault_says_call_number_and_effect(text, fault):
    assert parse_fault(text) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mmap",
        "mmap:",
        "mmap:0",
        "mmap:-1",
        "mmap:1=",
        "mmap:1=WHAT",
        "mmap:1=SIGWHAT",
        ":3",
        "mmap:9999999999",
        "mmap:1=99999",
        "mmap:1 ",
        "m map:1",
        "mmap:1=SIG_IGN",
    ],
)
def test_anything_else_is_wrong_usage(text):
    with pytest.raises(UsageError) as caught:
        parse_fault(text)
    assert "CALL:N" in caught.value.hint
