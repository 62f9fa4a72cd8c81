"""Undoing steps after a failure without hiding the failure."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from vmtool.errors import VmtoolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Unwinding(ExitStack):
    """An ``ExitStack`` that keeps the first error: what else fails while it unwinds becomes a note."""

    def undo(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function(*arguments)`` at the end; with no error under way its own is raised."""

        def leave(
            _kind: type[BaseException] | None,
            error: BaseException | None,
            _traceback: TracebackType | None,
        ) -> None:
            try:
                function(*arguments)
            except VmtoolError as failure:
                if error is None:
                    raise
                # Every call on a lost device raises the error that lost it.
                if str(failure) not in str(error):
                    error.add_note(f"and while it was undone: {failure}")

        self.push(leave)
