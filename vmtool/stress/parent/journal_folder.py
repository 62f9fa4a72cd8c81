"""The journals of the workers, in a private folder: they say what a killed one was doing."""

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
