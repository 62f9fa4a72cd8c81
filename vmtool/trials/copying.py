"""The other way to grow: get a larger block, copy everything, give the old block back."""

from __future__ import annotations

import errno
import mmap
import sys
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError
from vmtool.stats import Summary, summarize_samples
from vmtool.trials.stamps import Stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Copying stops when its steps have taken so long: growing in small steps copies without bound.
COPY_LIMIT_NS: Final = 2 * 10**9


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The same growth by copying.

    Attributes:
        steps: Growing steps done before the limit; the first so many of the plan.
        planned_steps: Growing steps in the plan.
        copied_bytes: What was copied together.
        copying: Latency of its steps.
        in_place: Latency of the same steps of the buffer that grew in place.
        copying_ns: Time of its steps together.
        in_place_ns: Time of the same steps in place.
        stopped: Why not all steps were done, or ``None``.
    """

    steps: int
    planned_steps: int
    copied_bytes: int
    copying: Summary
    in_place: Summary
    copying_ns: int
    in_place_ns: int
    stopped: str | None = None


class CopiedBuffer:
    """Bytes whose base moves at every growth, as with ``realloc`` of large blocks.

    The blocks come from the same kind of memory as a host backing's: private, anonymous, untouched.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Make the length *nbytes*: get, copy the first *keep* bytes, give back.

        Raises:
            CallError: If the platform has no such block; the old one stays.
        """
        block = _get(nbytes)
        if self._block is not None:
            with memoryview(block) as to, memoryview(self._block) as old:
                to[:keep] = old[:keep]
            self._block.close()
        self._block = block

    def view(self) -> memoryview:
        """Return a view of the bytes; release it before growing."""
        return memoryview(self._block or b"")

    def close(self) -> None:
        """Give the block back."""
        if self._block is not None:
            self._block.close()
            self._block = None


def compare_copying(
    lengths: Sequence[int],
    elapsed_ns: Sequence[int],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> CopyResult:
    """Grow a copied buffer through those *lengths* that grow, until something stops it.

    Args:
        lengths: Every length in turn, beginning after 0.
        elapsed_ns: What each step took in place.
        stop: Asked between two steps.
    """
    steps = [
        (before, length, ns)
        for before, length, ns in zip((0, *lengths), lengths, elapsed_ns, strict=False)
        if length > before
    ]
    copied_ns: list[int] = []
    spent_ns = 0
    stopped = None
    buffer = CopiedBuffer()
    stamps = Stamps(max(lengths))
    try:
        for before, length, _ in steps:
            if stop() or spent_ns > COPY_LIMIT_NS:
                stopped = "interrupted" if stop() else "it had taken 2 s"
                break
            start = perf_counter_ns()
            buffer.grow_to(length, keep=before)
            copied_ns.append(perf_counter_ns() - start)
            spent_ns += copied_ns[-1]
            with buffer.view() as view:
                stamps.write(view, before)  # an untouched source would copy too fast
    except CallError as error:
        stopped = str(error)
    finally:
        buffer.close()
    in_place_ns = [ns for _, _, ns in steps[: len(copied_ns)]]
    return CopyResult(
        steps=len(copied_ns),
        planned_steps=len(steps),
        copied_bytes=sum(before for before, _, _ in steps[: len(copied_ns)]),
        copying=summarize_samples(copied_ns),
        in_place=summarize_samples(in_place_ns),
        copying_ns=spent_ns,
        in_place_ns=sum(in_place_ns),
        stopped=stopped,
    )


def _get(nbytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        else:  # mypy needs both branches spelled out
            return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        code = error.errno or 0
        symbol = errno.errorcode.get(code, "UNKNOWN")
        raise CallError(
            "mmap.mmap", f"-1, {nbytes}", code=code, symbol=symbol, detail=error.strerror or ""
        ) from error
