"""The replay itself: arrivals, admissions, steps that need memory, refusals and ends, in order.

Time advances from event to event. A sequence has one event at a time: its end, or the next step at
which its memory is not enough; what it costs in between is a sum in closed form. At one moment ends
come first, then steps by age, then arrivals. A level counts as a peak only if it lasts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from vmtool.errors import CheckFailedError
from vmtool.kv.packing.growth import UsedBytes
from vmtool.replay.ranges import GrowthTable, RangeStore
from vmtool.replay.recorder import Recorder, Sampler
from vmtool.replay.sequence import RunningSequence
from vmtool.results.replay import OnRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vmtool.kv.traces.request import Request
    from vmtool.replay.account import Account
    from vmtool.replay.plan import Plan
    from vmtool.replay.stores import Store

_END: Final = 0
_STEP: Final = 1
_LEAST_SINGLES: Final = 4
_MOST_SINGLES: Final = 1 << 12
_TRIES: Final = 3


@dataclass(slots=True)
class _Batch:
    """Steps of several sequences taken at once.

    Attributes:
        nbytes: What they commit.
        calls: In how many spans.
        moment: The sum of each commit times its time.
        steps: How many there are.
        last_ns: When the last is.
        grown: Each sequence that grows, where in the table of growth it is then, and by how much.
    """

    nbytes: int = 0
    calls: int = 0
    moment: int = 0
    steps: int = 0
    last_ns: int = 0
    grown: list[tuple[RunningSequence, int, int]] = field(default_factory=list)


class Simulation:
    """One replay.

    Args:
        plan: The rules.
        store: The memory of sequences.
        account: The byte totals that the store changes.
        recorder: Where measurements go; a new one by default.

    Attributes:
        recorder: What was measured.
        events: Moments at which something changed.
    """

    def __init__(
        self, plan: Plan, store: Store, account: Account, recorder: Recorder | None = None
    ) -> None:
        self.recorder = recorder or Recorder()
        self.events = 0
        self._plan = plan
        self._store = store
        self._account = account
        self._live = UsedBytes(plan.policy.cost)
        self._admitted: dict[int, RunningSequence] = {}  # by order, so the youngest is the last
        self._sampler = Sampler(self.recorder, account, self._live, plan.step_ns)
        self._step_ns = plan.step_ns
        self._now = 0
        self._orders = 0
        self._heap: list[tuple[int, int, int, RunningSequence]] = []
        self._stalled: dict[int, RunningSequence] = {}  # likewise
        # Preempted sequences, and at most one that was not admitted yet.
        self._queue: deque[RunningSequence] = deque()
        self._unread: Iterator[Request] = iter(())
        self._next: Request | None = None
        # Steps one by one before many are tried at once; more after it was not worth it.
        self._table = self._growth_table()
        self._singles = 0
        self._patience = _LEAST_SINGLES

    def run(self, requests: Iterable[Request], stop: Callable[[], bool] = lambda: False) -> bool:
        """Replay *requests*; everything is released afterwards.

        Args:
            requests: Ascending in time; read as they are needed.
            stop: Called before each event; true stops; what was done until then counts.

        Returns:
            Whether all of them were replayed.

        Raises:
            CheckFailedError: If the totals contradict each other.
            InputError: If the trace turns out to be bad.
            CallError: If real memory is refused by the platform.
        """
        self._unread = iter(requests)
        self._next = next(self._unread, None)
        heap = self._heap  # always the same list
        while True:
            arrival = self._next
            if stop():
                self._abandon()
                return False
            if self._stalled and len(self._stalled) == len(self._admitted):
                self._break_deadlock()
            elif heap and (self._queue or arrival is None or heap[0][0] <= arrival.arrival_ns):
                now, kind, order, seq = heap[0]
                if seq.order != order:
                    heappop(heap)  # it was preempted meanwhile
                    continue
                if self._singles >= self._patience and now > self._now and kind == _STEP:
                    self._singles = 0
                    if self._step_many(now):
                        continue
                heappop(heap)
                self._go_to(now)
                if kind == _END:
                    self._finish(seq)
                else:
                    self._singles += 1
                    self._step(seq)
            elif arrival is not None:
                self._go_to(max(arrival.arrival_ns, self._now))
                self._arrive()
                self._admit()
            else:
                break
        self._close()
        return True

    # ---- time -------------------------------------------------------------------------------

    def _go_to(self, now: int) -> None:
        self.events += 1
        if now == self._now:
            return
        self._account.advance(now)
        if now >= self.recorder.due_ns:
            self._sampler.sample(self._now, now)
        self._now = now

    def _schedule(self, seq: RunningSequence, *, forced: bool = False) -> None:
        """Set the next event of *seq*; *forced* if memory ahead of need was refused just now."""
        covered = seq.covered
        steps = seq.total - seq.length
        if covered is not None and covered < self._plan.max_tokens:
            ahead = 0 if forced else self._plan.commit_ahead
            target = max(covered - ahead, seq.target, seq.length) + 1
            if target <= seq.total:
                seq.target = target
                at = seq.decode_ns + (target - seq.length - 1) * self._step_ns
                heappush(self._heap, (at, _STEP, seq.order, seq))
                return
        heappush(self._heap, (seq.decode_ns + steps * self._step_ns, _END, seq.order, seq))

    def _growth_table(self) -> GrowthTable | None:
        """Return the table of growth, where steps depend on nothing but the budget."""
        account, plan = self._account, self._plan
        if account.memory is not None or account.retain or plan.commit_ahead:
            return None
        return GrowthTable(self._store) if isinstance(self._store, RangeStore) else None

    def _step_many(self, first_ns: int) -> bool:
        """Take all steps from *first_ns* until anything else happens; ``False`` if they may not fit.

        Until the next arrival, end or point of the timeline, sequences only grow, and if what all of
        them commit until then fits, nothing is refused and the order does not matter.
        """
        table, account, step_ns = self._table, self._account, self._step_ns
        running = [seq for seq in self._admitted.values() if not seq.stalled]
        if table is None:
            self._patience = 1 << 62
            return False
        ends = (seq.decode_ns + (seq.total - seq.length) * step_ns for seq in running)
        horizon = min(self.recorder.due_ns, *ends)
        if self._next is not None and not self._queue:
            horizon = min(horizon, self._next.arrival_ns)
        if not table.extend(max(seq.total for seq in running)):
            self._patience = 1 << 62
            return False
        for _ in range(_TRIES):
            batch = self._batch(table, running, horizon)
            if batch.steps < len(running) or account.fits(batch.nbytes):
                break
            # What is free lasts about as long as it is a part of what is wanted.
            part = (account.budget - account.committed) * 31 // 32
            horizon = first_ns + (horizon - first_ns) * part // batch.nbytes
        if batch.steps < len(running) or not account.fits(batch.nbytes):
            self._patience = min(2 * self._patience, _MOST_SINGLES)
            return False
        self._patience = _LEAST_SINGLES
        account.advance(first_ns)
        account.commit_many(batch.nbytes, batch.calls, batch.moment, batch.last_ns)
        self._now = batch.last_ns
        self.events += batch.steps
        for seq, end, nbytes in batch.grown:
            length = table.lengths[end]
            seq.own_bytes += nbytes
            seq.target = table.lengths[end - 1] + 1
            endless = length == table.ENDLESS
            seq.backed = seq.target if endless else length
            seq.covered = None if endless else length
            self._check(seq)
        self._heap.clear()
        for seq in running:
            if seq.covered is not None:
                seq.target = min(seq.target, seq.covered)  # it was that of the event just dropped
            self._schedule(seq)
        return True

    def _batch(
        self, table: GrowthTable, running: Sequence[RunningSequence], horizon: int
    ) -> _Batch:
        """Return the steps of *running* before *horizon* together."""
        lengths, sums, moments = table.lengths, table.nbytes, table.moments
        step_ns = self._step_ns
        batch = _Batch()
        for seq in running:
            if seq.covered is None:
                continue
            # Steps at lengths whose time is before the horizon; the last token has no step after it.
            before = -((seq.decode_ns - horizon) // step_ns) - 1 + seq.length
            start = bisect_left(lengths, seq.covered)
            end = bisect_right(lengths, min(before, seq.total - 1), start)
            if end == start:
                continue
            nbytes = sums[end] - sums[start]
            origin = seq.decode_ns - seq.length * step_ns
            batch.nbytes += nbytes
            batch.calls += table.calls[end] - table.calls[start]
            batch.moment += origin * nbytes + step_ns * (moments[end] - moments[start])
            batch.steps += end - start
            batch.last_ns = max(batch.last_ns, origin + lengths[end - 1] * step_ns)
            batch.grown.append((seq, end, nbytes))
        return batch

    # ---- requests ---------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Read the next request of the trace into the queue."""
        request = self._next
        assert request is not None  # noqa: S101 - the callers looked
        self._next = next(self._unread, None)
        counts = self.recorder.counts
        counts.arrived += 1
        if request.total_tokens > self._plan.max_tokens:
            counts.too_long += 1
        else:
            self._queue.append(RunningSequence(request))

    def _someone_waits(self) -> bool:
        """Return whether the queue has a request, after reading on if need be.

        Those behind the head change nothing, so they stay in the trace however many have arrived.
        """
        while not self._queue and self._next is not None and self._next.arrival_ns < self._now:
            self._arrive()
        return bool(self._queue)

    def _admit(self) -> None:
        """Admit those that wait, first come first served, while there is room."""
        counts = self.recorder.counts
        queue, plan = self._queue, self._plan
        while len(self._admitted) < plan.max_sequences and not self._stalled:
            if not self._someone_waits():
                return
            seq = queue[0]
            ahead = min(seq.length + plan.commit_ahead, plan.max_tokens)
            if self._store.admit(seq, ahead):
                self._start(queue.popleft(), forced=False)
            elif ahead > seq.length and self._store.admit(seq, seq.length):
                counts.refused_ahead += 1
                self._start(queue.popleft(), forced=True)
            else:
                if not seq.refused_once:
                    seq.refused_once = True
                    counts.refused_admissions += 1
                if not self._admitted:
                    counts.too_large += 1  # nothing else is there that could make room
                elif plan.on_refusal is OnRefusal.REJECT:
                    counts.rejected += 1
                else:
                    return
                queue.popleft()

    def _start(self, seq: RunningSequence, *, forced: bool) -> None:
        now, counts = self._now, self.recorder.counts
        self._orders += 1
        seq.order = self._orders
        self._admitted[seq.order] = seq
        self._account.enter()
        tokens = seq.length
        if self._plan.prefix_cache:
            saved = min(seq.hit_tokens, max(tokens - 1, 0))  # the last is what the next comes from
            counts.saved_tokens += saved
            tokens -= saved
        if seq.admitted_once:
            counts.recomputed_tokens += tokens
        else:
            seq.admitted_once = True
            self.recorder.waits.add(now - seq.request.arrival_ns)
        counts.prompt_tokens += tokens
        seq.start_ns = seq.admitted_ns = now
        seq.decode_ns = now + self._plan.prefill(tokens)
        seq.target = seq.length
        self._sampler.begin(seq)
        self._check(seq)
        self._schedule(seq, forced=forced)

    def _finish(self, seq: RunningSequence) -> None:
        self._drop(seq)
        self.recorder.counts.finished += 1
        self.recorder.ends.add(self._now - seq.request.arrival_ns)
        self._use_room()

    def _drop(self, seq: RunningSequence) -> int:
        """Take all memory of *seq*; the steps that it completed in this segment."""
        self._sampler.note_peak(self._now)
        complete = self._sampler.settle(seq, self._now)
        self._store.drop(seq)
        self._account.verify()
        self._account.leave()
        del self._admitted[seq.order]
        self._stalled.pop(seq.order, None)
        seq.order = -1
        return complete

    def _use_room(self) -> None:
        """Let those go on that wait for memory, the oldest first, and then admit others."""
        for seq in list(self._stalled.values()):
            if not self._grow(seq, seq.length + 1):
                return
            self._sampler.settle(seq, self._now)
            del self._stalled[seq.order]
            seq.stalled = False
            seq.start_ns = seq.decode_ns = self._now
            seq.target = seq.length + 1
            self._sampler.begin(seq)
            self._check(seq)
            self._schedule(seq, forced=self._plan.commit_ahead > 0)
        self._admit()

    # ---- memory of a step -------------------------------------------------------------------

    def _step(self, seq: RunningSequence) -> None:
        """Give *seq* the memory for its step to ``seq.target`` tokens, and for those ahead."""
        tokens = seq.target
        plan = self._plan
        ahead = min(tokens + plan.commit_ahead, plan.max_tokens)
        if self._grow(seq, ahead):
            self._check(seq)
            self._schedule(seq)
        elif seq.covered is None or tokens <= seq.covered:
            self.recorder.counts.refused_ahead += 1
            self._schedule(seq, forced=True)
        elif ahead > tokens and self._grow(seq, tokens):
            self.recorder.counts.refused_ahead += 1
            self._check(seq)
            self._schedule(seq, forced=True)
        else:
            self.recorder.counts.refused_steps += 1
            self._refuse(seq, tokens)

    def _grow(self, seq: RunningSequence, tokens: int) -> bool:
        covered = seq.covered
        if covered is None or self._account.memory is None:
            return self._store.grow(seq, tokens, 0)
        slack = max(covered + 1 - max(seq.target, 1), 0) * self._step_ns
        return self._store.grow(seq, tokens, slack)

    def _check(self, seq: RunningSequence) -> None:
        """Check that the memory of *seq* is enough for as long as it is said to be."""
        if seq.covered is not None and seq.covered < seq.backed:
            raise CheckFailedError(f"{seq.covered} tokens are covered of {seq.backed}")
        tokens = seq.total if seq.covered is None else min(seq.covered, seq.total)
        if self._live.at(tokens) > seq.own_bytes + seq.shared_bytes:
            raise CheckFailedError(f"{tokens} tokens of a sequence are more than it committed")
        self._account.verify()

    def _refuse(self, seq: RunningSequence, tokens: int) -> None:
        mode = self._plan.on_refusal
        if mode is OnRefusal.WAIT:
            complete = self._sampler.settle(seq, self._now)
            seq.length += complete
            seq.stalled = True
            seq.start_ns = seq.decode_ns = self._now
            self._sampler.begin(seq)
            self._stalled[seq.order] = seq
            self._stalled = dict(sorted(self._stalled.items()))
        elif mode is OnRefusal.REJECT:
            self._drop(seq)
            if self._admitted:
                self.recorder.counts.cut += 1
            else:
                self.recorder.counts.too_large += 1
            self._use_room()
        else:
            self._make_room(seq, tokens)

    def _make_room(self, seq: RunningSequence, tokens: int) -> None:
        """Preempt the youngest sequences until *seq* has memory for *tokens*, or is the youngest."""
        while True:
            youngest = next(reversed(self._admitted.values()))
            if len(self._admitted) == 1:
                self._drop(seq)
                self.recorder.counts.too_large += 1
                self._use_room()
                return
            self._preempt(youngest)
            if youngest is seq:
                return
            if self._grow(seq, tokens):
                self._check(seq)
                self._schedule(seq, forced=self._plan.commit_ahead > 0)
                return

    def _preempt(self, seq: RunningSequence) -> None:
        """Take all memory of *seq*, which begins anew when there is room, before all that wait."""
        seq.length += self._drop(seq)
        seq.stalled = False
        self.recorder.counts.preemptions += 1
        self._queue.appendleft(seq)

    def _break_deadlock(self) -> None:
        """Preempt the youngest sequence, since all of them wait for memory that only they have."""
        youngest = next(reversed(self._stalled.values()))
        if len(self._stalled) == 1:
            self._drop(youngest)
            self.recorder.counts.too_large += 1
        else:
            self.recorder.counts.deadlocks += 1
            self._preempt(youngest)
        self._use_room()

    # ---- the end ----------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Release everything at once."""
        for seq in list(self._admitted.values()):
            self._drop(seq)
        self._close()

    def _close(self) -> None:
        self._sampler.finish()
        self._store.close()
        self._account.trim()
        self._account.verify()
        self._account.check_empty()
        if not self._store.empty or self._admitted or self._stalled:
            raise CheckFailedError("sequences are left at the end")
