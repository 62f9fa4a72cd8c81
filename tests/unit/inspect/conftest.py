"""Processes opened for reading."""

import sys

import pytest

from vmtool.inspect.processes import open_process
from vmtool.inspect.watch import InspectOptions, look
from vmtool.machine import read_facts


@pytest.fixture
def target():
    """Return a function that opens a process for reading."""
    if sys.platform != "linux":
        pytest.skip("the reservations of another process are read on Linux")
    opened = []

    def open_it(pid):
        opened.append(open_process(pid))
        return opened[-1]

    yield open_it
    for each in opened:
        each.close()


@pytest.fixture
def looked(target):
    """Return a function that takes one look at a process, with all its reservations."""
    return lambda pid, **options: look(
        target(pid), InspectOptions(top=1000, **options), read_facts()
    )
