"""Follows the sequences of a replay as they grow: their live bytes, and points of the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.replay.token_bytes import LiveBytes

if TYPE_CHECKING:
    from vmtool.replay.account import Account
    from vmtool.replay.replay_recorder import Recorder
    from vmtool.replay.sequence import RunningSequence
    from vmtool.replay.token_bytes import UsedBytes


class Sampler:
    """Adds up the sequences of a replay, which also grow between its calls.

    Args:
        recorder: Where what is seen goes.
        account: The byte totals.
        used: The bytes of a sequence by its length.
        step_ns: A decode step.

    Attributes:
        live: The bytes of tokens of the sequences that run.
        most_live: The most of them since the last point of the timeline, where something went.
    """

    def __init__(
        self,
        recorder: Recorder,
        account: Account,
        used: UsedBytes,
        step_ns: int,
    ) -> None:
        self._recorder = recorder
        self._account = account
        self._used = used
        self._step_ns = step_ns
        self.live = LiveBytes(used, step_ns)
        self.most_live = 0
        self._refused = 0  # until then

    def sample(self, since: int, now: int) -> None:
        """Add a point to the timeline, as one is due: nothing changed from *since* to *now*.

        Where nothing happened for long, what was before has a point of its own, so that the quiet
        stretch does not seem to have its most.
        """
        recorder = self._recorder
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
            (
                *(at, live, account.committed, account.reserved, account.sequences),
                max(self.most_live, live),
                *(stretch.committed_min, stretch.committed_max),
                *(stretch.reserved_min, stretch.reserved_max),
                *(stretch.sequences_min, stretch.sequences_max),
                refused - self._refused,
            )
        )
        self._recorder.peak_live = max(self._recorder.peak_live, live)
        self.most_live = 0
        self._refused = refused

    def live_before(self, now: int) -> int:
        """Return the bytes of tokens just before *now*, shared ones once."""
        return self.live.before(now) - self._account.overlap

    def note_peak(self, now: int) -> None:
        """Note what is live before something is released: in between, it only grows."""
        account = self._account
        if account.committed <= self.most_live or now == self._recorder.last_ns:
            return  # the last point of the timeline has it
        live = self.live_before(now)
        if live > account.committed:
            raise account.breach()
        self.most_live = max(self.most_live, live)
        self._recorder.peak_live = max(self._recorder.peak_live, live)

    def begin(self, seq: RunningSequence) -> None:
        """Follow *seq* in the segment that it begins now."""
        self.live.add(seq)

    def settle(self, seq: RunningSequence, now: int) -> int:
        """End the segment of *seq*; return the steps of it that are complete."""
        self.live.remove(seq)
        step = self._step_ns
        begun = seq.steps_before(now, step)
        if seq.stalled:
            area = self._used.at(seq.length) * (now - seq.start_ns)
            self._recorder.counts.stalled_ns += now - seq.start_ns
        else:
            prefilled = min(now, seq.decode_ns) - seq.start_ns
            area = self._used.at(seq.length) * prefilled
        complete = begun
        if begun:
            last_ns = now - seq.decode_ns - (begun - 1) * step
            complete = begun - (last_ns < step)
            area += self._used.over(seq.length, begun - 1) * step
            area += self._used.at(seq.length + begun) * last_ns
        if complete and not seq.answered:
            seq.answered = True
            self._recorder.first_tokens.add(seq.decode_ns + step - seq.request.arrival_ns)
        self._recorder.live_area += area
        self._recorder.counts.decode_steps += complete
        return complete
