"""The fast path of a replay where each sequence has ranges of its own.

The simulation decides what happens when memory is refused, shared or kept. As long as nothing is,
sequences depend on each other only through sums. One loop takes arrivals and ends with all totals in
local variables; what steps commit in between is a sum in closed form (:class:`GrowingBytes`), which
is worked out where it may be a peak, or where the budget is near. The result is that of going from
event to event.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from vmtool.replay.growing_bytes import GrowingBytes
from vmtool.replay.sequence import MOST_STEPS, RunningSequence
from vmtool.replay.shortcuts import ARRIVAL, END, NEVER, STEP, STOP_EVERY, Shortcuts
from vmtool.results.kv_replay import OnRefusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.replay.live_bytes import UsedBytes
    from vmtool.replay.range_store import RangeStore
    from vmtool.replay.shortcuts import SimulationState

#: Steps of a sequence that commit.
_FEW_STEPS: Final = 10
#: Looking up so few is not worth avoiding.
_FEW_PLACES: Final = 2
#: Ends between two updates of all totals, at least where points of the timeline are closer.
_FLUSH: Final = 256


class RangeShortcuts(Shortcuts):
    """The shortcuts of a simulation where each sequence has ranges of its own."""

    _store: RangeStore

    def __init__(self, simulation: SimulationState, store: RangeStore, used: UsedBytes) -> None:
        super().__init__(simulation, store, used)
        self._release_calls: dict[int, int] = {}  # by the length that memory was requested for
        self._growing = GrowingBytes(store.growth, simulation.plan.step_ns)
        self._until_ns = 0  # the steps of those that grow by patterns are taken before then
        self._held_ns = -1  # when memory was refused: steps of that moment are taken in their order
        # If sequences wait, more of them will soon: none joins where there is little room.
        self._eager = simulation.plan.on_refusal is not OnRefusal.WAIT

    def run(self, stop: Callable[[], bool]) -> None:
        """Take events until one needs a decision.

        While the queue has a request, or a sequence is stalled, only steps are taken, as what ends
        makes room for those.

        Args:
            stop: Asked now and then; once it is true, no more are taken.
        """
        while not self._needs_decision():
            due_ns = self._run(stop)
            if due_ns is None:
                break
            self._simulation.advance(due_ns)

    def settle(self, seq: RunningSequence) -> None:
        """Account for what *seq* has committed until now, before the simulation takes it back."""
        seq.joins_ns = -1
        if seq.pattern is not None:
            step_ns = self._simulation.plan.step_ns
            self._growing.leave(seq, -((seq.origin_ns - self._until_ns) // step_ns))
            self._book()

    @property
    def _few_steps(self) -> bool:
        """Whether memory is refused, and sequences commit at so few steps that joining takes longer."""
        counts, tokens = self._simulation.recorder.counts, self._growing.tokens_a_step
        return self._held_ns >= 0 and counts.decode_steps < _FEW_STEPS * tokens * counts.finished

    def _book(self) -> None:
        """Account for the steps of those that left their patterns."""
        growing, account = self._growing, self._simulation.account
        self._simulation.events += growing.steps
        account.commits += growing.calls
        account.committed_moment += growing.moment
        account.owned_moment += growing.moment
        growing.steps = growing.calls = growing.moment = 0

    def _needs_decision(self) -> bool:
        growing = self._growing
        return not (growing.waiting or growing.count) and super()._needs_decision()

    def _run(self, stop: Callable[[], bool]) -> int | None:
        """Do what :meth:`run` does until a point of the timeline is due; return when."""
        simulation, store, growing = self._simulation, self._store, self._growing
        plan, account, recorder = simulation.plan, simulation.account, simulation.recorder
        sampler, live = simulation.sampler, simulation.sampler.live
        heap, admitted, unread = simulation.heap, simulation.admitted, simulation.unread
        first_growth, next_growth, release_calls = self._first, self._next, self._release_calls
        max_tokens, most_sequences, step_ns = plan.max_tokens, plan.max_sequences, plan.step_ns
        per_token, tokens_in = plan.prefill_ns
        budget, due_ns, share = account.budget, recorder.due_ns, plan.share
        stalled = bool(simulation.stalled)
        waiting = stalled or bool(simulation.queue)
        request = simulation.next_request
        arrival_ns = NEVER if request is None or simulation.queue else request.arrival_ns
        now, orders = simulation.now, simulation.orders
        until, held = max(self._until_ns, now), self._held_ns
        waiters = growing.waiting
        start, least = (NEVER if stalled or self._few_steps else growing.start), growing.least
        # What is committed is this, and what those have that grow by patterns.
        committed_first = entered = account.committed
        grown_bytes, grown_ns = growing.before(until), until
        fixed = committed_first - grown_bytes
        # That is looked up only where it may be a peak or low: it grows no faster than this.
        most_step, pace = growing.most, NEVER
        few_places = growing.places <= _FEW_PLACES
        running = account.sequences
        committed_moment = running_moment = 0
        commits = releases = release_bytes = 0
        stretch, stale = account.stretch, account.stale
        committed_low, committed_high = stretch.committed_min, stretch.committed_max
        peak, peak_at = account.peak_committed, account.peak_at
        running_low, running_high = NEVER, 0
        prompts = steps = token_ns = token_steps = time_area = beyond_ns = beyond_steps = 0
        overlap, last_ns = account.overlap, recorder.last_ns
        waits: list[int] = []
        firsts: list[int] = []
        ends: list[int] = []
        capped, others = self._used.capped, self._used.others
        most_live = sampler.most_live
        grown = 0
        look = STOP_EVERY
        due: int | None = None
        # Until then all steps fit, whatever is committed besides up to this, if so many join.
        safe_ns, fixed_most, joins = until, fixed, 0
        if start == NEVER and not (growing.count or waiters):
            safe_ns, fixed_most = NEVER, budget - grown_bytes
        committed_ns, fresh = -1, now  # the last commit; its level is not of this stretch yet
        fell, refused, roomy = stale, False, False
        eager = self._eager and start != NEVER

        while True:
            if heap and heap[0][0] <= arrival_ns:
                at, kind, order, seq = heap[0]
                if seq.order != order:
                    heappop(heap)  # it was preempted meanwhile
                    continue
            elif arrival_ns != NEVER and not stalled:
                at, kind = arrival_ns, ARRIVAL
                if at < now:  # noqa: PLR1730 - max() takes longer
                    at = now
            else:
                break
            if at != now:
                if fell:  # only now has the level lasted
                    fell = False
                    if stale or now >= safe_ns or fixed + grown_bytes < committed_low:
                        stale = False
                        until = max(until, now + 1)
                        refused_ns = self._sweep(until, budget - fixed, safe_ns)
                        if refused_ns is not None:
                            until, refused = refused_ns, True
                            break
                        grown_bytes, grown_ns = growing.before(until), until
                        if not few_places:
                            pace = growing.pace + len(waiters) * most_step
                        level = fixed + grown_bytes
                        committed_low = min(committed_low, level)
                        if level > committed_high:
                            committed_high = level
                            if level > peak:
                                peak, peak_at = level, max(committed_ns, growing.around(until)[0])
                    if running < running_low:  # noqa: PLR1730
                        running_low = running
                    if running > running_high:  # noqa: PLR1730
                        running_high = running
                if at >= due_ns:
                    until = max(until, due_ns)
                    refused_ns = self._sweep(until, budget - fixed, safe_ns)
                    if refused_ns is not None:
                        until, refused = refused_ns, True
                    else:
                        last_step_ns, next_ns = growing.around(until)
                        due = until = self._next_event(min(next_ns, at), at)
                    if due is None or len(ends) >= _FLUSH:
                        break
                    grown_bytes, grown_ns = growing.before(until), until
                    if not few_places:
                        pace = growing.pace + len(waiters) * most_step
                    level = fixed + grown_bytes
                    if level > committed_high and (now != fresh or level > entered):
                        committed_high = level
                        if level > peak:
                            peak, peak_at = level, max(committed_ns, last_step_ns)
                    stretch.committed_min, stretch.committed_max = committed_low, committed_high
                    simulation.now = account.now = max(now, last_step_ns)
                    account.committed = account.owned = level
                    account.stale = True
                    self._set_levels(running, running_low, running_high, store.reserve_bytes)
                    recorder.peak_live = max(recorder.peak_live, most_live)
                    sampler.most_live = most_live
                    simulation.advance(due)
                    now = fresh = due
                    due, due_ns, last_ns = None, recorder.due_ns, recorder.last_ns
                    most_live = sampler.most_live
                    stretch, entered = account.stretch, level
                    stale = fell = True
                    committed_low, committed_high = stretch.committed_min, stretch.committed_max
                    running_low, running_high = NEVER, 0
                    continue
                look -= 1
                if not look:
                    look = STOP_EVERY
                    if stop():
                        until = max(until, now)
                        break
            if at >= safe_ns:
                upto = at + 1 if kind == STEP or (kind == ARRIVAL and at == arrival_ns) else at
                upto = max(upto, until)
                refused_ns = self._sweep(upto, budget - fixed)
                if refused_ns is not None:
                    until, refused = refused_ns, True
                    break
                half = (budget - fixed - growing.before(upto)) // 2
                joins = growing.count + len(waiters) + 16
                turns = growing.turns(half, 2 * joins)
                safe_ns, fixed_most = upto + max(turns - 1, 0) * step_ns, fixed + half
                roomy = turns > 1
                if not (roomy or eager or waiters or growing.count):
                    safe_ns, fixed_most, joins = upto + step_ns, fixed + 2 * half, 0
            if kind == STEP:
                longest = seq.covered
                assert longest is not None  # noqa: S101 - else there is no step
                if (
                    (roomy or eager)
                    and longest >= start
                    and until <= at > held
                    and seq.total - longest >= least
                ):
                    growing.wait(seq, at)
                    pace += most_step
                    joins -= 1
                    if joins < 0 or not roomy:
                        safe_ns = at  # it is not known that its step fits too
                    heapreplace(heap, (seq.origin_ns + seq.total * step_ns, END, order, seq))
                    continue
                step = next_growth.get(longest) or self._remember(
                    next_growth, longest, longest, longest + 1
                )
                nbytes, calls, backed, covered, _, _ = step
                if fixed + nbytes > fixed_most:
                    upto = max(until, at + 1)
                    refused_ns = self._sweep(upto, budget - fixed)
                    if refused_ns is not None:
                        until, refused = refused_ns, True
                        break
                    if fixed + nbytes + growing.before(upto) > budget:
                        until, refused = max(until, at), True
                        break
                    safe_ns = at
                now = at
                grown += 1
                seq.own_bytes += nbytes
                seq.backed, seq.covered = backed, covered
                if covered is not None and covered < seq.total:
                    seq.target = covered + 1
                    entry = (seq.origin_ns + covered * step_ns, STEP, order, seq)
                else:
                    entry = (seq.origin_ns + seq.total * step_ns, END, order, seq)
                heapreplace(heap, entry)
            elif kind == END:
                if until < at:  # noqa: PLR1730
                    until = at
                if waiters and waiters[0][0] < until:
                    growing.admit(until)
                if waiting or seq.path or seq.answered:
                    break
                now = at
                heappop(heap)
                committed = fixed + grown_bytes
                if pace:
                    committed += pace * ((until - grown_ns) // step_ns + 1)
                if committed > committed_high:
                    grown_bytes, grown_ns = growing.before(until), until
                    pace = growing.pace + len(waiters) * most_step
                    if few_places and pace:
                        pace = NEVER
                    committed = fixed + grown_bytes
                    if committed > committed_high and at != fresh:
                        committed_high = committed
                        if committed > peak:
                            peak, peak_at = committed, max(committed_ns, growing.around(until)[0])
                if (
                    committed > most_live
                    and now != last_ns
                    and live.at_most(now) - overlap > most_live
                ):
                    if grown_ns != until:
                        committed = fixed + growing.before(until)
                    found = live.before(now) - overlap
                    if found > committed:
                        raise account.breach()
                    most_live = max(most_live, found)
                if seq.pattern is not None:
                    growing.leave(seq, seq.total)
                live.remove(seq)
                length, decode_ns, start_ns = seq.length, seq.decode_ns, seq.start_ns
                arrived_ns = seq.request[0]
                more = seq.total - length
                if more:
                    steps += more
                    firsts.append(decode_ns + step_ns - arrived_ns)
                ends.append(now - arrived_ns)
                # The tokens of the prompt until the first step, and then one more at each.
                prefill_ns = decode_ns - start_ns
                token_ns += length * prefill_ns
                token_steps += more * (2 * length + more + 1) // 2
                time_area += now - start_ns
                for cap, nbytes in capped:
                    over = length - cap
                    if over > 0:
                        beyond_ns += nbytes * (over * prefill_ns)
                        beyond_steps += nbytes * (more * (2 * over + more + 1) // 2)
                    else:
                        over += more
                        if over > 0:
                            beyond_steps += nbytes * (over * (over + 1) // 2)
                for entries, nbytes in others:
                    beyond_ns -= nbytes * entries.at(length) * prefill_ns
                    beyond_steps -= nbytes * entries.over(length, more)
                nbytes = seq.own_bytes
                releases += release_calls.get(seq.backed) or self._calls(seq.backed)
                fixed -= nbytes
                committed_moment -= nbytes * now
                release_bytes += nbytes
                running -= 1
                running_moment -= now
                del admitted[order]
                seq.order = -1
                fell = True
                continue
            else:
                # Steps of one moment come before arrivals of it, but after one that was late.
                if arrival_ns == at:
                    until = at + 1
                elif until < at:
                    until = at
                assert request is not None  # noqa: S101 - it has arrived
                arrived_ns, prompt, output, prefix = request
                if running >= most_sequences or prompt + output > max_tokens or (prefix and share):
                    break
                step = first_growth.get(prompt) or self._remember(first_growth, prompt, -1, prompt)
                nbytes, calls, backed, covered, _, _ = step
                if fixed + nbytes > fixed_most:
                    refused_ns = self._sweep(until, budget - fixed)
                    if refused_ns is not None:
                        until, refused = refused_ns, True
                        break
                    if fixed + nbytes + growing.before(until) > budget:
                        break
                    safe_ns = at
                seq = RunningSequence(request)
                seq.own_bytes, seq.backed, seq.covered = nbytes, backed, covered
                now = at
                orders += 1
                seq.order = orders
                seq.admitted_once = True
                seq.start_ns = seq.admitted_ns = now
                decode_ns = seq.decode_ns = now - (-prompt * per_token // tokens_in)
                origin_ns = seq.origin_ns = decode_ns - prompt * step_ns
                seq.target = prompt
                admitted[orders] = seq
                prompts += prompt
                if now != arrived_ns:
                    waits.append(now - arrived_ns)
                live.add(seq)
                event_ns, kind = origin_ns + seq.total * step_ns, END
                if covered is not None and covered < seq.total:
                    seq.target = covered + 1
                    first_ns = origin_ns + covered * step_ns
                    if covered >= start and first_ns >= until and seq.total - covered >= least:
                        seq.joins_ns = first_ns
                        heappush(waiters, (first_ns, orders, seq))
                        pace += most_step
                        joins -= 1
                        if joins < 0:
                            safe_ns = at
                    else:
                        event_ns, kind = first_ns, STEP
                heappush(heap, (event_ns, kind, orders, seq))
                running += 1
                running_moment += now
                if running > running_high:  # noqa: PLR1730
                    running_high = running
                simulation.next_request = request = next(unread, None)
                arrival_ns = NEVER if request is None else request.arrival_ns
            fixed += nbytes
            committed_moment += nbytes * now
            commits += calls
            if nbytes:
                committed_ns, fresh = now, -1

        growing.admit(until)
        committed = fixed + growing.before(until)
        if refused:
            last_step_ns = self._release(until)
        elif due is None:
            last_step_ns = growing.around(until)[0] if growing.count else growing.changed_ns
        if committed > committed_high and (now != fresh or committed > entered):
            committed_high = committed
            if committed > peak:
                peak, peak_at = committed, max(committed_ns, last_step_ns)
        now = max(now, last_step_ns)
        self._until_ns = until
        entered, finished = orders - simulation.orders, len(ends)
        simulation.now, simulation.orders = now, orders
        simulation.events += entered + grown + finished
        account.now = now
        account.committed = account.owned = committed
        account.stale = True
        self._set_levels(running, running_low, running_high, store.reserve_bytes)
        account.committed_moment += committed_moment
        account.owned_moment += committed_moment
        account.sequences_moment += running_moment
        account.reserved_moment += store.reserve_bytes * running_moment
        account.commits += commits
        account.commit_bytes += committed - committed_first + release_bytes
        account.releases += releases
        account.release_bytes += release_bytes
        account.peak_committed, account.peak_at = peak, peak_at
        account.peak_charged = max(account.peak_charged, peak)
        stretch.committed_min, stretch.committed_max = committed_low, committed_high
        recorder.live_area += self._used.fixed * time_area + (
            self._used.below * (token_ns + token_steps * step_ns)
            - (beyond_ns + beyond_steps * step_ns)
        )
        self._record(entered, prompts, steps, most_live, waits, firsts, ends)
        self._book()
        return due

    # ---- those that grow by patterns ------------------------------------------------------------

    def _sweep(self, until: int, room: int, safe_ns: int = -1) -> int | None:
        """Go over the steps before *until*; return when one does not fit into *room*, if so.

        Those before *safe_ns* do.
        """
        growing = self._growing
        if until <= safe_ns:
            growing.admit(until)
            return None
        low = self._until_ns
        while growing.waiting and growing.waiting[0][0] < until:
            at = growing.waiting[0][0]
            if at > low and growing.before(at) > room:
                return growing.first_over(room, low, at)
            low = max(low, at)
            growing.admit(at + 1)
        if growing.before(until) > room:
            return growing.first_over(room, low, until)
        return None

    def _next_event(self, found: int, at: int) -> int:
        """Return when something happens: a step at *found*, or of those who join before, or *at*."""
        growing = self._growing
        while growing.waiting and growing.waiting[0][0] <= found:
            now = growing.waiting[0][0]
            growing.admit(now + 1)
            found = min(growing.around(now)[1], at)
        return found

    def _release(self, now: int) -> int:
        """Take the steps at *now* by the heap, where the simulation takes them by age.

        So are those of all other sequences where that is faster.

        Returns:
            When the last step was before *now*, of those that had joined.
        """
        simulation, growing = self._simulation, self._growing
        step_ns, self._held_ns = simulation.plan.step_ns, now
        eager = self._eager and not self._few_steps
        released: set[RunningSequence] = set()
        last_ns = -1
        for seq in simulation.admitted.values():
            pattern = seq.pattern
            if pattern is None:
                if seq.joins_ns < 0 or (eager and seq.joins_ns != now):
                    continue
            elif eager and (now - seq.origin_ns) % step_ns:
                continue
            else:
                tokens = -((seq.origin_ns - now) // step_ns)
                last = pattern.last_commit(tokens)
                if last >= (seq.covered or 0):
                    last_ns = max(last_ns, seq.origin_ns + last * step_ns)
                growing.leave(seq, tokens)
                seq.covered = self._store.step(-1, tokens).covered
            seq.joins_ns = -1
            released.add(seq)
        if released:
            self._to_heap(released)
        return max(last_ns, growing.around(now)[0])

    # ---- what growth takes ----------------------------------------------------------------------

    def _calls(self, backed: int) -> int:
        if len(self._release_calls) >= MOST_STEPS:
            self._release_calls.clear()
        calls = self._release_calls[backed] = self._store.calls(backed)
        return calls
