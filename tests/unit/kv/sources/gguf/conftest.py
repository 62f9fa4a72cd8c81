"""Files as the gguf package writes them."""

from __future__ import annotations

import pytest

ADD = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string"}


@pytest.fixture
def write_gguf(tmp_path):
    """Return a function that writes values of an architecture to a file."""
    gguf = pytest.importorskip("gguf", reason="the gguf package writes the files to read")

    def write(architecture, values, other=()):
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in [*((f"{architecture}.{k}", v) for k, v in values.items()), *other]:
            if isinstance(value, list):
                writer.add_array(key, value)
            else:
                getattr(writer, ADD[type(value)])(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return str(path)

    return write
