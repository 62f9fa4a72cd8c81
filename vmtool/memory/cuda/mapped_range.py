"""A range of a device's addresses, and the handles of memory that are mapped in it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vmtool.errors import VmtoolError
from vmtool.memory.cuda.errors_and_diagnosis import CudaError
from vmtool.memory.errors import QuarantineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.memory.cuda.context import DeviceContext
    from vmtool.memory.cuda.handles import HandleSource


class MappedRange:
    """A reserved range of device addresses and the handle mapped at each of its chunks.

    It outlives the reservation that a caller forgets, and can then give everything back.

    Attributes:
        base: The first device address.
        nbytes: The size of the range.
        chunk: The size of one handle.
        handles: The handle at each chunk that is mapped, or perhaps still is, by its number.
        freed: Whether the addresses were given back.
    """

    __slots__ = (
        "__weakref__",
        "_access",
        "_context",
        "_source",
        "base",
        "chunk",
        "freed",
        "handles",
        "nbytes",
    )

    def __init__(
        self,
        context: DeviceContext,
        source: HandleSource,
        access: list[Any],
        span: tuple[int, int],
        chunk: int,
    ) -> None:
        self._context = context
        self._source = source
        self._access = access
        self.base, self.nbytes = span
        self.chunk = chunk
        self.handles: dict[int, int] = {}
        self.freed = False

    def map(self, start: int, end: int) -> None:
        """Map a handle at each chunk of ``start..end``, and give the device access to all at once.

        Raises:
            CudaError, BudgetError: If a handle or a mapping cannot be had; nothing has changed.
            QuarantineError: If what was mapped meanwhile could not be unmapped again.
        """
        with self._undoing(start, end) as done:
            for at in range(start, end, self.chunk):
                self._map_one(at, self._source.take(), done)
            self._set_access(start, end, self._access)
            if self._source.dirty:
                self._clear(start, end)

    def map_shared(self, start: int, handles: list[int], access: list[Any]) -> None:
        """Map *handles*, which another range holds too, from *start* on with *access*.

        The caller has counted one user more at their source.

        Raises:
            CudaError: If a mapping cannot be had; nothing has changed but that all are given back.
            QuarantineError: If what was mapped meanwhile could not be unmapped again.
        """
        end = start + len(handles) * self.chunk
        left = list(reversed(handles))
        try:
            with self._undoing(start, end) as done:
                for at in range(start, end, self.chunk):
                    self._map_one(at, left.pop(), done)
                self._set_access(start, end, access)
        except VmtoolError:
            self._give(left)
            raise

    def unmap(self, start: int, end: int, *, wait: bool = True) -> None:
        """Unmap ``start..end``, whole mappings without a hole, in one call; give back the handles.

        Args:
            start: The first offset.
            end: The offset after the last.
            wait: False only where nothing that was submitted can touch the range.

        Raises:
            CudaError: If the driver refuses; everything is still mapped, or the device is lost.
            QuarantineError: If it is not known whether it is, or a handle was not taken back.
        """
        call = self._context.call
        if wait:  # cuMemUnmap does not wait for work in flight, which would then fault (docs)
            self._context.synchronise()
        try:
            call("cuMemUnmap", self.base + start, end - start)
        except CudaError as error:
            # A lost device answers nothing any more: that is reported, not a doubt about one span.
            mapped = self._is_mapped(start) and self._is_mapped(end - self.chunk)
            if self._context.lost or mapped:
                raise
            raise QuarantineError((start, end), error) from error
        chunks = range(start // self.chunk, end // self.chunk)
        lost = self._give([self.handles.pop(number) for number in chunks])
        if lost:
            numbers = [chunks[index] for index, _ in lost]
            span = (numbers[0] * self.chunk, (numbers[-1] + 1) * self.chunk)
            raise QuarantineError(span, lost[0][1]) from lost[0][1]

    def free(self) -> None:
        """Unmap everything and give back the addresses; on a lost device the process's end does.

        Raises:
            CudaError: If the driver refuses; what is left can be tried again.
            QuarantineError: If only a handle was not taken back; the addresses are.
        """
        if self._context.lost:
            self.handles.clear()
            self.freed = True
            return
        failure: QuarantineError | None = None
        for start, end in self._runs():
            try:
                self.unmap(start, end)
            except QuarantineError as error:
                if start // self.chunk in self.handles:
                    raise
                failure = error
        self._context.call("cuMemAddressFree", self.base, self.nbytes)
        self.freed = True
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Give everything back and report nothing: for a reservation that was forgotten."""
        try:
            self.free()
        except VmtoolError:
            return  # the driver shuts down with the process and takes the rest

    @contextmanager
    def _undoing(self, start: int, end: int) -> Iterator[list[int]]:
        """Keep the handles that the body maps from *start* on, or unmap them if it fails."""
        done: list[int] = []
        try:
            yield done
        except CudaError as error:
            # First: undoing gives back what ran out.
            explained = self._context.explain(error, end - start, len(self.handles) + len(done))
            self._roll_back(start, done, explained)
            raise explained from error
        except BaseException as error:
            self._roll_back(start, done, error)
            raise
        self._keep(start, done)

    def _map_one(self, at: int, handle: int, done: list[int]) -> None:
        try:
            self._context.call("cuMemMap", self.base + at, self.chunk, 0, handle, 0)
        except BaseException:
            self._give([handle])
            raise
        done.append(handle)

    def _set_access(self, start: int, end: int, access: list[Any]) -> None:
        self._context.call("cuMemSetAccess", self.base + start, end - start, access, len(access))

    def _clear(self, start: int, end: int) -> None:
        """Make ``start..end`` zero, and wait: the user's streams need not order with ours."""
        call = self._context.call
        with self._context.current():
            call("cuMemsetD8", self.base + start, 0, end - start)
            call("cuStreamSynchronize", 0)  # the default stream, which the memset is on

    def _keep(self, start: int, handles: list[int]) -> None:
        first = start // self.chunk
        self.handles.update(zip(range(first, first + len(handles)), handles, strict=True))

    def _roll_back(self, start: int, handles: list[int], error: BaseException) -> None:
        """Unmap what a failing commit has mapped; only our own clearing can be in flight there."""
        if not handles or self._context.lost:
            return
        end = start + len(handles) * self.chunk
        try:
            self._context.synchronise()
            self._context.call("cuMemUnmap", self.base + start, end - start)
        except CudaError as failure:
            if self._context.lost:
                return  # the process's end gives all of it back
            self._keep(start, handles)
            failure.add_note(f"while undoing a commit that failed: {error}")
            raise QuarantineError((start, end), failure) from failure
        for _, lost in self._give(handles):
            error.add_note(f"and a handle was lost: {lost}")

    def _give(self, handles: list[int]) -> list[tuple[int, CudaError]]:
        """Give handles back to their source; which of them it could not take, and why."""
        lost = []
        for index, handle in enumerate(handles):
            try:
                self._source.give(handle)
            except CudaError as error:
                lost.append((index, error))
        return lost

    def _is_mapped(self, offset: int) -> bool:
        """Return whether the driver still has access rights at *offset*; an error is a no."""
        try:
            location = self._access[0].location
            return bool(self._context.call("cuMemGetAccess", location, self.base + offset))
        except CudaError:
            return False

    def _runs(self) -> list[tuple[int, int]]:
        """Return the maximal runs of mapped chunks, as offsets."""
        runs: list[tuple[int, int]] = []
        for number in sorted(self.handles):
            start, end = number * self.chunk, (number + 1) * self.chunk
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        return runs
