"""The fast path of a replay with block pools, taken as long as no memory is refused.

The simulation decides what happens when memory is refused. As long as none is, sequences depend on each
other only through sums, and through blocks that they take in order. One loop takes arrivals, steps and
ends with all totals in local variables; sequences that grow alike take their steps in turn
(:class:`_StepRing`), many at once. The result is that of going from event to event.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final

from vmtool.replay.sequence import RunningSequence
from vmtool.replay.shortcuts import ARRIVAL, END, NEVER, STEP, STOP_EVERY, Shortcuts

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.replay.live_bytes import UsedBytes
    from vmtool.replay.pool_store import PoolStore
    from vmtool.replay.shortcuts import SimulationState


#: Bits of a key for the order of the sequence.
_ORDER_BITS: Final = 40
_ORDER: Final = (1 << _ORDER_BITS) - 1
_LEAST_REST: Final = 16
_MOST_REST: Final = 1 << 12
#: Ends between two updates of all totals, at least where points of the timeline are closer.
_FLUSH: Final = 256


class _StepRing:
    """Sequences sorted by the remainder of their steps' times, the order in which they take turns.

    If every sequence commits the same after the same number of tokens, and all tokens take the same
    time, each sequence has one such step per period. What all of them do until some time is then a
    stretch of a sorted list. The fast path goes over such stretches itself.

    Args:
        period_ns: The time from one step of a sequence to its next.
        place: Of the class of which each step takes a block.

    Attributes:
        period_ns: As given.
        keys: The remainder of each sequence, and its order in the lowest bits; ascending.
        takers: The blocks of each.
        turn: The number of the period of the next step.
        place: Whose step that is, by its place in *keys*; the end if it is the first of the next period.
        swept_ns: The time until which, exclusively, all steps were taken.
    """

    def __init__(self, period_ns: int, place: int) -> None:
        self.period_ns = period_ns
        self.keys: list[int] = []
        self.takers: list[Any] = []
        self.turn = self.place = self.swept_ns = 0
        self._class = place

    def start(self, steps: list[tuple[int, int, RunningSequence]]) -> None:
        """Begin with sequences: when the next step of each is, all within a period, and its order."""
        period_ns = self.period_ns
        placed = sorted([(at % period_ns << _ORDER_BITS | order, seq) for at, order, seq in steps])
        self.keys = [key for key, _ in placed]
        self.takers = [seq.blocks[self._class] for _, seq in placed]
        self.swept_ns = min(steps)[0]
        self.turn, phase = divmod(self.swept_ns, period_ns)
        self.place = bisect_left(self.keys, phase << _ORDER_BITS)

    def time(self, step: int) -> int:
        """Return the time of step number *step* of those to come."""
        turns, place = divmod(self.place + step, len(self.keys))
        return (self.turn + turns) * self.period_ns + (self.keys[place] >> _ORDER_BITS)

    def orders(self) -> list[tuple[int, int]]:
        """Return the order of each sequence, and the number of the period of its next step."""
        return [(key & _ORDER, self.turn + (at < self.place)) for at, key in enumerate(self.keys)]


class PoolShortcuts(Shortcuts):
    """The shortcuts of a simulation with block pools."""

    _store: PoolStore

    def __init__(self, simulation: SimulationState, store: PoolStore, used: UsedBytes) -> None:
        super().__init__(simulation, store, used)
        # Those whose steps are in a ring are not in the heap with these. They are settled when this
        # ends; where that is too often, none are for some time.
        regular = store.regular
        self._start, self._period = start, period = regular or (0, 1)
        self._growth = store.step(start, start + 1)
        self._place = self._growth.lacks[0][0] if regular else 0  # of the class of these blocks
        self._ring = _StepRing(period * simulation.plan.step_ns, self._place)
        self._regular = regular is not None
        self._most = store.most(self._growth)
        self._ring_steps = self._rest = 0
        self._ring_patience = _LEAST_REST

    # ---- one after the other --------------------------------------------------------------------

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle events until one needs a decision, or more of the state than is at hand here.

        While a request is queued or a sequence is stalled, only steps are handled, because an end
        makes room for the waiting ones.

        Args:
            stop: Called from time to time; once it returns true, no more events are handled.
        """
        while not self._needs_decision():
            if self._regular and not self._ring.keys:
                self._enter_ring(self._ring)
            due_ns = self._run(stop)
            if due_ns is None:
                break
            self._simulation.advance(due_ns)
        if self._ring.keys:
            self._leave_ring(self._ring)

    def _run(self, stop: Callable[[], bool]) -> int | None:
        """Do what :meth:`run` does until a point of the timeline is due; return when."""
        simulation, store, ring = self._simulation, self._store, self._ring
        plan, account, recorder = simulation.plan, simulation.account, simulation.recorder
        sampler, live = simulation.sampler, simulation.sampler.live
        heap, admitted, unread = simulation.heap, simulation.admitted, simulation.unread
        first_growth, next_growth = self._first, self._next
        max_tokens, most_sequences, step_ns = plan.max_tokens, plan.max_sequences, plan.step_ns
        per_token, tokens_in = plan.prefill_ns
        budget, due_ns, share = account.budget, recorder.due_ns, plan.share
        stalled = bool(simulation.stalled)
        waiting = stalled or bool(simulation.queue)
        request = simulation.next_request
        arrival_ns = NEVER if request is None or simulation.queue else request.arrival_ns
        now, orders = simulation.now, simulation.orders
        committed, owned, running = account.committed, account.owned, account.sequences
        committed_first = committed
        committed_moment = owned_moment = running_moment = 0
        unowned, unowned_charged = account.peak_unowned, account.unowned_charged
        commits = releases = release_bytes = 0
        stretch, stale = account.stretch, account.stale
        committed_low, committed_high = stretch.committed_min, stretch.committed_max
        peak, peak_at = account.peak_committed, account.peak_at
        running_low, running_high = NEVER, 0
        prompts = steps = token_area = time_area = other_area = 0
        overlap, last_ns = account.overlap, recorder.last_ns
        waits: list[int] = []
        firsts: list[int] = []
        ends: list[int] = []
        others = self._used.steps
        most_live = sampler.most_live
        grown = 0
        look = STOP_EVERY
        due: int | None = None
        growth, most, start, period = self._growth, self._most, self._start, self._period
        ring_bytes, ring_steps = growth.nbytes, 0
        rest = NEVER
        if not self._regular:
            start = NEVER
        elif simulation.events < self._rest:
            start, rest = NEVER, self._rest - simulation.events
        keys, takers, period_ns = ring.keys, ring.takers, ring.period_ns
        turn, place, swept_ns = ring.turn, ring.place, ring.swept_ns
        next_turn = next_place = 0
        ring_class = self._place
        blocks, granule = store.classes[ring_class], store.granule
        ring_ns = ring_tokens = 0

        while True:
            if heap and heap[0][0] <= arrival_ns:
                at, kind, order, seq = heap[0]
                if seq.order != order:
                    heappop(heap)  # it was preempted meanwhile
                    continue
            elif arrival_ns != NEVER and not stalled:
                at, kind = max(arrival_ns, now), ARRIVAL
            else:
                break
            # Steps of one moment come before arrivals of it, but after one that was late.
            all_before = before = at + (at == arrival_ns and kind == ARRIVAL)
            if before > due_ns > now:
                before = due_ns
            moment, count = at, 0
            if keys and (before > swept_ns or at >= due_ns):
                if before < swept_ns:  # noqa: PLR1730
                    before = swept_ns
                next_turn, phase = divmod(before, period_ns)
                next_place = bisect_left(keys, phase << _ORDER_BITS)
                count = next_place - place + (next_turn - turn) * len(keys)
                if count or at >= due_ns:
                    if place < len(keys):
                        first_ns = turn * period_ns + (keys[place] >> _ORDER_BITS)
                    else:
                        first_ns = turn * period_ns + period_ns + (keys[0] >> _ORDER_BITS)
                    if first_ns < at:
                        moment = first_ns
                    if first_ns == now and before > now + 1:  # that level has not lasted
                        before = now + 1
                        next_turn, phase = divmod(before, period_ns)
                        next_place = bisect_left(keys, phase << _ORDER_BITS)
                        count = next_place - place + (next_turn - turn) * len(keys)
            if moment != now:
                if moment >= due_ns:
                    if len(ends) >= _FLUSH:
                        due = moment
                        break
                    stretch.committed_min, stretch.committed_max = committed_low, committed_high
                    account.committed, account.owned, account.now = committed, owned, now
                    account.peak_unowned, account.unowned_charged = unowned, unowned_charged
                    account.stale = stale
                    self._set_levels(running, running_low, running_high)
                    recorder.peak_live = max(recorder.peak_live, most_live)
                    sampler.most_live = most_live
                    simulation.now = now
                    simulation.advance(moment)
                    now, due_ns, last_ns = moment, recorder.due_ns, recorder.last_ns
                    unowned, unowned_charged = account.peak_unowned, account.unowned_charged
                    most_live, stretch, stale = sampler.most_live, account.stretch, True
                    committed_low, committed_high = stretch.committed_min, stretch.committed_max
                    running_low, running_high = NEVER, 0
                    continue
                look -= 1
                if not look:
                    look = STOP_EVERY
                    if stop():
                        break
                    if grown >= rest:  # time for turns again
                        due = now
                        break
                # Only now has the level lasted.
                if committed - owned > unowned:
                    unowned, unowned_charged = committed - owned, committed
                if stale:
                    stale = False
                    if committed < committed_low:  # noqa: PLR1730 - min() takes longer
                        committed_low = committed
                    if committed > committed_high:  # noqa: PLR1730
                        committed_high = committed
                    if running < running_low:  # noqa: PLR1730
                        running_low = running
                    if running > running_high:  # noqa: PLR1730
                        running_high = running
            if count:
                room = budget - committed
                if count * most > room:
                    all_before = NEVER
                    count = room // most
                    if count <= 0:
                        break
                    turns, next_place = divmod(place + count, len(keys))
                    next_turn, before = turn + turns, swept_ns
                end = place + count
                passed = takers[place:end]
                while len(passed) < count:
                    end -= len(keys)
                    passed += takers[: max(end, 0)]
                found = blocks.take_each(passed)
                ring_steps += count
                if found:
                    ring.turn, ring.place = turn, place
                for number, granules, calls in found:
                    when = ring.time(number)
                    commits += calls
                    nbytes = granules * granule
                    committed += nbytes
                    committed_moment += nbytes * when
                    if committed > committed_high:
                        committed_high = committed
                        if committed > peak:
                            peak, peak_at = committed, when
                    after = number + 1
                    if committed - owned - after * ring_bytes > unowned:
                        while after < count and ring.time(after) == when:
                            after += 1
                        left = committed - owned - after * ring_bytes
                        if after < count and left > unowned:  # else it is not known to last
                            unowned, unowned_charged = left, committed
                owned += count * ring_bytes
                turn, place, swept_ns = next_turn, next_place, before
                if place:
                    now = turn * period_ns + (keys[place - 1] >> _ORDER_BITS)
                else:
                    now = turn * period_ns - period_ns + (keys[-1] >> _ORDER_BITS)
                if stale or before != all_before or at >= due_ns:
                    continue
                if committed - owned > unowned and at != now:
                    unowned, unowned_charged = committed - owned, committed
            elif before > swept_ns:
                swept_ns = before
                if keys:
                    turn, place = next_turn, next_place
            if kind == STEP:
                longest = seq.covered
                assert longest is not None  # noqa: S101 - else there is no step
                if longest >= start and swept_ns == at:
                    now = at
                    if not keys:
                        turn, place = at // period_ns, 0
                    key = at % period_ns << _ORDER_BITS | order
                    new = bisect_left(keys, key)
                    keys.insert(new, key)
                    takers.insert(new, seq.blocks[ring_class])
                    heapreplace(heap, (seq.origin_ns + seq.total * step_ns, END, order, seq))
                    continue
                step = next_growth.get(longest) or self._remember(
                    next_growth, longest, longest, longest + 1
                )
                nbytes, _, backed, covered, _, lacks = step
                taken = store.take_now(seq, lacks, budget - committed)
                if taken is None:
                    break
                owned += nbytes
                owned_moment += nbytes * at
                seq.own_bytes += nbytes
                nbytes, calls = taken
                now = at
                grown += 1
                seq.backed, seq.covered = backed, covered
                if covered is not None and covered < seq.total:
                    seq.target = covered + 1
                    entry = (seq.origin_ns + covered * step_ns, STEP, order, seq)
                else:
                    entry = (seq.origin_ns + seq.total * step_ns, END, order, seq)
                heapreplace(heap, entry)
            elif kind == END:
                if waiting or seq.path or seq.answered:
                    break
                now = at
                heappop(heap)
                longest = seq.covered
                if (
                    committed > most_live
                    and now != last_ns
                    and live.at_most(now) - overlap > most_live
                ):
                    live_bytes = live.before(now) - overlap
                    if live_bytes > committed:
                        raise account.breach()
                    most_live = max(most_live, live_bytes)
                if longest is not None and longest < seq.total:
                    origin_ns = seq.origin_ns
                    key = (origin_ns + longest * step_ns) % period_ns << _ORDER_BITS | order
                    gone = bisect_left(keys, key)
                    del keys[gone], takers[gone]
                    if gone < place:
                        place -= 1
                    count = -(-(seq.total - longest) // period)
                    ring_ns += count * origin_ns
                    ring_tokens += count * longest + period * (count * (count - 1) // 2)
                    seq.own_bytes += count * ring_bytes
                live.remove(seq)
                length, decode_ns, start_ns = seq.length, seq.decode_ns, seq.start_ns
                arrived_ns = seq.request[0]
                more = seq.total - length
                if more:
                    steps += more
                    firsts.append(decode_ns + step_ns - arrived_ns)
                ends.append(now - arrived_ns)
                # The tokens of the prompt until the first step, and then one more at each.
                token_area += length * (decode_ns - start_ns)
                token_area += more * (2 * length + more + 1) // 2 * step_ns
                time_area += now - start_ns
                for entries, nbytes in others:
                    token_bytes = nbytes * entries.at(length) * (decode_ns - start_ns)
                    other_area += token_bytes + nbytes * entries.over(length, more) * step_ns
                nbytes = seq.own_bytes
                owned -= nbytes
                owned_moment -= nbytes * now
                nbytes, calls, _ = store.give(seq.blocks)
                releases += calls
                committed -= nbytes
                committed_moment -= nbytes * now
                release_bytes += nbytes
                running -= 1
                running_moment -= now
                del admitted[order]
                seq.order = -1
                stale = True
                continue
            else:
                assert request is not None  # noqa: S101 - it has arrived
                arrived_ns, prompt, output, prefix = request
                if running >= most_sequences or prompt + output > max_tokens or (prefix and share):
                    break
                step = first_growth.get(prompt) or self._remember(first_growth, prompt, -1, prompt)
                nbytes, _, backed, covered, _, lacks = step
                seq = RunningSequence(request)
                seq.own_bytes, seq.backed, seq.covered = nbytes, backed, covered
                taken = store.take_now(seq, lacks, budget - committed)
                if taken is None:
                    break
                owned += nbytes
                owned_moment += nbytes * at
                nbytes, calls = taken
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
                    if covered >= start and swept_ns <= first_ns < swept_ns + period_ns:
                        if not keys:
                            turn, place = swept_ns // period_ns, 0
                        next_turn, phase = divmod(first_ns, period_ns)
                        key = phase << _ORDER_BITS | orders
                        new = bisect_left(keys, key)
                        keys.insert(new, key)
                        takers.insert(new, seq.blocks[ring_class])
                        if next_turn > turn:
                            place += 1
                    else:
                        event_ns, kind = first_ns, STEP
                heappush(heap, (event_ns, kind, orders, seq))
                running += 1
                running_moment += now
                if running > running_high:  # noqa: PLR1730
                    running_high = running
                simulation.next_request = request = next(unread, None)
                arrival_ns = NEVER if request is None else request.arrival_ns
            committed += nbytes
            committed_moment += nbytes * now
            commits += calls
            if committed > committed_high and nbytes:
                committed_high = committed
                if committed > peak:
                    peak, peak_at = committed, now

        ring.turn, ring.place, ring.swept_ns = turn, place, swept_ns
        owned_moment += ring_bytes * (ring_ns + ring_tokens * step_ns)
        entered, finished = orders - simulation.orders, len(ends)
        simulation.now, simulation.orders = now, orders
        simulation.events += entered + grown + ring_steps + finished
        self._ring_steps += ring_steps
        account.now = now
        account.committed = committed
        account.owned = owned
        account.committed_moment += committed_moment
        account.owned_moment += owned_moment
        account.peak_unowned, account.unowned_charged = unowned, unowned_charged
        account.sequences_moment += running_moment
        account.commits += commits
        account.commit_bytes += committed - committed_first + release_bytes
        account.releases += releases
        account.release_bytes += release_bytes
        account.peak_committed, account.peak_at = peak, peak_at
        account.peak_charged = max(account.peak_charged, peak)
        account.stale = stale
        stretch.committed_min, stretch.committed_max = committed_low, committed_high
        self._set_levels(running, running_low, running_high)
        recorder.live_area += (
            self._used.slope * token_area + self._used.fixed * time_area + other_area
        )
        self._record(entered, prompts, steps, most_live, waits, firsts, ends)
        return due

    def _settle(self, seq: RunningSequence, count: int) -> int:
        """Note that *seq* has taken *count* steps in the ring; return the moment of their bytes."""
        covered, nbytes = seq.covered, self._growth.nbytes
        assert covered is not None  # noqa: S101 - else it is in no ring
        seq.own_bytes += count * nbytes
        seq.backed = seq.covered = covered + count * self._period
        steps = count * covered + self._period * (count * (count - 1) // 2)
        return nbytes * (count * seq.origin_ns + steps * self._simulation.plan.step_ns)

    def _enter_ring(self, ring: _StepRing) -> None:
        """Let all sequences that grow alike take their steps in turn."""
        simulation, step_ns = self._simulation, self._simulation.plan.step_ns
        heap, start = simulation.heap, self._start
        if simulation.events < self._rest or len(heap) < 2:
            return
        alike = [
            (at, order, seq)
            for at, kind, order, seq in heap
            if kind == STEP and seq.order == order and seq.covered is not None
            if seq.covered >= start
        ]
        if not alike:
            return
        until = min(alike)[0] + self._period * step_ns
        alike = [entry for entry in alike if entry[0] < until]
        ring.start(alike)
        members = {seq for _, _, seq in alike}
        entries = [entry for entry in heap if entry[3] not in members]
        entries += [
            (seq.origin_ns + seq.total * step_ns, END, order, seq) for _, order, seq in alike
        ]
        heapify(entries)
        heap[:] = entries

    def _leave_ring(self, ring: _StepRing) -> None:
        """Let all sequences take their steps by the heap again."""
        simulation, step_ns, period = self._simulation, self._simulation.plan.step_ns, self._period
        account = simulation.account
        members = set()
        for order, steps in ring.orders():
            seq = simulation.admitted[order]
            members.add(seq)
            assert seq.covered is not None  # noqa: S101 - else it is in no ring
            first_ns = seq.origin_ns + seq.covered * step_ns
            account.owned_moment += self._settle(seq, steps - first_ns // (period * step_ns))
        self._to_heap(members)
        worth = self._ring_steps > 4 * len(members)
        self._ring_patience = _LEAST_REST if worth else min(2 * self._ring_patience, _MOST_REST)
        self._rest = 0 if worth else simulation.events + self._ring_patience
        self._ring_steps = 0
        self._ring = _StepRing(period * step_ns, self._place)
