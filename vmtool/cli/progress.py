"""One line on stderr that tells how far a run is; only on a terminal, and gone when it is done."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

import click

from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vmtool.results import StressSettings
    from vmtool.stress.run import Progress

_EVERY_NS: Final = 200 * 10**6
# The narrowest terminal that is worth a thought; a wrapped line could not be removed.
_WIDTH: Final = 39


@contextmanager
def stress_progress(
    settings: StressSettings, *, quiet: bool
) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the progress of a run of *settings*."""
    if quiet or not sys.stderr.isatty():
        yield lambda _progress: None
        return
    lanes = settings.threads * settings.workers * len(settings.methods)
    due = 0

    def show(progress: Progress) -> None:
        nonlocal due
        now = monotonic_ns()
        if now < due:
            return
        due = now + _EVERY_NS
        text = f"{format_duration(progress.elapsed_ns)}"
        if settings.duration_ns is not None:
            text += f" of {format_duration(settings.duration_ns)}"
        text += f", {progress.cycles:,}"
        if settings.cycles is not None:
            text += f" of {settings.cycles * lanes:,}"
        _overwrite(f"{text} cycles")

    try:
        yield show
    finally:
        _overwrite("")
        click.echo("\r", nl=False, err=True)


def _overwrite(text: str) -> None:
    click.echo(f"\r{text[:_WIDTH].ljust(_WIDTH)}", nl=False, err=True)
