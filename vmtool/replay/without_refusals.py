"""What needs no decision, fast: requests that come, grow and end in ranges of their own.

The simulation decides what happens when memory is refused. As long as none is, sequences depend on each
other only through sums, and two shortcuts give the same result as going from event to event: one
loop takes arrivals, steps and ends with all totals in local variables, and where each token
commits memory, the steps of all sequences until anything else happens are added up at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from operator import mul
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vmtool.errors import CheckFailedError
from vmtool.replay.pool_store import PoolStore
from vmtool.replay.range_store import GrowthTable, RangeStore
from vmtool.replay.sequence import RunningSequence
from vmtool.replay.stores import MOST_STEPS

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator, Sequence

    from vmtool.kv.packing.growth import UsedBytes
    from vmtool.kv.traces.request import Request
    from vmtool.replay.byte_totals import Account
    from vmtool.replay.rules import Plan
    from vmtool.replay.stores import Store
    from vmtool.replay.timeline import Recorder, Sampler

#: The kinds of events of a sequence, in the order that they have at one moment.
END: Final = 0
STEP: Final = 1

_LEAST_SINGLES: Final = 4
_MOST_SINGLES: Final = 1 << 12
_NEVER: Final = 1 << 62
_TRIES: Final = 3
#: Events between two looks at whether to stop.
_EVENTS: Final = 64


class _Growth(NamedTuple):
    """What a sequence commits at once, alone or to grow, in how many spans, and its state then."""

    nbytes: int
    calls: int
    backed: int
    covered: int | None


class State(Protocol):
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


class PooledSteps:
    """The shortcut of sequences that take blocks: their steps.

    Args:
        simulation: Whose state it changes.
        store: The memory of its sequences.
    """

    def __init__(self, simulation: State, store: PoolStore) -> None:
        self._simulation = simulation
        self._store = store

    def run(self, stop: Callable[[], bool]) -> None:
        """Take steps until anything else happens.

        Args:
            stop: Asked now and then; once it is true, no more are taken.
        """
        simulation, grow = self._simulation, self._store.grow_by_one
        heap, step_ns, account = simulation.heap, simulation.plan.step_ns, simulation.account
        request = simulation.next_request
        arrival_ns = _NEVER if request is None or simulation.queue else request.arrival_ns
        due_ns = simulation.recorder.due_ns
        steps = 0
        waited = False
        while heap:
            at, kind, order, seq = heap[0]
            if kind != STEP or at > arrival_ns or at >= due_ns or seq.order != order:
                break
            if not steps & (_EVENTS - 1) and stop():
                break
            if at != account.now:
                if waited:  # from then on sequences only own more of what is committed
                    account.now = at
                else:
                    account.advance(at)
                    waited = True
                simulation.now = at
            committed = account.committed
            if not grow(seq):
                break
            steps += 1
            if account.committed != committed:
                waited = False
            covered = seq.covered
            if covered is not None and covered < seq.total:
                seq.target = covered + 1
                heapreplace(heap, (seq.origin_ns + covered * step_ns, STEP, order, seq))
            else:
                heapreplace(heap, (seq.origin_ns + seq.total * step_ns, END, order, seq))
        simulation.events += steps

    def step_many(self, _first_ns: int) -> bool:
        """Take no steps at once: which block a sequence takes depends on their order."""
        return False


class RangedEvents:
    """The shortcuts of sequences with ranges of their own.

    Args:
        simulation: Whose state they change.
        store: The memory of its sequences.
        used: The bytes of a sequence by its length.
    """

    def __init__(self, simulation: State, store: RangeStore, used: UsedBytes) -> None:
        self._simulation = simulation
        self._store = store
        self._used = used
        self._table = GrowthTable(store)
        self._checked = 0  # lengths of it
        self._least_bytes = store.step(-1, 0).nbytes
        # Steps one by one before many are tried at once; more after it was not worth it.
        self._singles = 0
        self._patience = _LEAST_SINGLES
        self._first: dict[int, _Growth] = {}  # by the prompt
        self._next: dict[int, _Growth] = {}  # by the length that was covered
        self._release_calls: dict[int, int] = {}  # by the length that memory was requested for

    # ---- one after the other --------------------------------------------------------------------

    def run(self, stop: Callable[[], bool]) -> None:
        """Take events until one needs a decision, or too much of the state.

        While the queue has a request, or a sequence is stalled, only steps are taken, as what ends
        makes room for those.

        Args:
            stop: Asked now and then; once it is true, no more are taken.
        """
        while not self._needs_decision():
            due_ns = self._run(stop)
            if due_ns is None:
                return
            self._simulation.advance(due_ns)

    def _needs_decision(self) -> bool:
        """Return whether the next event is none for :meth:`_run`, whose set-up takes longer to say so.

        Where sequences wait for memory, that is true of most.
        """
        simulation = self._simulation
        if not simulation.heap or not (simulation.stalled or simulation.queue):
            return False
        _, kind, order, seq = simulation.heap[0]
        if seq.order != order:
            return False
        if kind == END:
            return True
        longest = seq.covered
        assert longest is not None  # noqa: S101 - else there is no step
        nbytes = (self._next.get(longest) or self._grown(longest)).nbytes
        return simulation.account.committed + nbytes > simulation.account.budget

    def _run(self, stop: Callable[[], bool]) -> int | None:
        """Do what :meth:`run` does until a point of the timeline is due; return when."""
        simulation, store = self._simulation, self._store
        plan, account, recorder = simulation.plan, simulation.account, simulation.recorder
        sampler, live, counts = simulation.sampler, simulation.sampler.live, recorder.counts
        heap, admitted = simulation.heap, simulation.admitted
        first_growth, next_growth, release_calls = self._first, self._next, self._release_calls
        max_tokens, most_sequences, step_ns = plan.max_tokens, plan.max_sequences, plan.step_ns
        per_token, tokens_in = plan.prefill_ns
        budget, due_ns, share = account.budget, recorder.due_ns, plan.share
        stalled = bool(simulation.stalled)
        waiting = stalled or bool(simulation.queue)
        request = simulation.next_request
        arrival_ns = _NEVER if request is None or simulation.queue else request.arrival_ns
        now, orders = simulation.now, simulation.orders
        committed, running = account.committed, account.sequences
        committed_moment = running_moment = 0
        commits = releases = release_bytes = 0
        stretch, stale = account.stretch, account.stale
        committed_low, committed_high = stretch.committed_min, stretch.committed_max
        peak, peak_at = account.peak_committed, account.peak_at
        running_low, running_high = _NEVER, 0
        prompts = steps = token_area = time_area = other_area = 0
        overlap, last_ns = account.overlap, recorder.last_ns
        waits: list[int] = []
        firsts: list[int] = []
        ends: list[int] = []
        others = self._used.steps
        most_live = sampler.most_live
        singles, patience, grown = self._singles, self._patience, 0
        look = _EVENTS
        due: int | None = None

        while True:
            if heap and heap[0][0] <= arrival_ns:
                at, kind, order, seq = heap[0]
                if seq.order != order:
                    heappop(heap)  # it was preempted meanwhile
                    continue
            elif arrival_ns != _NEVER and not stalled:
                at, kind = max(arrival_ns, now), -1
            else:
                break
            if at != now:
                if at >= due_ns:
                    due = at
                    break
                look -= 1
                if not look:
                    look = _EVENTS
                    if stop():
                        break
                if stale:  # only now has the level lasted
                    stale = False
                    committed_low = min(committed_low, committed)
                    committed_high = max(committed_high, committed)
                    running_low = min(running_low, running)
                    running_high = max(running_high, running)
            if kind == STEP:
                longest = seq.covered
                assert longest is not None  # noqa: S101 - else there is no step
                nbytes, calls, backed, covered = next_growth.get(longest) or self._grown(longest)
                if committed + nbytes > budget or (singles >= patience and at != now):
                    break
                now = at
                singles += 1
                grown += 1
                seq.backed, seq.covered = backed, covered
                seq.own_bytes += nbytes
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
                if (
                    committed > most_live
                    and now != last_ns
                    and live.at_most(now) - overlap > most_live
                ):
                    found = live.before(now) - overlap
                    if found > committed:
                        raise account.breach()
                    most_live = max(most_live, found)
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
                committed -= nbytes
                committed_moment -= nbytes * now
                release_bytes += nbytes
                releases += release_calls.get(seq.backed) or self._calls(seq.backed)
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
                nbytes, calls, backed, covered = first_growth.get(prompt) or self._alone(prompt)
                if committed + nbytes > budget:
                    break
                now = at
                orders += 1
                seq = RunningSequence(request)
                seq.order = orders
                seq.admitted_once = True
                seq.start_ns = seq.admitted_ns = now
                decode_ns = seq.decode_ns = now - (-prompt * per_token // tokens_in)
                origin_ns = seq.origin_ns = decode_ns - prompt * step_ns
                seq.target = prompt
                seq.own_bytes, seq.backed, seq.covered = nbytes, backed, covered
                admitted[orders] = seq
                prompts += prompt
                if now != arrived_ns:
                    waits.append(now - arrived_ns)
                live.add(seq)
                if covered is not None and covered < seq.total:
                    seq.target = covered + 1
                    heappush(heap, (origin_ns + covered * step_ns, STEP, orders, seq))
                else:
                    heappush(heap, (origin_ns + seq.total * step_ns, END, orders, seq))
                running += 1
                running_moment += now
                running_high = max(running_high, running)
                simulation.next_request = request = next(simulation.unread, None)
                arrival_ns = _NEVER if request is None else request.arrival_ns
            committed += nbytes
            committed_moment += nbytes * now
            commits += calls
            if committed > committed_high:
                committed_high = committed
                if committed > peak:
                    peak, peak_at = committed, now

        entered, finished = orders - simulation.orders, len(ends)
        simulation.now, simulation.orders = now, orders
        simulation.events += entered + grown + finished
        self._singles = singles
        commit_bytes = committed - account.committed + release_bytes
        account.now = now
        reserved, sequences = account.reserved, account.sequences
        size = store.reserve_bytes
        other = reserved - size * sequences  # of shared prefixes
        account.committed = committed
        account.owned += commit_bytes - release_bytes
        account.committed_moment += committed_moment
        account.owned_moment += committed_moment
        account.sequences = running
        account.sequences_moment += running_moment
        account.reserved = other + size * running
        account.reserved_moment += size * running_moment
        account.commits += commits
        account.commit_bytes += commit_bytes
        account.releases += releases
        account.release_bytes += release_bytes
        account.peak_committed, account.peak_at = peak, peak_at
        account.peak_charged = max(account.peak_charged, peak)
        account.stale = stale
        stretch.committed_min, stretch.committed_max = committed_low, committed_high
        if running_low != _NEVER:
            stretch.sequences_min = min(stretch.sequences_min, running_low)
            stretch.reserved_min = min(stretch.reserved_min, other + size * running_low)
        if running_high:
            stretch.sequences_max = max(stretch.sequences_max, running_high)
            stretch.reserved_max = max(stretch.reserved_max, other + size * running_high)
        account.peak_sequences = max(account.peak_sequences, running_high)
        account.peak_reserved = max(account.peak_reserved, other + size * running_high)
        counts.arrived += entered
        counts.prompt_tokens += prompts
        counts.finished += finished
        counts.decode_steps += steps
        recorder.live_area += (
            self._used.slope * token_area + self._used.fixed * time_area + other_area
        )
        recorder.peak_live = max(recorder.peak_live, most_live)
        sampler.most_live = most_live
        recorder.waits.extend(waits)
        recorder.waits.zeros += entered - len(waits)
        recorder.first_tokens.extend(firsts)
        recorder.ends.extend(ends)
        return due

    def _alone(self, tokens: int) -> _Growth:
        """Work out and remember what a sequence of *tokens* commits from nothing."""
        nbytes, calls, backed, covered, _ = self._store.step(-1, tokens)
        self._check(nbytes, covered)
        if len(self._first) >= MOST_STEPS:
            self._first.clear()
        growth = self._first[tokens] = _Growth(nbytes, calls, backed, covered)
        return growth

    def _grown(self, covered: int) -> _Growth:
        """Work out and remember what the token after *covered* commits."""
        nbytes, calls, backed, longest, _ = self._store.step(covered, covered + 1)
        self._check(self._store.step(-1, backed).nbytes, longest)
        if len(self._next) >= MOST_STEPS:
            self._next.clear()
        growth = self._next[covered] = _Growth(nbytes, calls, backed, longest)
        return growth

    def _calls(self, backed: int) -> int:
        if len(self._release_calls) >= MOST_STEPS:
            self._release_calls.clear()
        calls = self._release_calls[backed] = self._store.step(-1, backed).calls
        return calls

    def _check(self, nbytes: int, covered: int | None) -> None:
        """Check that *nbytes* are enough for the *covered* tokens that they are said to be for."""
        longest = self._simulation.plan.max_tokens
        tokens = longest if covered is None else min(covered, longest)
        if self._used.at(tokens) > nbytes:
            raise CheckFailedError(f"{tokens} tokens of a sequence are more than it committed")

    # ---- many steps at once ---------------------------------------------------------------------

    def step_many(self, first_ns: int) -> bool:
        """Take all steps from *first_ns* until anything else happens; ``False`` if they may not fit.

        Until the next arrival, end or point of the timeline, sequences only grow, and if what all of
        them commit until then fits, nothing is refused and the order does not matter.
        """
        self._singles += 1
        if self._singles <= self._patience or first_ns <= self._simulation.now:
            return False
        self._singles = 0
        simulation, table = self._simulation, self._table
        account = simulation.account
        running = [seq for seq in simulation.admitted.values() if not seq.stalled]
        longest = max([seq.total for seq in running])
        if not table.extend(longest):
            self._patience = _NEVER
            return False
        lengths, sums, moments = table.lengths, table.nbytes, table.moments
        for at in range(self._checked, len(lengths)):
            self._check(self._least_bytes + sums[at], lengths[at])
        self._checked = len(lengths)
        step_ns, endless = simulation.plan.step_ns, table.ENDLESS
        horizon = min([seq.origin_ns + step_ns * seq.total for seq in running])
        horizon = min(horizon, simulation.recorder.due_ns)
        if simulation.next_request is not None and not simulation.queue:
            horizon = min(horizon, simulation.next_request.arrival_ns)
        # What is free lasts about as long as it is a part of what is wanted.
        free = account.budget - account.committed
        wanted = len(running) * sums[-1] * (horizon - first_ns) // (step_ns * longest)
        if wanted > free:
            horizon = first_ns + (horizon - first_ns) * (free * 31 // 32) // wanted
        if horizon - first_ns < step_ns:  # less than one step each
            self._patience = min(2 * self._patience, _MOST_SINGLES)
            return False
        origins = [seq.origin_ns for seq in running]
        starts = [
            bisect_left(lengths, endless if seq.covered is None else seq.covered) for seq in running
        ]
        before = sum([sums[start] for start in starts])
        for _ in range(_TRIES):
            ends = _places(lengths, starts, origins, horizon - 1, step_ns)
            count = sum(ends) - sum(starts)
            wanted = sum([sums[end] for end in ends]) - before
            if count < len(running) or wanted <= free:
                break
            horizon = first_ns + (horizon - first_ns) * (free * 31 // 32) // wanted
        if count < len(running) or wanted > free:
            self._patience = min(2 * self._patience, _MOST_SINGLES)
            return False
        self._patience = _LEAST_SINGLES
        each = [sums[end] - sums[start] for start, end in zip(starts, ends, strict=True)]
        moment = sum(map(mul, origins, each))
        moment += step_ns * (sum([moments[e] for e in ends]) - sum([moments[s] for s in starts]))
        calls = sum([table.calls[e] for e in ends]) - sum([table.calls[s] for s in starts])
        last_ns = 0
        entries = []
        for seq, start, end, nbytes in zip(running, starts, ends, each, strict=True):
            if end > start:
                length = lengths[end]
                last_ns = max(last_ns, seq.origin_ns + step_ns * lengths[end - 1])
                seq.own_bytes += nbytes
                seq.covered = None if length == endless else length
                seq.backed = lengths[end - 1] + 1 if length == endless else length
            covered = seq.covered
            if covered is not None and covered < seq.total:
                seq.target = covered + 1
                entries.append((seq.origin_ns + step_ns * covered, STEP, seq.order, seq))
            else:
                entries.append((seq.origin_ns + step_ns * seq.total, END, seq.order, seq))
        heapify(entries)
        simulation.heap[:] = entries
        account.advance(first_ns)
        account.commit_many(wanted, calls, moment, last_ns)
        simulation.now = last_ns
        simulation.events += count
        return True


def shortcuts_of(simulation: State, used: UsedBytes) -> RangedEvents | PooledSteps | None:
    """Return the shortcuts, or ``None`` where steps depend on more than the budget."""
    account, store = simulation.account, simulation.store
    if account.memory is not None or account.retain or simulation.plan.commit_ahead:
        return None
    if isinstance(store, RangeStore):
        return RangedEvents(simulation, store, used)
    return PooledSteps(simulation, store) if isinstance(store, PoolStore) else None


def _places(
    lengths: Sequence[int], starts: Sequence[int], origins: Sequence[int], until: int, step_ns: int
) -> list[int]:
    """Return where in *lengths* each sequence is once its steps until *until* are taken."""
    return [
        bisect_right(lengths, (until - origin) // step_ns, start)
        for start, origin in zip(starts, origins, strict=True)
    ]
