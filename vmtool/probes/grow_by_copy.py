"""Growing a buffer by allocating and copying, to compare with growing in place."""

from __future__ import annotations

import errno
import mmap
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError, UnavailableError
from vmtool.histograms import summarize_samples
from vmtool.probes.grow_stamps import Stamps
from vmtool.results.grow import CopyResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.memory.cuda.context import DeviceContext


#: Copying stops after so long: the smaller the steps, the more is copied.
COPY_LIMIT_NS: Final = 2 * 10**9


class CopiedBuffer:
    """Bytes whose base moves at every growth, as with ``realloc`` of large blocks.

    The blocks come from the same kind of memory as a host backing's: private, anonymous, untouched.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._stamps, self._stamped = Stamps(0), 0

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Get a block of *nbytes*, copy the first *keep* bytes into it, and free the old block.

        Raises:
            CallError: If the platform refuses the block; the old one stays.
        """
        block = _map_block(nbytes)
        if self._block is not None:
            with memoryview(block) as to, memoryview(self._block) as old:
                to[:keep] = old[:keep]
            self._block.close()
        self._block = block

    def touch(self, before: int, length: int) -> None:
        """Write to what was added: an untouched source would copy too fast."""
        if length > self._stamped:
            self._stamps, self._stamped = Stamps(2 * length), 2 * length
        with self.view() as view:
            self._stamps.write(view, before)

    def view(self) -> memoryview:
        """Return a view of the bytes; release it before growing."""
        return memoryview(self._block or b"")

    def close(self) -> None:
        """Free the block."""
        if self._block is not None:
            self._block.close()
            self._block = None


class DeviceCopiedBuffer:
    """The same on a device: ``cuMemAlloc``, a copy on the device, and ``cuMemFree``."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._address = 0

    def grow_to(self, nbytes: int, *, keep: int) -> None:
        """Get memory of *nbytes*, copy the first *keep* bytes into it, wait, and free the old.

        Raises:
            CudaError: If the driver refuses; the old memory stays.
            UnavailableError: If the driver lacks one of the calls.
        """
        call = self._context.call
        self._context.driver.require("cuMemAlloc", "cuMemcpyDtoD", "cuMemFree")
        with self._context.current():
            address = call("cuMemAlloc", nbytes)
            old, self._address = self._address, address
            if old:
                try:
                    call("cuMemcpyDtoD", address, old, keep)
                    call("cuStreamSynchronize", 0)
                except CallError:
                    self._address = old
                    call("cuMemFree", address)
                    raise
                call("cuMemFree", old)

    def touch(self, _before: int, _length: int) -> None:
        """Do nothing: device memory is there once allocated."""

    def close(self) -> None:
        """Free the memory."""
        if self._address and not self._context.lost:
            with self._context.current():
                self._context.call("cuMemFree", self._address)
        self._address = 0


def compare_copying(
    lengths: Sequence[int],
    elapsed_ns: Sequence[int],
    buffer: CopiedBuffer | DeviceCopiedBuffer,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> CopyResult:
    """Grow a copied buffer through those *lengths* that grow, until something stops it.

    Args:
        lengths: Every length in turn.
        elapsed_ns: The time of each step in place.
        buffer: What to grow; it is closed at the end.
        stop: Called between two steps.
    """
    steps = [
        (before, length, ns)
        for before, length, ns in zip((0, *lengths), lengths, elapsed_ns, strict=False)
        if length > before
    ]
    copied_ns: list[int] = []
    spent_ns = 0
    stopped = None
    try:
        for before, length, _ in steps:
            if stop() or spent_ns > COPY_LIMIT_NS:
                stopped = "interrupted" if stop() else "time limit"
                break
            start = perf_counter_ns()
            buffer.grow_to(length, keep=before)
            copied_ns.append(perf_counter_ns() - start)
            spent_ns += copied_ns[-1]
            buffer.touch(before, length)
    except (CallError, UnavailableError) as error:
        stopped = str(error)
    finally:
        try:
            buffer.close()
        except CallError as error:
            stopped = stopped or str(error)
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
        faster_from_bytes=_faster_from(steps, copied_ns),
    )


def _faster_from(steps: Sequence[tuple[int, int, int]], copied_ns: Sequence[int]) -> int | None:
    """Return the smallest length from which every step was faster in place, if any."""
    start = None
    for (_, length, ns), copied in reversed(list(zip(steps, copied_ns, strict=False))):
        if ns >= copied:
            break
        start = length
    return start


def _map_block(nbytes: int) -> mmap.mmap:
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
