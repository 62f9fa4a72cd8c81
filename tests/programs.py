"""Programs to look at: each is started for one test, says when it is ready, and is ended by it."""

import json
import os
import subprocess
import sys

import pytest

# ``wall`` makes a mapping of another kind, so that the kernel joins no neighbour to a reservation
# between two of them: new mappings go below older ones, and these are too large for a hole.
_PRELUDE = """
import json, mmap, os, sys, time
def wall():
    file = os.memfd_create("wall")
    os.ftruncate(file, 1 << 30)
    return mmap.mmap(file, 1 << 30, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
def ready(**facts):
    print(json.dumps(facts), flush=True)
def hold(**facts):
    ready(**facts)
    sys.stdin.read()
"""
#: Python code that fills COUNT memory areas: every second page of a mapping has no access.
MANY_AREAS = """
import ctypes
libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
base = libc.mmap(None, COUNT * 4096, 3, 0x22, -1, 0)
for i in range(0, COUNT, 2):
    libc.mprotect(base + i * 4096, 4096, 0)
hold()
"""


class Program:
    """A program that was started; its first line, ``ready`` or facts as JSON, says that it is ready."""

    def __init__(self, command, before=None, **environment):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if command[0] != sys.executable else None,
            encoding="utf-8",
            env=os.environ | environment,
            preexec_fn=before,  # noqa: PLW1509 - there is one thread
        )
        self.pid = self.process.pid
        self.facts = {}

    def read(self):
        """Return the facts of its next line."""
        line = self.process.stdout.readline().strip()
        assert line, "the program ended"
        return {} if line == "ready" else json.loads(line)

    def go_on(self):
        """Let the program do its next step, and return what it says then."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def end(self):
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def program():
    """Return a function that starts a command, and waits for its first line."""
    started = []

    def start(*command, **options):
        made = Program(command, **options)
        started.append(made)
        made.facts = made.read()
        return made

    yield start
    for each in started:
        each.end()


@pytest.fixture
def child(program):
    """Return a function that starts Python code, which has ``wall``, ``ready`` and ``hold``."""
    return lambda code, **options: program(sys.executable, "-c", _PRELUDE + code, **options)
