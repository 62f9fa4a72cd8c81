"""A program that ``vmtool inspect`` started: its start, its interruption and its exit code."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vmtool.cli.streams import tell

if TYPE_CHECKING:
    from vmtool.cli.interrupt import Interruption


class WatchedProgram:
    """A command that was started here.

    Ctrl-C on a terminal reaches the command as well, and it decides what to do about it. If it goes
    on after vmtool was interrupted, it gets SIGTERM, and later it is killed.

    Args:
        program: The command and its arguments.
        interruption: Whether vmtool was interrupted.
        ask_ns: How long after an interruption it gets SIGTERM.
        kill_ns: How long after an interruption it is killed.
    """

    _POLL_S = 0.05

    def __init__(
        self,
        program: tuple[str, ...],
        interruption: Interruption,
        *,
        ask_ns: int = 10**9,
        kill_ns: int = 10 * 10**9,
    ) -> None:
        self.process = subprocess.Popen(program)
        self.interruption = interruption
        self._ask_ns = ask_ns
        self._kill_ns = kill_ns
        self._since: int | None = None
        self._asked = False

    def ended(self) -> int | None:
        """Return its exit code as a shell gives it, or ``None`` while it runs."""
        code = self.process.poll()
        return None if code is None else _shell_code(code)

    def stop(self) -> bool:
        """Return whether it had to be killed, once vmtool was interrupted."""
        if not self.interruption.requested:
            return False
        now = time.monotonic_ns()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._ask_ns and not self._asked:
            self._asked = True
            self.process.terminate()
        if now - self._since >= self._kill_ns:
            self.process.kill()
            return True
        return False

    def wait(self) -> int:
        """Return its exit code when it has ended, which an interruption makes it do."""
        while True:
            with suppress(subprocess.TimeoutExpired):
                return _shell_code(self.process.wait(self._POLL_S))
            self.stop()


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code


def start_program(program: tuple[str, ...], interruption: Interruption) -> WatchedProgram | int:
    """Start a command; where that fails, say so and return the exit code."""
    try:
        return WatchedProgram(program, interruption)
    except (OSError, ValueError) as error:  # a ValueError is a NUL in an argument
        # As a shell does: 127 for what is not there, 126 for what cannot be run.
        name = program[0]
        missing = isinstance(error, FileNotFoundError) or not name
        reason = "no such program" if missing else getattr(error, "strerror", None) or error
        if name and Path(name).is_dir():
            reason = "it is a directory"
        tell(f"vmtool: error: cannot start {name!r}: {reason}")
        tell("  hint: give a program that is on PATH, or its path, after --")
        return 127 if missing else 126
