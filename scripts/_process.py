"""How the scripts run other programs, and how they say on stderr what went wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The exit codes of vmtool itself (vmtool/errors.py), which is not importable before the set-up.
FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 1, 2, 4, 130

_OUTPUT_LINES = 30  # of a failed installer: the error is at the end


class SetupError(Exception):
    """The set-up cannot go on; ``hint`` says what to do, ``code`` is the exit code."""

    def __init__(self, message: str, *, hint: str, code: int) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def run_guarded(body: Callable[[], int]) -> int:
    """Return the exit code of *body*; say on stderr what stopped it, without a traceback."""
    try:
        return body()
    except SetupError as exc:
        say(f"error: {exc}\n  hint: {exc.hint}")
        return exc.code
    except OSError as exc:
        say(f"error: {exc}")
        return FAILED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def hand_over(command: Sequence[str]) -> NoReturn:
    """Become *command*, so that its exit code and signals are this process's own."""
    if sys.platform == "win32":  # exec there starts a new process and lets the shell go on
        sys.exit(run_child(command))
    os.execv(command[0], list(command))  # noqa: S606 - no shell is wanted


def run_child(command: Sequence[str], cwd: Path | None = None) -> int:
    """Return the exit code of *command*, waiting for it through Ctrl-C, which reaches it too."""
    with subprocess.Popen(command, cwd=cwd) as child:

        def wait_on(_signum: int, _frame: object) -> None:
            """Leave it to the child: a terminal sends these to both processes."""

        def pass_on(_signum: int, _frame: object) -> None:
            child.terminate()

        signal.signal(signal.SIGINT, wait_on)
        signal.signal(signal.SIGTERM, pass_on)
        if sys.platform == "win32":
            signal.signal(signal.SIGBREAK, wait_on)
        code = child.wait()
    return code if code >= 0 else 128 - code  # as a shell tells that a signal ended it


def run_quietly(
    purpose: str,
    command: Sequence[str],
    *,
    hint: str,
    timeout: float | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """Return what *command* printed; it is shown only if the command fails.

    Raises:
        SetupError: If it fails, or takes longer than *timeout* seconds.
    """
    try:
        result = subprocess.run(
            command,
            check=False,
            env=env,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        fault = f"was ended after {timeout:.0f} s"
    else:
        if result.returncode == 0:
            return result.stdout
        tell("\n".join(result.stdout.splitlines()[-_OUTPUT_LINES:]))
        fault = f"ended with exit code {result.returncode}; its words are above"
    message = f"could not {purpose}: {Path(command[0]).name} {fault}"
    raise SetupError(message, hint=hint, code=FAILED)


def say(text: str) -> None:
    tell(f"vmtool: {text}")


def tell(text: str) -> None:
    """Write *text* to stderr; where that is closed or full it is lost, and the work goes on."""
    if sys.stderr is not None:  # print would write to stdout instead
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)
