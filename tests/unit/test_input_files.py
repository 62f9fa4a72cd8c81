"""Pipes as input files."""

import io
import os
import threading

import pytest

from vmtool.errors import InputError
from vmtool.input_files import copy_pipe

if not hasattr(os, "mkfifo"):
    pytest.skip("this platform has no pipes with a name", allow_module_level=True)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def _copied(path, **options):
    copy = io.BytesIO()
    copy_pipe(str(path), copy, **options)
    return copy.getvalue()


def test_a_pipe_that_nothing_writes_to_is_an_error(pipe):
    with pytest.raises(InputError, match="a pipe that no program writes to, after 0 s"):
        _copied(pipe, wait_ns=0)


@pytest.mark.parametrize("text", [b"", b"some", b"x" * 300_000])
def test_a_pipe_is_copied_to_its_end(pipe, text):
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    assert _copied(pipe) == text
    writer.join()


def test_a_writer_that_has_written_nothing_yet_is_waited_for(pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    copied = []
    thread = threading.Thread(target=lambda: copied.append(_copied(pipe, wait_ns=0)))
    thread.start()
    os.write(writer, b"late")
    os.close(writer)
    thread.join()
    os.close(reader)  # with none, writing would fail
    assert copied == [b"late"]


@pytest.mark.parametrize("text", [b"", b"some"])
def test_a_pipe_without_a_name_is_read_at_once(text):
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    try:
        assert _copied(f"/dev/fd/{reader}", wait_ns=0) == text
    finally:
        os.close(reader)
