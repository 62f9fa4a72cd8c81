"""Processes to look at: each is started for one test, says when it is ready, and is ended by it."""

import json
import subprocess
import sys

import pytest

from vmtool.inspect.processes import open_process

# Mappings of another kind on both sides, so that the kernel joins no neighbour to the reservation:
# new mappings go below older ones, and these are too large for a hole.
_WALLS = """
import json, mmap, os, sys, time
_file = os.memfd_create("wall")
os.ftruncate(_file, 1 << 30)
def wall():
    return mmap.mmap(_file, 1 << 30, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
def ready(**facts):
    print(json.dumps(facts), flush=True)
"""


class Child:
    """A Python process, ready to be looked at."""

    def __init__(self, code, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WALLS + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            **options,
        )
        self.facts = self.read()
        self.pid = self.process.pid

    def read(self):
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return json.loads(line)

    def go_on(self):
        """Let the process do its next step, and return what it says then."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()


@pytest.fixture
def child():
    """Return a function that starts Python code, which has ``wall`` and ``ready``."""
    if sys.platform != "linux":
        pytest.skip("the reservations of another process are read on Linux")
    started = []

    def start(code, **options):
        started.append(Child(code, **options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.process.stdin.close()
        each.process.stdout.close()


@pytest.fixture
def target():
    """Return a function that opens a process for reading."""
    opened = []

    def open_it(pid):
        opened.append(open_process(pid))
        return opened[-1]

    yield open_it
    for each in opened:
        each.close()
