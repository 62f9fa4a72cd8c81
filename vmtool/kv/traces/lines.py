"""Lines of a file that may be hostile: bounded length, numbered, one in memory at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vmtool.errors import InputError
from vmtool.kv.sources.reading import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The longest line. One of Mooncake's with a million tokens has some 16 KiB.
MAX_LINE_BYTES: Final = 1 << 20


def numbered_lines(path: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line of *path* with its number, from 1; ``None`` for one that is too long.

    Raises:
        InputError: If the file cannot be read or is not a regular file.
    """
    with open_regular(path) as file:
        number = 0
        while True:
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                number += 1
                if len(line) <= MAX_LINE_BYTES:
                    yield number, line
                    continue
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
            except OSError as error:
                reason = error.strerror or str(error)
                raise InputError(
                    path, f"cannot be read: {reason}", field=f"line {number}"
                ) from error
            yield number, None
