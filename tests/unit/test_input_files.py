"""Pipes and gzip as input files."""

import gzip
import io
import os
import random
import threading

import pytest

from vmtool.errors import InputError
from vmtool.input_files import copy_pipe, open_bytes

posix = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="this platform has no pipes with a name"
)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def _copied(path, **options):
    copy = io.BytesIO()
    copy_pipe(str(path), copy, **options)
    return copy.getvalue()


@posix
def test_a_pipe_that_nothing_writes_to_is_an_error(pipe):
    with pytest.raises(InputError, match="a pipe that no program writes to, after 0 s"):
        _copied(pipe, wait_ns=0)


@posix
@pytest.mark.parametrize("text", [b"", b"some", b"x" * 300_000])
def test_a_pipe_is_copied_to_its_end(pipe, text):
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    assert _copied(pipe) == text
    writer.join()


@posix
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


@posix
@pytest.mark.parametrize("text", [b"", b"some"])
def test_a_pipe_without_a_name_is_read_at_once(text):
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    try:
        assert _copied(f"/dev/fd/{reader}", wait_ns=0) == text
    finally:
        os.close(reader)


@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1])
def test_a_gzip_member_may_end_anywhere_in_a_chunk(tmp_path, size):
    """What followed was lost if the first byte of the next member was the last of a chunk of 64 KiB."""
    path = tmp_path / "results.gz"
    noise = random.Random(0).randbytes(size)
    members = (gzip.compress(noise[:length], 0) for length in range(size, 0, -1))
    member = next(each for each in members if len(each) == size)
    path.write_bytes(member + gzip.compress(b"second"))
    with open_bytes(str(path)) as file:
        assert file.read().endswith(b"second")


def test_padding_between_gzip_members_is_skipped(tmp_path):
    path = tmp_path / "results.gz"
    padding = bytes((1 << 16) + 9)
    path.write_bytes(gzip.compress(b"first") + padding + gzip.compress(b"second") + padding)
    with open_bytes(str(path)) as file:
        assert file.read() == b"firstsecond"
        assert file.read() == b""


def test_what_follows_a_gzip_member_and_is_none_is_an_error(tmp_path):
    """A member whose first bytes are damaged was taken for padding, and all behind it was lost."""
    path = tmp_path / "results.gz"
    path.write_bytes(gzip.compress(b"first") + b"\0\x1f" + gzip.compress(b"second"))
    with open_bytes(str(path)) as file:
        assert file.read1() == b"first"
        for _ in range(2):
            with pytest.raises(OSError, match="is followed by data that is not gzip"):
                file.read1()
