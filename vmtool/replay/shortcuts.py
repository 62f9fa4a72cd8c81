"""What the fast paths of a replay have in common, for block pools and for ranges."""

from __future__ import annotations

from heapq import heapify
from typing import TYPE_CHECKING, Final, Protocol

from vmtool.errors import CheckFailedError
from vmtool.replay.sequence import MOST_STEPS

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Collection, Iterator

    from vmtool.kv.traces.request_formats import Request
    from vmtool.replay.account import Account
    from vmtool.replay.live_bytes import UsedBytes
    from vmtool.replay.rules import Plan
    from vmtool.replay.sequence import Growth, RunningSequence, Store
    from vmtool.replay.timeline_recorder import Recorder, Sampler

#: The kinds of events, in the order that they have at one moment.
END: Final = 0
STEP: Final = 1
ARRIVAL: Final = 2

#: Later than any event.
NEVER: Final = 1 << 62
#: Events between two calls that ask whether to stop.
STOP_EVERY: Final = 64


class SimulationState(Protocol):
    """The state of a simulation, which has one; see its attributes."""

    plan: Plan
    store: Store
    account: Account
    recorder: Recorder
    sampler: Sampler
    admitted: dict[int, RunningSequence]
    stalled: dict[int, RunningSequence]
    heap: list[tuple[int, int, int, RunningSequence]]
    queue: deque[RunningSequence]
    unread: Iterator[Request]
    next_request: Request | None
    now: int
    orders: int
    events: int

    def advance(self, now: int) -> None:
        """Let time pass until *now*."""


class Shortcuts:
    """The shortcuts of a simulation; the base of those of both kinds of stores.

    Args:
        simulation: Whose state they change.
        store: The memory of its sequences.
        used: The bytes of a sequence by its length.
    """

    def __init__(self, simulation: SimulationState, store: Store, used: UsedBytes) -> None:
        self._simulation = simulation
        self._store = store
        self._used = used
        self._first: dict[int, Growth] = {}  # by the prompt
        self._next: dict[int, Growth] = {}  # by the length that was covered

    def _needs_decision(self) -> bool:
        """Return whether the fast path cannot take the next event; to begin it takes longer than this.

        If sequences wait for memory, that is true of most events.
        """
        simulation = self._simulation
        if not simulation.heap or not (simulation.stalled or simulation.queue):
            return False
        _, kind, order, seq = simulation.heap[0]
        if seq.order != order:
            return False
        if kind == END:
            return True
        longest, account = seq.covered, simulation.account
        assert longest is not None  # noqa: S101 - else there is no step
        nbytes = self._store.step(longest, longest + 1).nbytes
        return account.owned - account.kept + nbytes > account.budget

    def _record(
        self,
        entered: int,
        prompts: int,
        steps: int,
        most_live: int,
        waits: list[int],
        firsts: list[int],
        ends: list[int],
    ) -> None:
        """Record the requests that were admitted and finished; times are in ns.

        Args:
            entered: How many were admitted.
            prompts: The tokens of their prompts.
            steps: The decode steps of those that finished.
            most_live: The most bytes of tokens that were live.
            waits: How long they waited, those that did.
            firsts: When the first token of each that finished was generated, from its arrival.
            ends: When each finished, from its arrival.
        """
        recorder, sampler = self._simulation.recorder, self._simulation.sampler
        counts = recorder.counts
        counts.arrived += entered
        counts.prompt_tokens += prompts
        counts.finished += len(ends)
        counts.decode_steps += steps
        recorder.peak_live = max(recorder.peak_live, most_live)
        sampler.most_live = most_live
        recorder.waits.extend(waits)
        recorder.waits.zeros += entered - len(waits)
        recorder.first_tokens.extend(firsts)
        recorder.ends.extend(ends)

    def _set_levels(self, running: int, least: int, most: int, each: int = 0) -> None:
        """Set how many sequences are *running*, and have been at *least* and at *most*.

        Args:
            running: How many there are now.
            least: How many there were at least; ``NEVER`` if that did not change.
            most: How many there were at most; 0 if that did not change.
            each: Bytes of address space that each reserves.
        """
        account = self._simulation.account
        stretch = account.stretch
        other = account.reserved - each * account.sequences  # of pools, or of shared prefixes
        account.sequences, account.reserved = running, other + each * running
        if least != NEVER:
            stretch.sequences_min = min(stretch.sequences_min, least)
            stretch.reserved_min = min(stretch.reserved_min, other + each * least)
        if most:
            stretch.sequences_max = max(stretch.sequences_max, most)
            stretch.reserved_max = max(stretch.reserved_max, other + each * most)
            account.peak_sequences = max(account.peak_sequences, most)
            account.peak_reserved = max(account.peak_reserved, other + each * most)

    def _to_heap(self, members: Collection[RunningSequence]) -> None:
        """Let *members* take their next steps by the heap."""
        simulation, step_ns = self._simulation, self._simulation.plan.step_ns
        entries = [entry for entry in simulation.heap if entry[3] not in members]
        for seq in members:
            at, kind = seq.origin_ns + seq.total * step_ns, END
            if seq.covered is not None and seq.covered < seq.total:
                seq.target = seq.covered + 1
                at, kind = seq.origin_ns + seq.covered * step_ns, STEP
            entries.append((at, kind, seq.order, seq))
        heapify(entries)
        simulation.heap[:] = entries

    def _remember(self, table: dict[int, Growth], at: int, backed: int, tokens: int) -> Growth:
        """Work out what growing from *backed* to *tokens* takes, and keep it in *table*."""
        step = self._store.step(backed, tokens)
        nbytes = step.nbytes if backed < 0 else self._store.step(-1, step.backed).nbytes
        self._check(nbytes, step.covered)
        if len(table) >= MOST_STEPS:
            table.clear()
        table[at] = step
        return step

    def _check(self, nbytes: int, covered: int | None) -> None:
        """Check that *nbytes* are enough for the *covered* tokens that they are said to be for."""
        longest = self._simulation.plan.max_tokens
        tokens = longest if covered is None else min(covered, longest)
        if self._used.at(tokens) > nbytes:
            raise CheckFailedError(f"{tokens} tokens of a sequence are more than it committed")
