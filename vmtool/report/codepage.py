"""Text for streams that cannot show every character: the nearest ASCII, and never a crash."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final

# What the reports use beyond ASCII: units, bars, pictures.
_NEAREST: Final = str.maketrans("µ█▉▊▋▌▍▎▏▒░·±\N{EN DASH}", "u###==--.+..~-")
_ERRORS: Final = "vmtool.nearest"
#: UTF-8 has no code for half a surrogate pair, which stands for a byte that is no text, such as one
#: in the name of a file. As ``\\udcff`` it is legal in JSON and readable elsewhere.
UTF_8: Final = ("utf-8", "backslashreplace")


def result_encoding() -> tuple[str, str]:
    """Return the encoding of results on stdout and what happens to other characters.

    UTF-8, as in files, whatever the code page of Windows is. ``PYTHONIOENCODING`` asks for another
    where stdout is no terminal, for readers that know only theirs.
    """
    asked = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    if not asked or sys.stdout is None or sys.stdout.isatty():
        return UTF_8
    try:
        return codecs.lookup(asked).name, _ERRORS
    except LookupError:
        return UTF_8


def nearest(error: UnicodeError) -> tuple[str, int]:
    """Replace each character that has no code by one of ASCII that looks like it, or by ``?``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_NEAREST)
    return "".join(char if char.isascii() else "?" for char in text), error.end


codecs.register_error(_ERRORS, nearest)
