"""What the tests of the scripts share: their modules, imported as the programs do."""

import importlib
import sys

import pytest


@pytest.fixture
def load(monkeypatch, pytestconfig):
    """Import a module of a folder afresh."""
    before = set(sys.modules)
    folders = []

    def load_module(folder, name):
        folders.append(str(pytestconfig.rootpath / folder))
        monkeypatch.syspath_prepend(folders[-1])
        return importlib.import_module(name)

    yield load_module
    for name in set(sys.modules) - before:
        if (sys.modules[name].__dict__.get("__file__") or "").startswith(tuple(folders)):
            del sys.modules[name]
