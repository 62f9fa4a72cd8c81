"""Files that a user names, pipes and ``-`` for stdin; gzip, byte order marks and UTF-16.

What comes from a pipe is kept in a temporary file, so that it can be read more than once.
"""

from __future__ import annotations

import atexit
import codecs
import errno
import io
import os
import stat
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from vmtool.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_GZIP: Final = b"\x1f\x8b"
#: What tapes and disks fill their last block with; it may follow a member of gzip data.
_PADDING: Final = b"\0"
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHUNK: Final = 1 << 16
#: What a file is by its first bytes, for messages: an article and the usual name.
_KINDS: Final = (
    (b"PK\x03\x04", "a ZIP archive (such as PyTorch's .pt files)"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\xfd7zXZ\x00", "compressed with xz"),
    (b"BZh", "compressed with bzip2"),
    (b"\x80\x02", "a Python pickle (such as PyTorch's older .pt files)"),
    (b"lmgg", "an old GGML model file"),
    (b"fmgg", "an old GGML model file (GGMF)"),
    (b"tjgg", "an old GGML model file (GGJT)"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "an ELF program"),
    (b"MZ", "a Windows program"),
    (b"%PDF", "a PDF"),
)


def kind_of(head: bytes) -> str | None:
    """Return what a file that begins with *head* is, such as ``a ZIP archive``, if it is known."""
    return next((name for magic, name in _KINDS if head.startswith(magic)), None)


def open_bytes(path: str) -> BinaryIO:
    """Return *path* opened for reading, decompressed if it is gzip.

    Only :class:`OSError` is raised by reading, also for damaged gzip.

    Args:
        path: A file, a pipe, or ``-`` for stdin. A pipe is read to its end first.

    Raises:
        InputError: If it cannot be read, or is a folder, a device or a socket.
    """
    file = _open_stored(_stored(path) or path, path)
    try:
        compressed = file.read(2) == _GZIP
        file.seek(0)
    except OSError as error:
        file.close()
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    if not compressed:
        return file
    return cast("BinaryIO", io.BufferedReader(_Gunzip(file), _CHUNK))


def open_text(path: str) -> BinaryIO:
    """Return the text of *path* as UTF-8 without a byte order mark, whatever Unicode it is in.

    Args:
        path: As for :func:`open_bytes`.
    """
    file = open_bytes(path)
    try:
        head = file.read(3)
        file.seek(0)
    except OSError as error:
        file.close()
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    if head.startswith(_UTF_16):
        return cast("BinaryIO", io.BufferedReader(_Utf16(file), _CHUNK))
    if head == codecs.BOM_UTF8:
        file.read(3)
    return file


def read_bytes(path: str, limit: int, *, text: bool = False) -> bytes:
    """Return what is in *path*, at most *limit* bytes, decompressed.

    Args:
        path: As for :func:`open_bytes`.
        limit: The most bytes that make sense.
        text: Whether it is text: see :func:`open_text`.

    Raises:
        InputError: If it cannot be read or is longer.
    """
    with open_text(path) if text else open_bytes(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        kind = kind_of(data)
        if kind is not None:
            raise InputError(path, f"is {kind}")
        size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
        raise InputError(path, f"is larger than {size}, the limit for this kind of file")
    return data


def is_stream(path: str) -> bool:
    """Return whether *path* is stdin or a pipe, which can be read once only."""
    if path == "-":
        return True
    try:
        return stat.S_ISFIFO(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _stored(path: str) -> str | None:
    """Return the temporary file with what came from stdin or a pipe; ``None`` for a file."""
    return _keep(path) if is_stream(path) else None


@cache
def _keep(path: str) -> str:
    import shutil  # noqa: PLC0415 - both take longer to import than a file to read
    import tempfile  # noqa: PLC0415

    if path == "-" and sys.stdin is None:
        raise InputError(path, "cannot be read: stdin is closed")
    number, kept = tempfile.mkstemp(prefix="vmtool-")
    atexit.register(_remove, kept)
    try:
        with os.fdopen(number, "wb") as copy:
            if path == "-":
                shutil.copyfileobj(sys.stdin.buffer, copy)
            else:
                copy_pipe(path, copy)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    return kept


def copy_pipe(path: str, copy: BinaryIO, *, wait_ns: int = 10 * 10**9) -> None:
    """Write what comes from the pipe *path*, to its end, into *copy*.

    Args:
        path: Of a pipe.
        copy: A file that is open for writing.
        wait_ns: How long to wait for a program that opens it for writing.

    Raises:
        InputError: If none does.
        OSError: If it cannot be read.
    """
    import shutil  # noqa: PLC0415

    # Opening a pipe with a name waits for a writer, for ever where there is none: fifo(7). One
    # without a name, such as a shell's <(COMMAND), is opened at once.
    if sys.platform == "win32" or not Path(os.path.realpath(path)).exists():
        with open(path, "rb") as source:
            shutil.copyfileobj(source, copy)
    else:
        import select  # noqa: PLC0415
        import time  # noqa: PLC0415

        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as source:
            poll = select.poll()
            poll.register(source, select.POLLIN)
            end = time.monotonic_ns() + wait_ns
            # Nothing to read is b"" without a writer, and None with one.
            while (data := source.read(_CHUNK)) == b"":
                if (events := poll.poll(20)) and not events[0][1] & select.POLLIN:
                    break  # a writer came and went
                if not events and time.monotonic_ns() >= end:
                    raise InputError(
                        path,
                        f"is a pipe that no program writes to, after {wait_ns / 1e9:g} s",
                        hint="start the program that writes to it first, or give a file",
                    )
            os.set_blocking(source.fileno(), True)
            copy.write(data or b"")
            shutil.copyfileobj(source, copy)


def _remove(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()


def _open_stored(path: str, name: str) -> BinaryIO:
    try:
        # O_NONBLOCK so that opening a device returns; it changes nothing for a regular file.
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, PermissionError) and Path(path).is_dir():  # Windows opens no folder
            raise InputError(name, "is a folder, not a file") from error
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(name, f"cannot be read: {reason}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a socket"
        raise InputError(name, f"is {kind}, not a file")
    return os.fdopen(descriptor, "rb")


class _Gunzip(io.RawIOBase):
    """The decompressed bytes of a gzip file, which may have several members.

    Of damaged data all that comes before the damage is read, and the next read is the error.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        import zlib  # noqa: PLC0415

        self._file = file
        self._new: Callable[[], Any] = lambda: zlib.decompressobj(wbits=31)
        self._error = zlib.error
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._member = self._new()
        self._input = b""
        self._position = 0
        self._failure: OSError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET:
            raise io.UnsupportedOperation("gzip can only be read from the beginning")
        if offset < self._position:
            self._restart()
        while self._position < offset:
            if not self.read(min(_CHUNK, offset - self._position)):
                break
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while True:
            if self._failure is not None:
                raise self._failure
            if self._member.eof:
                rest = self._member.unused_data.lstrip(_PADDING)
                while len(rest) < len(_GZIP) and (more := self._file.read(_CHUNK)):
                    rest = (rest + more).lstrip(_PADDING)
                if not rest:
                    return 0
                if not rest.startswith(_GZIP):
                    self._failure = OSError(
                        errno.EIO, "its gzip data is followed by data that is not gzip"
                    )
                    continue
                self._input, self._member = rest, self._new()
            elif not self._input:
                self._input = self._file.read(_CHUNK)
                if not self._input:
                    raise OSError(errno.EIO, "its gzip data is truncated")
            before = self._member.copy()
            try:
                data = self._member.decompress(self._input, len(view))
            except self._error as error:
                self._failure = OSError(errno.EIO, _what_is_wrong(str(error)))
                data = self._undamaged(before, len(view))
            self._input = self._member.unconsumed_tail
            if data:
                view[: len(data)] = data
                self._position += len(data)
                return len(data)

    def _undamaged(self, member: Any, room: int) -> bytes:
        """Return what *member* makes of the input up to the byte at which it fails."""
        made, start, step = b"", 0, len(self._input)
        while step := min(step, len(self._input) - start):
            before = member.copy()
            try:
                made += member.decompress(self._input[start : start + step], room - len(made))
                start += step
            except self._error:
                member, step = before, step // 2
        return made

    def close(self) -> None:
        self._file.close()
        super().close()


def _what_is_wrong(error: str) -> str:
    if "data check" in error or "length check" in error:  # of all of a member, at its end
        return f"its gzip data is damaged, and any part of it may be wrong ({error})"
    return f"its gzip data is damaged ({error})"


class _Utf16(io.RawIOBase):
    """The UTF-8 bytes of a file in UTF-16 with a byte order mark."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._left = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._left and not self._ended:
            data = self._file.read(_CHUNK)
            self._ended = not data
            try:
                text = self._decoder.decode(data, final=self._ended)
            except UnicodeDecodeError as error:
                raise OSError(errno.EILSEQ, f"it is not UTF-16 ({error.reason})") from error
            self._left = text.encode("utf-8", "surrogatepass")
        part, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()
