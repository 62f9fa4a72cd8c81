"""What the parent keeps of its workers, should they be killed: their journals and checkpoints."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vmtool.errors import VmtoolError
from vmtool.stress.worker.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.results.stress import Checkpoint


# Memory that is never written back to a disk, where there is such a place.
_SHARED: Final = "/dev/shm" if sys.platform == "linux" else None  # noqa: S108 - a private folder in it


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
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the journals and remove them."""
        for journal in self.journals:
            journal.close()
        self.remove_names()


#: When there are more checkpoints of one worker, every other one is dropped.
MOST_CHECKPOINTS: Final = 256


class KeptCheckpoints:
    """One worker's checkpoints, evenly thinned out, so that hours of them stay bounded."""

    def __init__(self, most: int = MOST_CHECKPOINTS) -> None:
        self._most = most
        self._kept: list[Checkpoint] = []
        self._differing: dict[str, Checkpoint] = {}
        self._seen = 0
        self._every = 1

    def add(self, checkpoint: Checkpoint) -> None:
        """Remember *checkpoint*, for good if it is the first where some counter differed."""
        for reading in checkpoint.buffers:
            if not reading.agrees:
                self._differing.setdefault(reading.counter, checkpoint)
        if self._seen % self._every == 0:
            self._kept.append(checkpoint)
            if len(self._kept) > self._most:
                del self._kept[1::2]
                self._every *= 2
        self._seen += 1

    def kept(self) -> tuple[Checkpoint, ...]:
        """Return those that are kept, in order."""
        chosen = {id(item): item for item in (*self._kept, *self._differing.values())}
        return tuple(sorted(chosen.values(), key=lambda checkpoint: checkpoint.at_ns))
