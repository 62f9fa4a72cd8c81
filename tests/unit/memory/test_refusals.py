"""A refusal other than "out of memory" has a cause as well."""

import errno
import mmap
import sys

import pytest

from vmtool.memory.refusals import diagnose_refusal

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(
    ("call", "code", "address", "advice", "kind"),
    [
        ("mmap", errno.EINVAL, PAGE + 1, "", "page-size"),
        ("mprotect", errno.EINVAL, PAGE // 2, "", "page-size"),
        ("madvise", errno.EINVAL, PAGE, "MADV_HUGEPAGE", "no-huge-pages"),
        ("madvise", errno.EINVAL, PAGE, "MADV_POPULATE_WRITE", "old-kernel"),
        ("mmap", errno.EAGAIN, 0, "", "locked-limit"),
        ("mprotect", errno.EACCES, PAGE, "", "forbidden"),
        ("mmap", errno.EPERM, 0, "", "forbidden"),
        ("madvise", 133, PAGE, "MADV_POPULATE_WRITE", "bad-memory"),
    ],
)
def test_each_refusal_has_one_cause_and_one_remedy(call, code, address, advice, kind):
    diagnosis = diagnose_refusal(call, code, address, advice=advice)
    assert diagnosis.kind == kind
    assert diagnosis.cause
    assert diagnosis.remedy


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOMEM, errno.EBADF])
def test_what_is_not_known_is_not_explained(code):
    assert diagnose_refusal("munmap", code, PAGE) is None


@pytest.mark.skipif(sys.platform == "win32", reason="asks a POSIX kernel")
def test_a_call_that_the_kernel_refuses_carries_the_cause():
    from vmtool.memory.posix_calls import CALLS, call_error

    assert CALLS.mprotect(PAGE // 2, PAGE, 0) == -1
    error = call_error("mprotect", PAGE // 2, PAGE, 0)
    assert "EINVAL" in str(error)
    assert f"{PAGE} bytes" in error.cause
    assert "granularity" in error.hint
