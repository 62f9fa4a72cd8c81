"""Files for the sources to read."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def write_config(tmp_path):
    """Return a function that writes an object as ``config.json`` and returns its path."""

    def write(data, name="config.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return str(path)

    return write
