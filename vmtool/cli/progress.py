"""One line on stderr with the progress of a run; only on a terminal, and gone when it is done."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

import click

from vmtool.cli.streams import on_terminal
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vmtool.results.stress import StressSettings
    from vmtool.stress.parent.run_workers import Progress

_EVERY_NS: Final = 200 * 10**6
# The narrowest terminal that is worth a thought; a wrapped line could not be removed.
_WIDTH: Final = 39


@contextmanager
def progress_line(
    *, quiet: bool, every_ns: int = _EVERY_NS
) -> Iterator[Callable[[Callable[[], str]], None]]:
    """Yield a function that shows a text, which it makes only when it is time for a new one.

    Args:
        quiet: Show none.
        every_ns: The time from one to the next; 0 shows each, for a run with few.
    """
    if quiet or not on_terminal(sys.stderr):
        yield lambda _make_text: None
        return
    due = monotonic_ns() + every_ns  # what is done at once needs no progress

    def show(make_text: Callable[[], str]) -> None:
        nonlocal due
        now = monotonic_ns()
        if now >= due:
            due = now + every_ns
            _overwrite(make_text())

    try:
        yield show
    finally:
        _overwrite("")
        click.echo("\r", nl=False, err=True)


@contextmanager
def stress_progress(
    settings: StressSettings, *, quiet: bool
) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the progress of a run of *settings*."""
    lanes = settings.threads * settings.workers * len(settings.methods)

    def text(progress: Progress) -> str:
        cycles, elapsed = f"{progress.cycles:,}", format_duration(progress.elapsed_ns)
        if settings.cycles is not None:
            cycles += f" of {settings.cycles * lanes:,}"
        if settings.runs > 1:  # starting their processes takes time as well
            return f"run {progress.run} of {settings.runs}, {cycles} cycles, {elapsed}"
        if settings.duration_ns is not None:
            elapsed += f" of {format_duration(settings.duration_ns)}"
        return f"{elapsed}, {cycles} cycles"

    with progress_line(quiet=quiet) as show:
        yield lambda progress: show(lambda: text(progress))


def fitting(text: str) -> str:
    """Return the parts of *text* that fit in the line, whole: a unit that is cut misleads."""
    while len(text) > _WIDTH and ", " in text:
        text = text.rpartition(", ")[0]
    return text


def _overwrite(text: str) -> None:
    text = fitting(text)
    click.echo(f"\r{text[:_WIDTH].ljust(_WIDTH)}", nl=False, err=True)
