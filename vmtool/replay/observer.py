"""How much of the memory holds tokens: at a moment, at most, and over time, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.replay.results import Point

if TYPE_CHECKING:
    from collections.abc import Collection

    from vmtool.kv.live import LiveBytes
    from vmtool.replay.account import Account
    from vmtool.replay.recorder import Recorder
    from vmtool.replay.sequence import Sequence


class Observer:
    """Looks at the sequences of a replay, which grow between the moments that it is called.

    Args:
        recorder: Where what is seen goes.
        account: The ledger.
        live: The bytes of a sequence's tokens.
        step_ns: A decode step.
        admitted: The sequences that are admitted, as they come and go.
    """

    def __init__(
        self,
        recorder: Recorder,
        account: Account,
        live: LiveBytes,
        step_ns: int,
        admitted: Collection[Sequence],
    ) -> None:
        self._recorder = recorder
        self._account = account
        self._live = live
        self._step_ns = step_ns
        self._admitted = admitted
        self._most_live = 0  # since the last point of the timeline, where something went
        self._refused = 0  # until then

    def sample(self, since: int, now: int) -> None:
        """Add a point to the timeline if one is due: nothing changed from *since* to *now*.

        Where nothing happened for long, what was before has a point of its own, so that the quiet
        stretch does not seem to have its most.
        """
        recorder = self._recorder
        if recorder.due(now):
            if since > recorder.last_ns and now - since >= recorder.interval_ns:
                self._add_point(since, self.live_before(since + 1))
            self._add_point(now, self.live_before(now))

    def finish(self) -> None:
        """Add the last point of the timeline, of what is left."""
        now = self._account.now
        self._add_point(now, self.live_before(now + 1))

    def _add_point(self, at: int, live: int) -> None:
        """Add a point about the time since the last; *live* is what is live at its end."""
        account, counts = self._account, self._recorder.counts
        stretch = account.end_stretch()
        refused = counts.refused_admissions + counts.refused_steps
        self._recorder.add(
            Point(
                at_ns=at,
                live_bytes=live,
                committed_bytes=account.committed,
                reserved_bytes=account.reserved,
                sequences=account.sequences,
                live_max_bytes=max(self._most_live, live),
                committed_min_bytes=stretch.committed_min,
                committed_max_bytes=stretch.committed_max,
                reserved_min_bytes=stretch.reserved_min,
                reserved_max_bytes=stretch.reserved_max,
                sequences_min=stretch.sequences_min,
                sequences_max=stretch.sequences_max,
                refused=refused - self._refused,
            )
        )
        self._recorder.peak_live = max(self._recorder.peak_live, live)
        self._most_live = 0
        self._refused = refused

    def live_before(self, now: int) -> int:
        """Return the bytes of tokens just before *now*, shared ones once."""
        live, step = self._live.at, self._step_ns
        total = -self._account.overlap
        for seq in self._admitted:
            if seq.admitted_ns < now:
                total += live(seq.length + seq.steps_before(now, step))
        return total

    def note_peak(self, now: int) -> None:
        """Look at what is live before something goes: it only grows in between."""
        account = self._account
        if account.committed <= self._most_live or now == self._recorder.last_ns:
            return  # the last point of the timeline has it
        live = self.live_before(now)
        if live > account.committed:
            raise account.breach()
        self._most_live = max(self._most_live, live)
        self._recorder.peak_live = max(self._recorder.peak_live, live)

    def settle(self, seq: Sequence, now: int) -> int:
        """Add what *seq* was live in this segment until *now*; the steps that are complete."""
        step = self._step_ns
        begun = seq.steps_before(now, step)
        area = self._live.at(seq.length) * (min(now, seq.decode_ns) - seq.start_ns)
        if seq.stalled:
            area = self._live.at(seq.length) * (now - seq.start_ns)
            self._recorder.counts.stalled_ns += now - seq.start_ns
        complete = begun
        if begun:
            last_ns = now - seq.decode_ns - (begun - 1) * step
            complete = begun - (last_ns < step)
            area += self._live.over(seq.length, begun - 1) * step
            area += self._live.at(seq.length + begun) * last_ns
        if complete and not seq.answered:
            seq.answered = True
            self._recorder.first_tokens.extend((seq.decode_ns + step - seq.request.arrival_ns,))
        self._recorder.live_area += area
        self._recorder.counts.decode_steps += complete
        return complete
