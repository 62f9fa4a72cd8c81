"""Names of backings, and what a kind of memory does not have, are refused before anything is opened."""

import sys

import pytest

from vmtool.errors import UnavailableError, UsageError
from vmtool.memory.backing_by_name import device_ordinal, open_backing

LINUX_ONLY = [{"prefault": True}, {"huge": True}, {"huge_page_bytes": 2 << 20}, {"node": 0}]


@pytest.mark.parametrize("option", LINUX_ONLY)
def test_a_device_has_no_pages_or_nodes_to_choose(option):
    with pytest.raises(UsageError, match="are for the host, not cuda:1"):
        open_backing("cuda:1", **option)


@pytest.mark.skipif(sys.platform != "win32", reason="what Windows lacks")
@pytest.mark.parametrize("option", LINUX_ONLY)
def test_windows_has_none_either(option):
    with pytest.raises(UnavailableError, match="on Linux only"):
        open_backing("host", **option)


def test_the_host_has_no_chunks():
    with pytest.raises(UsageError, match="chunks are for devices"):
        open_backing("host", chunk=65536)


@pytest.mark.parametrize("kind", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1.0"])
def test_an_unknown_kind_is_wrong_usage(kind):
    with pytest.raises(UsageError, match="unknown backing"):
        device_ordinal(kind)


def test_a_number_that_no_device_has_is_not_available():
    with pytest.raises(UnavailableError, match="there is no CUDA device 1000"):
        device_ordinal("cuda:1000")
