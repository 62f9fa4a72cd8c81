"""What a replay asks of memory: reserve, commit, release, unreserve, by arena."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from vmtool.errors import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes of a reservation: where they begin, and how many.
Piece: TypeAlias = tuple[int, int]


class Memory(Protocol):
    """Carries out what the simulation decides. An arena is one reservation, known by its number."""

    def reserve(self, arena: int, nbytes: int) -> None:
        """Reserve *nbytes* of addresses."""

    def commit(self, arena: int, spans: Sequence[Piece], slack_ns: int | None) -> None:
        """Commit *spans*, each a pair of offset and length.

        Args:
            arena: Where.
            spans: What.
            slack_ns: How long the decode step can go on without them; ``None`` at an admission.
        """

    def release(self, arena: int, spans: Sequence[Piece]) -> None:
        """Release *spans*."""

    def unreserve(self, arena: int) -> None:
        """Give the addresses back; nothing is committed there any more."""

    def trim(self) -> None:
        """Give back what is kept of released memory."""

    def check(self, committed: int, pooled: int) -> None:
        """Compare what is really charged with what the simulation has.

        Raises:
            CheckFailedError: If they differ.
        """


_MAX_NS: Final = 1 << 62
_MAX: Final = 1 << 80
#: Totals whose average over time is asked for.
_OVER_TIME: Final = (
    *("reserved", "committed", "pooled", "owned", "sequences", "saved", "overlap", "kept"),
)


@dataclass(slots=True)
class Stretch:
    """The least and most of totals in a stretch of simulated time.

    What is least lasted; what is most counts also if it was there for a moment only.
    """

    committed_min: int = _MAX
    committed_max: int = 0
    reserved_min: int = _MAX
    reserved_max: int = 0
    sequences_min: int = _MAX
    sequences_max: int = 0


@dataclass(slots=True)
class Account:
    """Byte totals with their peaks and integrals over time; every change is checked.

    *Committed* memory belongs to a range or pool, *pooled* memory was released and is kept for the
    next commit; both count against the budget. *Owned* is the part of what is committed that
    belongs to sequences or is *kept* of prefixes that none has any more: a block pool also commits
    the free blocks between those in use.

    Attributes:
        budget: Bytes that may be committed and pooled.
        retain: Bytes that may be pooled.
        memory: What carries the operations out, or ``None`` to only count.
        now: Simulated time in ns.
        sequences: Sequences admitted.
        saved: Bytes that sequences do not commit now because others have the same prefix.
        overlap: The bytes of tokens therein.
        kept: Bytes of prefixes that no sequence has any more.
        kept_reused: Those of them that a sequence took again, over time.
        kept_evicted: Those of them that made room.
        saved_total: All bytes that were not committed for that reason, over time.
        unowned_charged: What was charged when most was not owned.
        peak_at: When most was committed for the first time.
        stretch: The least and most since the last point of the timeline.
        unseen: Whether a total may be a new least or most that :attr:`stretch` does not have yet.
        moments: For each total over time, the sum of its changes times when they were.
    """

    budget: int
    retain: int
    memory: Memory | None
    now: int = 0
    reserved: int = 0
    committed: int = 0
    pooled: int = 0
    owned: int = 0
    sequences: int = 0
    saved: int = 0
    overlap: int = 0
    kept: int = 0
    kept_reused: int = 0
    kept_evicted: int = 0
    saved_total: int = 0
    peak_reserved: int = 0
    peak_committed: int = 0
    peak_charged: int = 0
    peak_pooled: int = 0
    peak_sequences: int = 0
    peak_saved: int = 0
    peak_kept: int = 0
    peak_unowned: int = 0
    unowned_charged: int = 0
    peak_at: int = 0
    stretch: Stretch = field(default_factory=Stretch)
    unseen: bool = True
    moments: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OVER_TIME, 0))
    commits: int = 0
    commit_bytes: int = 0
    releases: int = 0
    release_bytes: int = 0
    reused_bytes: int = 0

    # ---- time -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Go on to *now*, with everything as it is until then.

        Raises:
            CheckFailedError: If what is owned, committed, reserved and allowed contradict.
        """
        charged = self.committed + self.pooled
        if not 0 <= self.owned <= self.committed <= self.reserved or charged > self.budget:
            raise self.breach()
        if not self.now <= now <= _MAX_NS:
            raise CheckFailedError(f"simulated time went from {self.now} to {now} ns")
        if charged - self.owned > self.peak_unowned and now > self.now:
            self.peak_unowned, self.unowned_charged = charged - self.owned, charged
        if self.unseen:
            self._see()
        self.now = now

    def area(self, name: str) -> int:
        """Return the integral over time of one of :data:`_OVER_TIME` until now, exactly.

        A change by *d* at *t* adds *d* for all the time after: *d* times the end less *d* times *t*.
        So only changes cost something, and going on from moment to moment does not.
        """
        value: int = getattr(self, name)
        return value * self.now - self.moments[name]

    def end_stretch(self) -> Stretch:
        """Return the least and most since the last call, with what is there now."""
        self._see()
        ended, self.stretch = self.stretch, Stretch()
        self.unseen = True
        return ended

    def _see(self) -> None:
        """Note what is there, as it lasts; a commit notes its level itself."""
        self.unseen = False
        stretch = self.stretch
        stretch.committed_min = min(stretch.committed_min, self.committed)
        stretch.committed_max = max(stretch.committed_max, self.committed)
        stretch.reserved_min = min(stretch.reserved_min, self.reserved)
        stretch.reserved_max = max(stretch.reserved_max, self.reserved)
        stretch.sequences_min = min(stretch.sequences_min, self.sequences)
        stretch.sequences_max = max(stretch.sequences_max, self.sequences)

    def change(self, name: str, by: int) -> None:
        """Add *by* to one of :data:`_OVER_TIME`."""
        setattr(self, name, getattr(self, name) + by)
        self.moments[name] += by * self.now

    def breach(self) -> CheckFailedError:
        """Return the error that says that the totals contradict each other."""
        return CheckFailedError(
            f"the ledger contradicts itself at {self.now} ns: {self.owned} bytes owned, "
            f"{self.committed} committed, {self.pooled} pooled, {self.reserved} reserved, "
            f"{self.budget} allowed",
            hint="this is a fault of vmtool; please report it with the command line",
        )

    # ---- bytes ------------------------------------------------------------------------------

    def fits(self, nbytes: int) -> bool:
        """Return whether *nbytes* more can be committed; pooled memory is used for them first."""
        return self.committed + nbytes <= self.budget

    def reserve(self, nbytes: int) -> None:
        """Note *nbytes* of address space."""
        self.change("reserved", nbytes)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.stretch.reserved_max = max(self.stretch.reserved_max, self.reserved)

    def unreserve(self, nbytes: int) -> None:
        """Note that so much address space was given back."""
        self.change("reserved", -nbytes)
        self.unseen = True

    def commit(self, nbytes: int, calls: int) -> None:
        """Note *nbytes* committed in *calls* spans, from the pool as far as it goes."""
        if self.pooled:
            reused = min(self.pooled, nbytes)
            self.change("pooled", -reused)
            self.reused_bytes += reused
        committed = self.committed = self.committed + nbytes  # as change(); this is hot
        self.moments["committed"] += nbytes * self.now
        self.commits += calls
        self.commit_bytes += nbytes
        stretch = self.stretch
        if committed > stretch.committed_max:
            stretch.committed_max = committed
            if committed > self.peak_committed:
                self.peak_committed, self.peak_at = committed, self.now
        self.peak_charged = max(self.peak_charged, committed + self.pooled)

    def own(self, nbytes: int) -> None:
        """Note that sequences have *nbytes* more of what is committed; negative for less."""
        self.owned += nbytes
        self.moments["owned"] += nbytes * self.now

    def release(self, nbytes: int, calls: int) -> None:
        """Note *nbytes* released in *calls* spans; the pool keeps what it may."""
        self.change("committed", -nbytes)
        self.unseen = True
        self.releases += calls
        self.release_bytes += nbytes
        if self.retain:
            self.change("pooled", min(nbytes, self.retain - self.pooled))
            self.peak_pooled = max(self.peak_pooled, self.pooled)

    def enter(self) -> None:
        """Note one more sequence."""
        self.change("sequences", 1)
        self.peak_sequences = max(self.peak_sequences, self.sequences)
        self.stretch.sequences_max = max(self.stretch.sequences_max, self.sequences)

    def leave(self) -> None:
        """Note one sequence less."""
        self.change("sequences", -1)
        self.unseen = True

    def share(self, nbytes: int, live: int) -> None:
        """Note that one more sequence uses *nbytes*, of which *live* are tokens, with others."""
        if not nbytes:
            return
        self.change("saved", nbytes)
        self.change("overlap", live)
        self.saved_total += nbytes
        self.peak_saved = max(self.peak_saved, self.saved)

    def unshare(self, nbytes: int, live: int) -> None:
        """Note that one sequence less does."""
        if nbytes:
            self.change("saved", -nbytes)
            self.change("overlap", -live)

    def keep(self, nbytes: int) -> None:
        """Note *nbytes* of a prefix that no sequence has any more."""
        self.change("kept", nbytes)
        self.peak_kept = max(self.peak_kept, self.kept)

    def evict(self, nbytes: int) -> None:
        """Note that so much of what was kept belongs to nobody now."""
        self.change("kept", -nbytes)
        self.kept_evicted += nbytes
        self.own(-nbytes)

    def trim(self) -> None:
        """Give the pool back."""
        self.change("pooled", -self.pooled)
        if self.memory is not None:
            self.memory.trim()

    def verify(self) -> None:
        """Check that memory has what the ledger says, where there is real memory.

        Raises:
            CheckFailedError: If it has not.
        """
        if self.memory is not None:
            self.memory.check(self.committed, self.pooled)

    def check_empty(self) -> None:
        """Check that nothing is left of anything.

        Raises:
            CheckFailedError: If something is.
        """
        left = (self.committed, self.pooled, self.owned, self.sequences, self.saved, self.overlap)
        if any((*left, self.reserved, self.kept)) or self.commit_bytes != self.release_bytes:
            raise self.breach()
