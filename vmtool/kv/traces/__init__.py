"""Lines of a file that may be hostile: bounded length, numbered, one in memory at a time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from vmtool.errors import InputError, UsageError
from vmtool.kv.sources.reading import open_regular
from vmtool.kv.traces.formats import Format, detect
from vmtool.kv.traces.request import (
    LISTED_BAD_LINES,
    MAX_SECONDS,
    PREFIX_TOKENS,
    LineError,
    Reading,
    Request,
)
from vmtool.kv.traces.synthetic import SYNTHETIC, parse_synthetic, synthetic_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The longest line. One of Mooncake's with a million tokens has some 16 KiB.
MAX_LINE_BYTES: Final = 1 << 20


def numbered_lines(path: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line of *path* with its number, from 1; ``None`` for one that is too long.

    Raises:
        InputError: If the file cannot be read or is not a regular file.
    """
    with open_regular(path) as file:
        number = 0
        while True:
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                number += 1
                if len(line) <= MAX_LINE_BYTES:
                    yield number, line
                    continue
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
            except OSError as error:
                reason = error.strerror or str(error)
                raise InputError(
                    path, f"cannot be read: {reason}", field=f"line {number}"
                ) from error
            yield number, None


__all__ = ["PREFIX_TOKENS", "Reading", "Request", "Trace"]

#: Bad lines that a trace may have unless more are allowed.
DEFAULT_MAX_BAD_LINES: Final = 100
#: What traces are published or saved as besides plain text, by their first bytes.
_OTHERS: Final = {
    b"\x1f\x8b": "compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class Trace:
    """A trace that can be read any number of times, each time from its beginning.

    Args:
        name: A file, or ``synthetic:`` and its settings.
        seed: For what is drawn: a made-up trace, and arrivals at *rate*.
        rate: Requests for each second where the trace has no times; ``None``: all at once.
        limit: Read no more requests than this.
        max_bad_lines: Fail when more lines than this are no requests.

    Raises:
        UsageError: If the settings of a made-up trace or the rate are wrong.
        InputError: If the file cannot be read, or is of no known format.

    Attributes:
        name: As given.
        format: ``azure``, ``burstgpt``, ``mooncake``, ``jsonl`` or ``synthetic``.
        reading: What the last or current pass has read.
    """

    def __init__(
        self,
        name: str,
        *,
        seed: int = 0,
        rate: float | None = None,
        limit: int | None = None,
        max_bad_lines: int = DEFAULT_MAX_BAD_LINES,
    ) -> None:
        self.name = name
        self.reading = Reading()
        self._seed = seed
        self._rate = rate
        self._limit = limit
        self._max_bad_lines = max_bad_lines
        self._first_line = 0
        if rate is not None and not 1e-3 <= rate <= 1e6:  # not true of NaN either
            raise UsageError(f"{rate} requests a second: it must be from 0.001 to 1000000")
        self._synthetic = parse_synthetic(name) if name.startswith(SYNTHETIC) else None
        self._lines = None if self._synthetic is not None else self._detect()
        self.format = "synthetic" if self._lines is None else self._lines.name

    def __iter__(self) -> Iterator[Request]:
        self.reading = Reading()
        for request in self._from_zero(self._all()):
            self.reading.requests += 1
            yield request
            if self.reading.requests == self._limit:
                return
        if not self.reading.requests:
            why = "".join(f"; line {line} {words}" for line, words in self.reading.bad_lines[:1])
            raise InputError(self.name, f"has no requests in {self.reading.lines} lines{why}")

    def _all(self) -> Iterable[Request]:
        if self._synthetic is not None:
            return synthetic_requests(self._synthetic, self._seed)
        assert self._lines is not None  # noqa: S101 - one of both is set
        found = self._parsed(self._lines)
        return found if self._lines.timed else self._timed(found)

    def _from_zero(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield *requests* with times from the first one on that never go back."""
        first: int | None = None
        last = 0
        for request in requests:
            first = request.arrival_ns if first is None else first
            at = request.arrival_ns - first
            if at > MAX_SECONDS * 10**9:
                self._bad(self.reading.lines, "its time is more than 31 years after the first")
                continue
            if at < last:
                self.reading.late += 1
            last = max(last, at)
            yield Request(last, request.prompt_tokens, request.output_tokens, request.prefix)

    def _timed(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield *requests* with arrivals drawn at the rate, or all at once."""
        random = Random(self._seed)  # noqa: S311 - a workload, not a secret
        at = 0.0
        for request in requests:
            yield Request(
                round(at * 1e9), request.prompt_tokens, request.output_tokens, request.prefix
            )
            at += random.expovariate(self._rate) if self._rate is not None else 0.0

    def _parsed(self, lines: Format) -> Iterator[Request]:
        for number, raw in numbered_lines(self.name):
            self.reading.lines = number
            if lines.heading and number == self._first_line:
                continue
            if raw is not None and not raw.strip():
                continue
            try:
                yield lines.parse(_decoded(raw).strip())
            except LineError as error:
                self._bad(number, str(error))

    def _bad(self, number: int, why: str) -> None:
        reading = self.reading
        reading.bad += 1
        if len(reading.bad_lines) < LISTED_BAD_LINES:
            reading.bad_lines.append((number, why))
        if reading.bad > self._max_bad_lines:
            raise InputError(
                self.name,
                f"{why}; more than {self._max_bad_lines} lines are no requests",
                field=f"line {number}",
                hint="allow more with --max-bad-lines",
            )

    def _detect(self) -> Format:
        for number, raw in numbered_lines(self.name):
            if raw is not None and not raw.strip():
                continue
            self._first_line = number
            try:
                return detect(_decoded(raw).strip())
            except LineError as error:
                raise InputError(self.name, str(error), field=f"line {number}") from None
        raise InputError(self.name, "is empty")


def _decoded(raw: bytes | None) -> str:
    if raw is None:
        raise LineError(f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        kind = next((name for magic, name in _OTHERS.items() if raw.startswith(magic)), None)
        raise LineError(f"is {kind}, not UTF-8 text" if kind else "is not UTF-8 text") from None
