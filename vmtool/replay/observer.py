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

    def sample(self, now: int) -> None:
        """Add a point to the timeline, of the totals until *now*, if one is due."""
        if self._recorder.due(now):
            account = self._account
            live = self.live_before(now)
            self._recorder.add(
                Point(now, live, account.committed, account.reserved, account.sequences)
            )

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
        if account.committed <= self._recorder.peak_live:
            return
        live = self.live_before(now)
        if live > account.committed:
            raise account.breach()
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
        self._recorder.live_area += area
        self._recorder.counts.decode_steps += complete
        return complete
