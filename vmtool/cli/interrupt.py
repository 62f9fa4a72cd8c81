"""Ctrl-C, Ctrl-Break, SIGTERM and SIGHUP: an exception, or a flag that a command polls."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from vmtool.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Whether a signal asked the command to stop, in click's ``meta``.
INTERRUPTED: Final = "vmtool.interrupted"
if sys.platform == "win32":
    _SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
else:  # mypy needs both branches spelled out
    _SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONG_S: Final = 3600.0
#: Signals that arrive within this time are one request.
_ONE_S: Final = 1.0
#: Until an ignored interruption is repeated: the callback has returned by then.
_SOON_S: Final = 0.02


def raise_interruptions() -> None:
    """Let each of these signals raise ``KeyboardInterrupt``, as Python lets Ctrl-C."""
    # Each ends the process silently, unless its parent ignores it.
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = _again


class Interruption:
    """Whether the user requested a stop.

    Not a dataclass: every start loads this file, and ``dataclasses`` takes longer than all of it.

    Attributes:
        requested: Set by the first signal; a second one, a second later or more, raises
            ``KeyboardInterrupt``.
        since_s: When it was set, by a monotonic clock.
        at_once: Whether the first signal raises ``KeyboardInterrupt`` as well.
    """

    __slots__ = ("at_once", "requested", "since_s")

    def __init__(self, *, requested: bool = False) -> None:
        self.requested = requested
        self.since_s = 0.0
        self.at_once = False

    def __bool__(self) -> bool:
        return self.requested

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise ``KeyboardInterrupt`` at a signal in this block, which may wait for another process.

        A call that waits is begun again after a signal whose handler only notes it (PEP 475).
        """
        self.at_once = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self.at_once = False


@contextmanager
def watch_signals(now_s: Callable[[], float] = time.monotonic) -> Iterator[Interruption]:
    """Note these signals instead of dying from them, for the length of the block.

    Args:
        now_s: A monotonic clock.
    """
    state = Interruption()

    def note(_number: int, _frame: Any) -> None:
        if not state.requested:
            state.requested, state.since_s = True, now_s()
            context = click.get_current_context(silent=True)
            if context is not None:
                context.meta[INTERRUPTED] = True
            if state.at_once:
                raise KeyboardInterrupt
        # timeout(1) signals the process and then its whole group: two signals at once are one
        # (docs/platform-facts.md#linux-timeout-signals).
        elif now_s() - state.since_s >= _ONE_S:
            raise KeyboardInterrupt

    with _handlers(note):
        yield state


def wait_for_enter(ready: Callable[[], None]) -> None:
    """Wait for Enter on stdin; at its end, as with ``< /dev/null``, wait for a signal instead.

    Args:
        ready: Called once signals are handled, to notify the user.

    Raises:
        KeyboardInterrupt: If a signal arrives.
    """

    def stop(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    with _handlers(stop):
        ready()
        if not sys.stdin or not sys.stdin.readline():
            while True:
                time.sleep(_LONG_S)  # signal.pause() does not exist on Windows


@contextmanager
def _handlers(handler: Any) -> Iterator[None]:
    before = {
        number: signal.signal(number, handler) for number in _SIGNALS if not _under_nohup(number)
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _under_nohup(number: int) -> bool:
    """Return whether *number* is a SIGHUP that vmtool's parent process ignores."""
    hang_up = getattr(signal, "SIGHUP", None)
    return number == hang_up and signal.getsignal(number) == signal.SIG_IGN


def _again(failure: sys.UnraisableHookArgs) -> None:
    """Interrupt again, if an interruption came where Python can only ignore it.

    Such as in a callback of a weak reference, of which each import has one.
    """
    if not isinstance(failure.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(failure)
        return
    import threading

    again = threading.Timer(_SOON_S, _interrupt)
    again.daemon = True
    try:
        again.start()
    except RuntimeError:  # no thread can be started: what is going on is not worth waiting for
        os._exit(ExitCode.INTERRUPTED)


def _interrupt() -> None:
    """Send this process a signal that it handles: a shell's background job ignores SIGINT."""
    import threading

    numbers = (signal.SIGINT, signal.SIGTERM)
    number = next((n for n in numbers if callable(signal.getsignal(n))), signal.SIGINT)
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main(number)
    else:  # to the main thread, so that a call in which it waits returns
        signal.pthread_kill(threading.main_thread().ident or 0, number)
