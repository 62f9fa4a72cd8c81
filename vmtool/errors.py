"""The error tree: what went wrong, what to do about it, and the exit code that says so."""

from __future__ import annotations

import enum
from typing import ClassVar, Final


class ExitCode(enum.IntEnum):
    """Exit codes of the ``vmtool`` command."""

    DONE = 0
    CALL_FAILED = 1
    USAGE = 2
    CHECK_FAILED = 3
    UNAVAILABLE = 4
    REFUSED = 5
    INTERRUPTED = 130


class VmtoolError(Exception):
    """Base of every error that vmtool raises on purpose.

    Attributes:
        cause: The likely cause on this machine, or ``None``.
        hint: What to do about it, or ``None``.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.CALL_FAILED

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.hint = hint


class UsageError(VmtoolError, ValueError):
    """An argument that can never work: wrong syntax, misaligned, out of range."""

    exit_code = ExitCode.USAGE


class InputError(UsageError):
    """A file that is not what it should be: malformed, hostile, or not understood.

    Attributes:
        path: The file.
        field: The key or position in it, or ``None``.
    """

    def __init__(
        self, path: str, message: str, *, field: str | None = None, hint: str | None = None
    ) -> None:
        name = "standard input" if path == "-" else path
        where = f"{name}: {field}" if field else name
        super().__init__(f"{where}: {message}", hint=hint)
        self.path = path
        self.field = field


class CallError(VmtoolError):
    """An operating system or driver call that failed.

    Attributes:
        call: The function, such as ``mmap``.
        arguments: Its arguments as text, such as ``137438953472, PROT_NONE``.
        code: The numeric code (errno, Win32 error, CUresult).
        symbol: Its symbolic name, such as ``ENOMEM``.
        detail: The platform's own words for the code.
    """

    def __init__(
        self,
        call: str,
        arguments: str,
        *,
        code: int,
        symbol: str,
        detail: str = "",
        cause: str | None = None,
        hint: str | None = None,
    ) -> None:
        words = f": {detail}" if detail else ""
        super().__init__(
            f"{call}({arguments}) failed: {symbol} ({code}){words}", cause=cause, hint=hint
        )
        self.call = call
        self.arguments = arguments
        self.code = code
        self.symbol = symbol
        self.detail = detail


class CheckFailedError(VmtoolError):
    """Memory or bookkeeping was not as promised: corruption, a leak, a limit exceeded."""

    exit_code = ExitCode.CHECK_FAILED


class UnavailableError(VmtoolError):
    """Something that this machine does not have: a GPU, a driver, an OS feature."""

    exit_code = ExitCode.UNAVAILABLE


class RefusedError(VmtoolError):
    """Work that the budget or the preflight refuses before anything is mapped."""

    exit_code = ExitCode.REFUSED


#: Why a call is refused that needs no right, and what to do.
REFUSED_BY_POLICY: Final = (
    "a security policy does not allow it (seccomp, SELinux or a sandbox)",
    "check the seccomp profile of the container, or run outside the container",
)


def printable(text: str) -> str:
    """Return *text* with escapes for what a terminal would obey and for what no encoding has."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def printable_lines(text: str) -> str:
    """Return *text* with its lines, and escapes for all else that :func:`printable` escapes."""
    return "\n".join(map(printable, text.split("\n")))
