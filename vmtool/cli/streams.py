"""stdout and stderr that may be closed, full, or read by someone who has enough."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO


def on_terminal(stream: IO[str] | None) -> bool:
    """Tell whether *stream* is shown to a person; ``None``, a closed one, is not."""
    return stream is not None and stream.isatty()


def drop_unwritten() -> None:
    """Drop what stdout and stderr hold and do not take.

    Python would try again at exit, and then end with code 120 whatever the command had to say.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
