"""What the tests of scripts/ share: its modules, which are imported as its programs do."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def load_script(monkeypatch):
    """Import a module of scripts/ afresh."""
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(scripts))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (sys.modules[name].__dict__.get("__file__") or "").startswith(str(scripts)):
            del sys.modules[name]
