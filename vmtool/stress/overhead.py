"""What the harness itself adds to a sample: the same loop over a buffer that does nothing."""

from __future__ import annotations

from array import array
from typing import Final

from vmtool.stress.lane import Lane
from vmtool.stress.workloads import Kind

_CYCLES: Final = 2000


class _NoSpans:
    """A buffer that commits and releases nothing."""

    def commit(self, _offset: int, _nbytes: int, /) -> None:
        pass

    def release(self, _offset: int, _nbytes: int, /) -> None:
        pass


def measure_overhead() -> int:
    """Return the median nanoseconds of a commit phase that commits nothing.

    Two clock reads and one method call: what every sample of a real phase contains as well.
    """
    lane = Lane(_NoSpans(), 1, memoryview(array("Q", bytes(64))), None, verified=False)
    operations = ((kind, 0, 1) for _ in range(_CYCLES) for kind in Kind)
    lane.run(operations, lambda: True)
    return lane.recorders["commit"].result("commit").summary.median_ns or 0
