"""The replay itself: arrivals, admissions, steps that need memory, refusals and ends, in order.

Time advances from event to event. A sequence has one event at a time: its end, or the next step at
which its memory is not enough; what it costs in between is a sum in closed form. At one moment ends
come first, then steps by age, then arrivals. A level counts as a peak only if it lasts.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from vmtool.errors import CheckFailedError
from vmtool.replay.live_bytes import UsedBytes
from vmtool.replay.pool_shortcuts import PoolShortcuts
from vmtool.replay.pool_store import PoolStore
from vmtool.replay.range_shortcuts import RangeShortcuts
from vmtool.replay.range_store import RangeStore
from vmtool.replay.sequence import RunningSequence
from vmtool.replay.shortcuts import END, STEP
from vmtool.replay.timeline_recorder import Recorder, Sampler
from vmtool.results.kv_replay import OnRefusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vmtool.kv.traces.request_formats import Request
    from vmtool.replay.account import Account
    from vmtool.replay.rules import Plan
    from vmtool.replay.sequence import Store

_ORDER: Final = attrgetter("order")


class Simulation:
    """One replay.

    Args:
        plan: The rules.
        store: The memory of sequences.
        account: The byte totals that the store changes.
        recorder: Where measurements go; a new one by default.
        shortcuts: Whether events that need no decision are taken faster; the result is the same.

    Attributes:
        recorder: What was measured.
        events: Moments at which something changed.
        plan, store, account: As given.
        sampler: Sums up what runs.
        admitted: Sequences by order, so that the youngest is the last.
        stalled: Sequences that wait for memory, by order, in the order in which they began to.
        heap: The next event of each that is not stalled: when, of which kind, its order.
        queue: Preempted sequences, and at most one that was not admitted yet.
        unread: The rest of the trace after *next_request*.
        now: Simulated time in ns.
        orders: Admissions so far.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        account: Account,
        recorder: Recorder | None = None,
        *,
        shortcuts: bool = True,
    ) -> None:
        self.recorder = recorder or Recorder()
        self.events = 0
        self.plan = plan
        self.store = store
        self.account = account
        self._live = UsedBytes(plan.policy.cost)
        self.admitted: dict[int, RunningSequence] = {}
        self.sampler = Sampler(self.recorder, account, self._live, plan.step_ns)
        self._step_ns = plan.step_ns
        self.now = 0
        self.orders = 0
        self.heap: list[tuple[int, int, int, RunningSequence]] = []
        self.stalled: dict[int, RunningSequence] = {}
        self.queue: deque[RunningSequence] = deque()
        self.unread: Iterator[Request] = iter(())
        self.next_request: Request | None = None
        self._shortcuts = self._shortcuts_of(store) if shortcuts else None

    def run(self, requests: Iterable[Request], stop: Callable[[], bool] = lambda: False) -> bool:
        """Replay *requests*; everything is released afterwards.

        Args:
            requests: Ascending in time; read as they are needed.
            stop: Called at least every 64 events; true stops; what was done until then counts.

        Returns:
            Whether all of them were replayed.

        Raises:
            CheckFailedError: If the totals contradict each other.
            InputError: If the trace turns out to be bad.
            CallError: If real memory is refused by the platform.
        """
        self.unread = iter(requests)
        self.next_request = next(self.unread, None)
        heap, shortcuts = self.heap, self._shortcuts  # always the same list
        while True:
            if shortcuts is not None:
                shortcuts.run(stop)
            arrival = self.next_request
            if stop():
                self._abandon()
                return False
            if self.stalled and len(self.stalled) == len(self.admitted):
                self._break_deadlock()
            elif heap and (self.queue or arrival is None or heap[0][0] <= arrival.arrival_ns):
                now, kind, order, seq = heap[0]
                if seq.order != order:
                    heappop(heap)  # it was preempted meanwhile
                    continue
                heappop(heap)
                self.events += 1
                self.advance(now)
                if kind == END:
                    self._finish(seq)
                else:
                    self._step(seq)
            elif arrival is not None:
                self.events += 1
                self.advance(max(arrival.arrival_ns, self.now))
                self._arrive()
                self._admit()
            else:
                break
        self._close()
        return True

    def _shortcuts_of(self, store: Store) -> PoolShortcuts | RangeShortcuts | None:
        """Return the shortcuts, or ``None`` where steps depend on more than the budget."""
        if self.account.memory is not None or self.account.retain or self.plan.commit_ahead:
            return None
        if isinstance(store, RangeStore):
            return RangeShortcuts(self, store, self._live)
        return PoolShortcuts(self, store, self._live) if isinstance(store, PoolStore) else None

    # ---- time -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Let time pass until *now*, with a point of the timeline if one is due."""
        if now == self.now:
            return
        self.account.advance(now)
        if now >= self.recorder.due_ns:
            self.sampler.sample(self.now, now)
        self.now = now

    def _schedule(self, seq: RunningSequence, *, forced: bool = False) -> None:
        """Set the next event of *seq*; *forced* if memory ahead of need was refused just now."""
        covered = seq.covered
        steps = seq.total - seq.length
        if covered is not None and covered < self.plan.max_tokens:
            ahead = 0 if forced else self.plan.commit_ahead
            target = max(covered - ahead, seq.target, seq.length) + 1
            if target <= seq.total:
                seq.target = target
                at = seq.decode_ns + (target - seq.length - 1) * self._step_ns
                heappush(self.heap, (at, STEP, seq.order, seq))
                return
        heappush(self.heap, (seq.decode_ns + steps * self._step_ns, END, seq.order, seq))

    # ---- requests ---------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Read the next request of the trace into the queue."""
        request = self.next_request
        assert request is not None  # noqa: S101 - the callers looked
        self.next_request = next(self.unread, None)
        counts = self.recorder.counts
        counts.arrived += 1
        if request.total_tokens > self.plan.max_tokens:
            counts.too_long += 1
        else:
            self.queue.append(RunningSequence(request))

    def _someone_waits(self) -> bool:
        """Return whether the queue has a request, after reading on if need be.

        Those behind the head change nothing, so they stay in the trace however many have arrived.
        """
        while (
            not self.queue
            and self.next_request is not None
            and self.next_request.arrival_ns < self.now
        ):
            self._arrive()
        return bool(self.queue)

    def _admit(self) -> None:
        """Admit those that wait, first come first served, while there is room."""
        counts = self.recorder.counts
        queue, plan = self.queue, self.plan
        while len(self.admitted) < plan.max_sequences and not self.stalled:
            if not self._someone_waits():
                return
            seq = queue[0]
            ahead = min(seq.length + plan.commit_ahead, plan.max_tokens)
            if self.store.admit(seq, ahead):
                self._start(queue.popleft(), forced=False)
            elif ahead > seq.length and self.store.admit(seq, seq.length):
                counts.refused_ahead += 1
                self._start(queue.popleft(), forced=True)
            else:
                if not seq.refused_once:
                    seq.refused_once = True
                    counts.refused_admissions += 1
                if not self.admitted:
                    counts.too_large += 1  # nothing else is there that could make room
                elif plan.on_refusal is OnRefusal.REJECT:
                    counts.rejected += 1
                else:
                    return
                queue.popleft()

    def _start(self, seq: RunningSequence, *, forced: bool) -> None:
        now, counts = self.now, self.recorder.counts
        self.orders += 1
        seq.order = self.orders
        self.admitted[seq.order] = seq
        self.account.enter()
        tokens = seq.length
        if self.plan.prefix_cache:
            saved = min(seq.hit_tokens, max(tokens - 1, 0))  # the last is what the next comes from
            counts.saved_tokens += saved
            tokens -= saved
        if seq.admitted_once:
            counts.recomputed_tokens += tokens
        else:
            seq.admitted_once = True
            self.recorder.waits.add(now - seq.request.arrival_ns)
        counts.prompt_tokens += tokens
        seq.admitted_ns = now
        seq.begin(now, self.plan.prefill(tokens), self._step_ns)
        seq.target = seq.length
        self.sampler.begin(seq)
        self._check(seq)
        self._schedule(seq, forced=forced)

    def _finish(self, seq: RunningSequence) -> None:
        self._drop(seq)
        self.recorder.counts.finished += 1
        self.recorder.ends.add(self.now - seq.request.arrival_ns)
        self._use_room()

    def _drop(self, seq: RunningSequence) -> int:
        """Take all memory of *seq*; the steps that it completed in this segment."""
        self.sampler.note_peak(self.now)
        complete = self.sampler.settle(seq, self.now)
        if isinstance(self._shortcuts, RangeShortcuts):
            self._shortcuts.settle(seq)
        self.store.drop(seq)
        self.account.verify()
        self.account.leave()
        del self.admitted[seq.order]
        self.stalled.pop(seq.order, None)
        seq.order = -1
        return complete

    def _use_room(self) -> None:
        """Let those go on that wait for memory, the oldest first, and then admit others."""
        for seq in sorted(self.stalled.values(), key=_ORDER):
            if not self._grow(seq, seq.length + 1):
                return
            self.sampler.settle(seq, self.now)
            del self.stalled[seq.order]
            seq.stalled = False
            seq.begin(self.now, 0, self._step_ns)
            seq.target = seq.length + 1
            self.sampler.begin(seq)
            self._check(seq)
            self._schedule(seq, forced=self.plan.commit_ahead > 0)
        self._admit()

    # ---- memory of a step -------------------------------------------------------------------

    def _step(self, seq: RunningSequence) -> None:
        """Give *seq* the memory for its step to ``seq.target`` tokens, and for those ahead."""
        tokens = seq.target
        plan = self.plan
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
        if covered is None or self.account.memory is None:
            return self.store.grow(seq, tokens, 0)
        slack = max(covered + 1 - max(seq.target, 1), 0) * self._step_ns
        return self.store.grow(seq, tokens, slack)

    def _check(self, seq: RunningSequence) -> None:
        """Check that the memory of *seq* is enough for as long as it is said to be."""
        if seq.covered is not None and seq.covered < seq.backed:
            raise CheckFailedError(f"{seq.covered} tokens are covered of {seq.backed}")
        tokens = seq.total if seq.covered is None else min(seq.covered, seq.total)
        if self._live.at(tokens) > seq.own_bytes + seq.shared_bytes:
            raise CheckFailedError(f"{tokens} tokens of a sequence are more than it committed")
        self.account.verify()

    def _refuse(self, seq: RunningSequence, tokens: int) -> None:
        mode = self.plan.on_refusal
        if mode is OnRefusal.WAIT:
            complete = self.sampler.settle(seq, self.now)
            seq.length += complete
            seq.stalled = True
            seq.begin(self.now, 0, self._step_ns)
            self.sampler.begin(seq)
            self.stalled[seq.order] = seq
        elif mode is OnRefusal.REJECT:
            self._drop(seq)
            if self.admitted:
                self.recorder.counts.cut += 1
            else:
                self.recorder.counts.too_large += 1
            self._use_room()
        else:
            self._make_room(seq, tokens)

    def _make_room(self, seq: RunningSequence, tokens: int) -> None:
        """Preempt the youngest sequences until *seq* has memory for *tokens*, or is the youngest."""
        while True:
            youngest = next(reversed(self.admitted.values()))
            if len(self.admitted) == 1:
                self._drop(seq)
                self.recorder.counts.too_large += 1
                self._use_room()
                return
            self._preempt(youngest)
            if youngest is seq:
                return
            if self._grow(seq, tokens):
                self._check(seq)
                self._schedule(seq, forced=self.plan.commit_ahead > 0)
                return

    def _preempt(self, seq: RunningSequence) -> None:
        """Take all memory of *seq*, which begins anew when there is room, before all that wait."""
        seq.length += self._drop(seq)
        seq.stalled = False
        self.recorder.counts.preemptions += 1
        self.queue.appendleft(seq)

    def _break_deadlock(self) -> None:
        """Preempt the youngest sequence, since all of them wait for memory that only they have."""
        youngest = max(self.stalled.values(), key=_ORDER)
        if len(self.stalled) == 1:
            self._drop(youngest)
            self.recorder.counts.too_large += 1
        else:
            self.recorder.counts.deadlocks += 1
            self._preempt(youngest)
        self._use_room()

    # ---- the end ----------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Release everything at once."""
        for seq in list(self.admitted.values()):
            self._drop(seq)
        self._close()

    def _close(self) -> None:
        self.sampler.finish()
        self.store.close()
        self.account.trim()
        self.account.verify()
        self.account.check_empty()
        if not self.store.empty or self.admitted or self.stalled:
            raise CheckFailedError("sequences are left at the end")
