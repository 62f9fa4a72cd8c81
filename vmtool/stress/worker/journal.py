"""What each worker thread is doing right now, in a file that both processes map.

The worker writes a few words before each phase; whatever kills it, the parent can still read them.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

#: The operations, by the number that stands in the journal.
OPERATIONS: Final = (
    "idle",
    "reserve",
    "commit",
    "touch",
    "verify",
    "release",
    "checkpoint",
    "fill",
    "unreserve",
)
IDLE, RESERVE, COMMIT, TOUCH, VERIFY, RELEASE, CHECKPOINT, FILL, UNRESERVE = range(len(OPERATIONS))

#: Words of an entry: operation, granule, cycles done, method's index, driver calls made (in that of
#: the first thread, by all of them); the rest is spare.
OPERATION, GRANULE, CYCLE, METHOD, BEAT = range(5)
# One cache line an entry, so that threads do not slow each other down.
_ENTRY_WORDS: Final = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """What one thread was doing."""

    operation: str
    granule: int
    cycle: int
    method_index: int
    beat: int = 0


class Journal:
    """One entry for each thread of a worker.

    Args:
        path: The file; it is made if it is not there.
        threads: How many entries.
    """

    def __init__(self, path: Path, threads: int) -> None:
        nbytes = threads * _ENTRY_WORDS * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        try:
            if os.fstat(descriptor).st_size < nbytes:
                # Written and not only made longer: where memory is full, this fails, and a hole
                # would be a SIGBUS for whoever looks into it.
                os.write(descriptor, bytes(nbytes))
            self._map = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self.threads = threads

    def slot(self, thread: int) -> memoryview:
        """Return the words of one thread's entry, for it to write: plain stores, no calls."""
        return self._words[thread * _ENTRY_WORDS : (thread + 1) * _ENTRY_WORDS]

    def read(self, thread: int) -> Entry:
        """Return one thread's entry; while it runs, the words may be of neighbouring moments."""
        words = self._words[thread * _ENTRY_WORDS : (thread + 1) * _ENTRY_WORDS].tolist()
        operation = OPERATIONS[min(words[OPERATION], len(OPERATIONS) - 1)]
        return Entry(operation, words[GRANULE], words[CYCLE], words[METHOD], words[BEAT])

    def close(self) -> None:
        """Unmap the file; slots must not be used afterwards."""
        self._words.release()
        self._bytes.release()
        with suppress(BufferError):  # a slot that is still there keeps it until the process ends
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
