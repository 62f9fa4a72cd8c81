"""The limits on memory are read where a call failed, with whatever memory is left."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the areas are counted in Linux's /proc", allow_module_level=True)

from vmtool.memory.posix import memory_limits


def test_areas_are_counted_also_where_there_is_no_memory_to_read_the_rest(monkeypatch):
    """The limit on areas was then put down to the kernel, which "had no memory for it"."""

    def opened(path, mode="r", **options):
        if options:  # with a codec, as for longer files
            raise MemoryError
        return open(path, mode)

    monkeypatch.setattr(memory_limits, "open", opened, raising=False)
    limits = memory_limits.read_limits()
    assert limits.mappings > 0
    assert limits.max_mappings > 0
    assert limits.available_bytes is None
