"""Processes opened for reading."""

import sys

import pytest

from vmtool.inspect.processes import open_process
from vmtool.inspect.watch import InspectOptions, Watch, look
from vmtool.machine import read_facts
from vmtool.results.inspect import WatchEnding


class Clock:
    """A clock that goes on by a microsecond whenever it is read, and otherwise as a test says."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        self.ns += 1000
        return self.ns


@pytest.fixture
def clock():
    """Return a clock for a watch, in place of the time that passes."""
    return Clock()


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


@pytest.fixture
def stepped(target, clock):
    """Return a function that takes one sample of a process and then one after each of its steps.

    For the watch each step takes a second, however long it takes here.
    """

    def take(pid, steps, step):
        watched = Watch(target(pid), InspectOptions(watch=True, top=1000), clock)
        watched.sample()
        for _ in range(steps):
            step()
            clock.ns += 10**9
            watched.sample()
        return watched.result(WatchEnding.COMPLETE, read_facts())

    return take
