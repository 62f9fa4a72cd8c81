"""Files that are written when the work is done: made sure of before it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from vmtool.errors import UsageError, VmtoolError

#: What is wrong with a name, and not with what the platform has or allows.
_WRONG_NAMES: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)


def claim(path: str) -> str | None:
    """Make sure that *path* can be written, before work that would be lost otherwise.

    What is in the file stays, and one that is not there is not left behind.

    Returns:
        The file's real path, or ``None`` if it is a pipe or a device, which take whatever comes.

    Raises:
        UsageError: If it can name no file, such as one in a folder that does not exist.
        VmtoolError: If the platform refuses to write it.
    """
    try:
        file = Path(path)
        if not file.exists():
            file = Path(os.path.realpath(path))  # a link to what is not there stays
            file.open("xb").close()
            file.unlink()
        elif file.is_dir():  # Windows would say that it is denied
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        elif file.is_file():
            file.open("ab").close()
        else:  # a pipe or a device. A pipe's reader would take closing it for the end
            return None
    except (OSError, ValueError) as error:
        # A ValueError is a NUL in the path.
        code = getattr(error, "errno", errno.EINVAL)
        message = f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}"
        if code not in _WRONG_NAMES:
            raise VmtoolError(message, hint="write elsewhere, or make that possible") from error
        hint = "make its folder first" if code == errno.ENOENT else "give another file"
        raise UsageError(message, hint=hint) from error
    return os.path.realpath(path)


def save(path: str, text: str) -> None:
    """Write *text* to *path*, in place of what was there.

    Raises:
        OSError: If the file cannot be written.
    """
    # Half a character, as in the name of a file that is no text, has no code in UTF-8.
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
