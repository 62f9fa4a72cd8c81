"""A trace of requests that can be read any number of times: from a file, or synthetic."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from io import FileIO
from random import Random
from typing import TYPE_CHECKING, Final

from vmtool.errors import InputError, UsageError
from vmtool.input_files import is_stream, kind_of, open_bytes, open_text
from vmtool.kv.traces.request_formats import Format, LineError, Request, detect
from vmtool.kv.traces.synthetic import SYNTHETIC, parse_synthetic, synthetic_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vmtool.kv.traces.request_formats import Row


#: The longest line. One of Mooncake's with a million tokens has some 16 KiB.
MAX_LINE_BYTES: Final = 1 << 20
#: Bad lines that a trace may have unless more are allowed.
DEFAULT_MAX_BAD_LINES: Final = 100
#: The part of requests that may be earlier than one before them, unless the trace is sorted.
MAX_LATE: Final = 0.01
#: Some 31 years in seconds: beyond, a time is not that of a trace.
MAX_SECONDS: Final = 10**9
#: How many bad lines are listed.
LISTED_BAD_LINES: Final = 5


@dataclass(slots=True)
class Reading:
    """What was read of a trace so far.

    Attributes:
        lines: Lines read, with the heading and the bad ones.
        nbytes: About how many bytes that is.
        requests: Requests found.
        late: Requests earlier than one before them; they count as arriving with it.
        bad: Lines that are not requests.
        bad_lines: The first of them: line number and what is wrong.
    """

    lines: int = 0
    nbytes: int = 0
    requests: int = 0
    late: int = 0
    bad: int = 0
    bad_lines: list[tuple[int, str]] = field(default_factory=list)


class Trace:
    """A trace that can be read any number of times, each time from its beginning.

    Args:
        name: A file, ``-`` for stdin, or ``synthetic:`` and its settings.
        seed: For what is drawn: a synthetic trace, and arrivals at *rate*.
        rate: Requests a second where the trace has no times; ``None``: all at once.
        limit: Read no more requests than this.
        max_bad_lines: Fail when more lines than this are not requests.
        sort: Sort requests by time, which takes memory for all of them.

    Raises:
        UsageError: If the settings of a synthetic trace or the rate are wrong.
        InputError: If the file cannot be read, or has no supported format.

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
        sort: bool = False,
    ) -> None:
        self.name = name
        self.reading = Reading()
        self._seed = seed
        self._rate = rate
        self._limit = limit
        self._max_bad_lines = max_bad_lines
        self._sort = sort
        self._first_line = 0
        self._file_bytes: int | None = None
        if rate is not None and not 1e-3 <= rate <= 1e6:  # not true of NaN either
            raise UsageError(f"{rate} requests a second: it must be from 0.001 to 1000000")
        self._synthetic = parse_synthetic(name) if name.startswith(SYNTHETIC) else None
        self._lines = None if self._synthetic is not None else self._detect()
        self.format = "synthetic" if self._lines is None else self._lines.name

    def __iter__(self) -> Iterator[Request]:
        reading = self.reading = Reading()
        rows = self._rows()
        if self._sort:
            rows = iter(sorted(rows, key=lambda row: row[0]))
        limit, latest = self._limit, MAX_SECONDS * 10**9
        new = tuple.__new__  # without the check of the names of arguments
        first, last = -1, 0
        for arrival_ns, prompt, output, prefix in rows:
            if first < 0:
                first = arrival_ns
            at = arrival_ns - first
            if at > latest:
                self._bad(reading.lines, "its time is more than 31 years after the first")
                continue
            if at < last:
                reading.late += 1
            else:
                last = at
            reading.requests += 1
            yield new(Request, (last, prompt, output, prefix))
            if reading.requests == limit:
                break
        self._check()

    def progress(self) -> float | None:
        """Return how much of the trace was read, or ``None`` if that is unknown."""
        reading = self.reading
        total = self._limit
        if self._synthetic is not None:
            total = min(total or self._synthetic.requests, self._synthetic.requests)
        if total:
            return min(reading.requests / total, 1.0)
        if self._file_bytes:
            return min(reading.nbytes / self._file_bytes, 1.0)
        return None

    def _check(self) -> None:
        """Refuse a trace without requests, or with too many that go back in time."""
        reading = self.reading
        if not reading.requests:
            why = "".join(f"; line {line} {words}" for line, words in reading.bad_lines[:1])
            raise InputError(self.name, f"has no requests in {reading.lines} lines{why}")
        if reading.late > MAX_LATE * reading.requests:
            raise InputError(
                self.name,
                f"{reading.late:,} of {reading.requests:,} requests are earlier than a request "
                "before them",
                hint=(
                    "use --sort if only the order of the lines is wrong; otherwise correct the "
                    "times"
                ),
            )

    def _rows(self) -> Iterator[Row]:
        if self._synthetic is not None:
            return synthetic_requests(self._synthetic, self._seed)
        assert self._lines is not None  # noqa: S101 - one of both is set
        rows = self._parsed(self._lines)
        return rows if self._lines.timed else self._timed(rows)

    def _timed(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield *rows* with arrivals drawn at the rate, or all at once."""
        random = Random(self._seed)  # noqa: S311 - a workload, not a secret
        at = 0.0
        for _, prompt, output, prefix in rows:
            yield round(at * 1e9), prompt, output, prefix
            at += random.expovariate(self._rate) if self._rate is not None else 0.0

    def _parsed(self, lines: Format) -> Iterator[Row]:
        reading, parse = self.reading, lines.parse
        skip = self._first_line if lines.heading else 0
        for number, raw in numbered_lines(self.name):
            reading.lines = number
            reading.nbytes += MAX_LINE_BYTES if raw is None else len(raw)
            if number == skip:
                continue
            try:
                line = _decoded(raw)
                if line:
                    yield parse(line)
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
                f"{why}; more than {self._max_bad_lines} lines are not requests",
                field=f"line {number}",
                hint="allow more with --max-bad-lines",
            )

    def _detect(self) -> Format:
        for number, raw in numbered_lines(self.name):
            try:
                line = _decoded(raw)
                if not line:
                    continue
                self._first_line = number
                found = detect(line)
            except LineError as error:
                raise InputError(self.name, str(error), field=f"line {number}") from None
            self._file_bytes = _text_bytes(self.name)
            return found
        raise InputError(self.name, "is empty")


def numbered_lines(path: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line of *path* with its number, from 1; ``None`` for one that is too long.

    Raises:
        InputError: If the file cannot be read.
    """
    with open_text(path) as file:
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


def _text_bytes(path: str) -> int | None:
    """Return how long the text is, if that is known before it is read."""
    if is_stream(path):
        return None
    with open_bytes(path) as file:
        compressed = not isinstance(file.raw, FileIO) if hasattr(file, "raw") else True
        return None if compressed else os.fstat(file.fileno()).st_size


def _decoded(raw: bytes | None) -> str:
    """Return a line without blanks around it."""
    if raw is None:
        raise LineError(f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        return raw.decode().strip()
    except UnicodeDecodeError:
        kind = kind_of(raw)
        raise LineError(f"is {kind}, not text" if kind else "is not UTF-8 text") from None
