"""The kernel's files."""

import errno
import os

from vmtool.machine.kernel_files import KernelFiles, parse_choice, parse_int
from vmtool.memory.counter_types import parse_kib


def test_a_file_that_may_not_be_read_is_none(tmp_path, monkeypatch):
    secret = tmp_path / "memory.max"
    secret.write_text("1", encoding="ascii")

    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("builtins.open", refuse)  # root may read anything, so chmod proves nothing
    monkeypatch.setattr("os.listdir", refuse)
    assert KernelFiles().read(str(secret)) is None
    assert KernelFiles().names(str(tmp_path)) == ()


def test_parsers_take_nonsense_as_unknown():
    assert parse_int("12\n") == 12
    assert parse_int("max") is None
    assert parse_int(None) is None
    assert parse_choice("always never") is None
    assert parse_choice("]x[") is None
    assert parse_kib("A: 5 kB\nB: x kB\nC: 7\n\nD: 1 2 kB\n") == {"A": 5120}
    assert parse_kib(None) == {}
