"""Recorded machines: the kernel's files as a dictionary."""

import pytest


class RecordedFiles:
    """Files from a dictionary of path to text; a directory is what the paths imply."""

    def __init__(self, texts):
        self._texts = texts

    def read(self, path):
        return self._texts.get(path)

    def names(self, path):
        prefix = path.rstrip("/") + "/"
        inside = {p[len(prefix) :].split("/")[0] for p in self._texts if p.startswith(prefix)}
        return tuple(sorted(inside))

    def exists(self, path):
        return path in self._texts or bool(self.names(path))


@pytest.fixture
def recorded():
    """Return the class that makes a recorded machine from a dictionary."""
    return RecordedFiles
