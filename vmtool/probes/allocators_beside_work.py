"""The part of ``vmtool allocators`` that maps and unmaps while work runs, in a process of its own.

``python -m vmtool.probes.allocators_beside_work ORDINAL WORK_BYTES STEPS`` prints a result as JSON.

Fills run over and over on one range, each with a word of its own, and are read back now and then;
another range is mapped, filled, checked and unmapped meanwhile by a second thread. That is what an
engine does that grows its cache while it decodes; on some devices it ended the context, and what its
process could do (https://github.com/ovg-project/kvcached/issues/465).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from time import perf_counter_ns
from typing import Final

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.json_documents import decode
from vmtool.memory.addresses import Block, differs
from vmtool.memory.backing_by_name import open_device
from vmtool.memory.children import end_child, prepare_child, start_child
from vmtool.memory.cuda.copies import DeviceCopies
from vmtool.memory.cuda.driver import STREAM_NON_BLOCKING
from vmtool.memory.cuda.errors_and_diagnosis import DeviceLostError
from vmtool.results.allocators import BesideWork, StepLatency

STEPS: Final = 400
_TIMEOUT_S: Final = 120
#: How often the range of the work is read back in each part, between two steps and out of their clock.
_LOOKS: Final = 8


def run_beside_work(ordinal: int, work_bytes: int, *, steps: int = STEPS) -> BesideWork:
    """Map and unmap beside work in a new process; its death is a result, too.

    Args:
        ordinal: The device.
        work_bytes: The range that the work fills, a multiple of the device's granularity; a chunk
            more is committed beside it.
        steps: How many fills, alone and beside the cycles.

    Raises:
        VmtoolError: If the process cannot be started or, stuck in the driver, not be ended.
    """
    child = start_child(
        "vmtool.probes.allocators_beside_work", str(ordinal), str(work_bytes), str(steps)
    )
    try:
        out, _ = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return BesideWork(error=f"not finished after {_TIMEOUT_S} s")
    finally:
        end_child(child)
    if child.returncode:
        return BesideWork(error=f"the process ended with {child.returncode}")
    return decode(BesideWork, json.loads(out))


def measure(ordinal: int, work_bytes: int, steps: int) -> BesideWork:
    """Measure in this process.

    Raises:
        UnavailableError: If the driver lacks a call of it.
        VmtoolError: If the memory for it cannot be had.
    """
    backing = open_device(f"cuda:{ordinal}")
    context, unit = backing.context, backing.granularity
    context.driver.require("cuStreamCreate", "cuStreamDestroy", "cuMemsetD32Async")
    work = backing.reserve(work_bytes)
    beside = backing.reserve(unit)
    backing.commit(work, 0, work_bytes)
    cycles = _Cycles(DeviceCopies(context), beside, unit)
    with context.current():
        stream: int = context.call("cuStreamCreate", STREAM_NON_BLOCKING)
        copies, found = DeviceCopies(context), Block(work_bytes)
        word, intact = 0, True

        def step() -> int:
            nonlocal word
            word += 1  # so that a fill that did not happen is seen
            began = perf_counter_ns()
            context.call("cuMemsetD32Async", work.base, word, work_bytes // 4, stream)
            context.call("cuStreamSynchronize", stream)
            return perf_counter_ns() - began

        def run() -> list[int]:
            nonlocal intact
            samples = []
            for number in range(1, steps + 1):
                samples.append(step())
                if number % max(steps // _LOOKS, 1) == 0 or number == steps:
                    copies.read(work, 0, found.view)
                    intact &= _holds(found, word)
            return samples

        step()
        alone = run()
        cycles.start()
        try:
            together = run()
        except VmtoolError as error:
            return replace(_ended_by(error), cycles=cycles.done, alone=_latency(alone))
        finally:
            cycles.stop()
    measured = BesideWork(
        cycles=cycles.done,
        alone=_latency(alone),
        beside=_latency(together),
        work_intact=intact,
        range_intact=cycles.intact,
        error=cycles.error,
    )
    try:
        with context.current():
            context.call("cuStreamDestroy", stream)
        backing.unreserve(work)
        backing.unreserve(beside)
        backing.close()
    except VmtoolError as error:  # the device is lost, and the work had ended before that
        ended = _ended_by(error)
        return replace(measured, error=measured.error or ended.error, lost=ended.lost)
    return measured


class _Cycles:
    """The second thread: map, fill, check, unmap, until it is stopped."""

    def __init__(self, copies: DeviceCopies, reservation: object, nbytes: int) -> None:
        from vmtool.memory.cuda.backing import CudaReservation

        assert isinstance(reservation, CudaReservation)
        self._copies = copies
        self._reservation = reservation
        self._nbytes = nbytes
        self._found = Block(nbytes)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done = 0
        self.intact = True
        self.error: str | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._cycle()
        except VmtoolError as error:
            self.error = str(error)

    def _cycle(self) -> None:
        reservation, nbytes = self._reservation, self._nbytes
        reservation.mapped.map(0, nbytes)
        reservation.blocks.add(0, nbytes)
        word = (self.done + 1) & 0xFFFFFFFF
        self._copies.fill(reservation, 0, nbytes, word)
        self._copies.read(reservation, 0, self._found.view)
        self.intact &= _holds(self._found, word)
        reservation.blocks.remove(0, nbytes)
        # Nothing runs on this range; the work on the other one goes on.
        reservation.mapped.unmap(0, nbytes, wait=False)
        self.done += 1


def _holds(block: Block, word: int) -> bool:
    """Return whether *block* is *word* over and over: its first word, and each like the one before."""
    first = bytes(block.view[:4]) == word.to_bytes(4, "little")
    return first and not differs(block.address, block.address + 4, block.view.nbytes - 4)


def _latency(samples: list[int]) -> StepLatency:
    ordered = sorted(samples)
    return StepLatency(
        steps=len(ordered),
        median_ns=ordered[len(ordered) // 2],
        p99_ns=ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)],
        max_ns=ordered[-1],
    )


def _ended_by(error: VmtoolError) -> BesideWork:
    return BesideWork(
        error=str(error),
        lost=isinstance(error, DeviceLostError),
        available=not isinstance(error, UnavailableError),
    )


def main(arguments: list[str]) -> int:
    """Measure, and print the result."""
    ordinal, work_bytes, steps = map(int, arguments)
    prepare_child()
    try:
        result = measure(ordinal, work_bytes, steps)
    except VmtoolError as error:
        result = _ended_by(error)
    print(json.dumps(asdict(result)))  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
