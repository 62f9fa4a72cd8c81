"""The workers' journals: files that both processes map, with what each thread is doing right now.

A worker writes a few words before each phase; whatever kills it, the parent can still read them.
"""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from vmtool.errors import VmtoolError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
# Memory that is never written back to a disk, where there is such a place.
_SHARED: Final = "/dev/shm" if sys.platform == "linux" else None  # noqa: S108 - a private folder in it


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


class JournalFolder:
    """One journal for each worker, in a private folder.

    Args:
        threads: Of each worker.
        places: Where to try to make it, in order; ``None`` is the usual folder for such files.

    Attributes:
        paths: For the workers to open.
        journals: The same, open in this process.

    Raises:
        VmtoolError: If there is no place for them.
    """

    def __init__(
        self, threads: Sequence[int], places: Sequence[str | None] = (_SHARED, None)
    ) -> None:
        refusal: OSError | None = None
        for place in places:  # a container's /dev/shm is small, and may be full
            try:
                self._make(place, threads)
            except OSError as error:
                refusal = error
            else:
                return
        raise VmtoolError(
            f"cannot create the workers' journals: {refusal}",
            hint="set TMPDIR to a writable folder with free space; `ulimit -f` must allow a page",
        ) from refusal

    def _make(self, place: str | None, threads: Sequence[int]) -> None:
        import tempfile  # noqa: PLC0415 - not in workers

        self._folder = Path(tempfile.mkdtemp(prefix="vmtool-", dir=place))
        self.paths = [self._folder / f"journal-{index}" for index in range(len(threads))]
        self.journals: list[Journal] = []
        try:
            for path, count in zip(self.paths, threads, strict=True):
                self.journals.append(Journal(path, count))
        except BaseException:
            self.close()
            raise

    def remove_names(self) -> None:
        """Remove the names, once every worker has its journal open.

        Nothing is then left even when this process is killed. On Windows open files cannot be
        removed; they are when the run ends.
        """
        import shutil  # noqa: PLC0415 - likewise

        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the journals and remove them."""
        for journal in self.journals:
            journal.close()
        self.remove_names()
