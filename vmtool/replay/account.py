"""The byte totals of a replay, and the interface of the memory that carries out its operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from vmtool.errors import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Part of a reservation: offset and length in bytes.
Piece: TypeAlias = tuple[int, int]
#: Part of two reservations: offset in the one that maps, offset in the source, and length.
Place: TypeAlias = tuple[int, int, int]
#: What a reservation is for.
Holder: TypeAlias = Literal["sequences", "prefixes", "block pools"]


class Memory(Protocol):
    """Carries out what the simulation decides. An arena is one reservation, known by its number."""

    def reserve(self, arena: int, nbytes: int, holder: Holder) -> None:
        """Reserve *nbytes* of addresses for *holder*."""

    def map_shared(self, arena: int, source: int, places: Sequence[Place]) -> None:
        """Map what is committed in *source* into *arena* as well, where the memory can be."""

    def unmap_shared(self, arena: int) -> None:
        """Unmap all that :meth:`map_shared` mapped into *arena*."""

    def commit(self, arena: int, spans: Sequence[Piece], slack_ns: int | None) -> None:
        """Commit *spans*.

        Args:
            arena: The reservation.
            spans: Offset and length of each part.
            slack_ns: Time until the decode step needs them; ``None`` at an admission.
        """

    def release(self, arena: int, spans: Sequence[Piece]) -> None:
        """Release *spans*."""

    def unreserve(self, arena: int) -> None:
        """Unreserve the addresses; nothing may be committed there."""

    def trim(self) -> None:
        """Free the released memory that the pool keeps."""

    def check(self, committed: int, pooled: int) -> None:
        """Compare what is really charged with the simulation.

        Raises:
            CheckFailedError: If they differ.
        """


_MAX_NS: Final = 1 << 62
_MAX: Final = 1 << 80


@dataclass(slots=True)
class Stretch:
    """The minimum and maximum of totals in an interval of simulated time.

    A minimum must last; a maximum counts even if it is momentary.
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
    next commit; both count against the budget. *Owned* is the part of committed memory that
    belongs to sequences or to *kept* prefixes, which no sequence uses: a block pool also commits
    the free blocks between those in use.

    The integral over time of a total until the end is its value times the end, less the sum of
    each change times its time. That sum is the total's *moment*, so only changes cost anything.

    Attributes:
        budget: Bytes that may be committed and pooled.
        retain: Bytes that may be pooled.
        memory: Real memory, to which every operation is forwarded, or ``None``.
        now: Simulated time in ns.
        sequences: Sequences admitted.
        saved: Bytes that sequences do not commit because others have the same prefix.
        overlap: Bytes of tokens in *saved*.
        kept: Bytes of prefixes that no sequence uses.
        kept_reused: Kept bytes that a sequence used again, in total.
        kept_evicted: Kept bytes that were evicted, in total.
        saved_total: Bytes that were not committed because of sharing, in total.
        unowned_charged: What was charged when most was not owned.
        peak_at: When the committed peak was first reached.
        stretch: Minimum and maximum since the last point of the timeline.
        stale: Whether a total has fallen since :attr:`stretch` was updated.
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
    reserved_moment: int = 0
    committed_moment: int = 0
    pooled_moment: int = 0
    owned_moment: int = 0
    sequences_moment: int = 0
    saved_moment: int = 0
    overlap_moment: int = 0
    kept_moment: int = 0
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
    stale: bool = True
    commits: int = 0
    commit_bytes: int = 0
    releases: int = 0
    release_bytes: int = 0
    reused_bytes: int = 0

    # ---- time -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Advance to *now*; totals were constant until then.

        Raises:
            CheckFailedError: If the totals contradict each other, or time goes back.
        """
        owned, committed = self.owned, self.committed
        charged = committed + self.pooled
        if not 0 <= owned <= committed <= self.reserved or charged > self.budget:
            raise self.breach()
        if not self.now <= now <= _MAX_NS:
            raise CheckFailedError(f"simulated time went from {self.now} to {now} ns")
        if charged - owned > self.peak_unowned and now > self.now:
            self.peak_unowned, self.unowned_charged = charged - owned, charged
        if self.stale:
            self._update_stretch()
        self.now = now

    def area(self, name: str) -> int:
        """Return the exact integral over time of the total *name* until now."""
        value: int = getattr(self, name)
        moment: int = getattr(self, f"{name}_moment")
        return value * self.now - moment

    def end_stretch(self) -> Stretch:
        """Return minimum and maximum since the last call, the present included."""
        self._update_stretch()
        ended, self.stretch = self.stretch, Stretch()
        self.stale = True
        return ended

    def _update_stretch(self) -> None:
        """Include the present totals; maxima of commits are included as they happen."""
        self.stale = False
        stretch = self.stretch
        committed, reserved, sequences = self.committed, self.reserved, self.sequences
        stretch.committed_min = min(stretch.committed_min, committed)
        stretch.committed_max = max(stretch.committed_max, committed)
        stretch.reserved_min = min(stretch.reserved_min, reserved)
        stretch.reserved_max = max(stretch.reserved_max, reserved)
        stretch.sequences_min = min(stretch.sequences_min, sequences)
        stretch.sequences_max = max(stretch.sequences_max, sequences)

    def breach(self) -> CheckFailedError:
        """Return the error for totals that contradict each other."""
        return CheckFailedError(
            f"the totals contradict each other at {self.now} ns: {self.owned} bytes owned, "
            f"{self.committed} committed, {self.pooled} pooled, {self.reserved} reserved, "
            f"{self.budget} allowed",
            hint="this is a bug in vmtool; please report it with the command line",
        )

    # ---- operations -------------------------------------------------------------------------

    def fits(self, nbytes: int) -> bool:
        """Return whether *nbytes* more can be committed; pooled memory is used for them first."""
        return self.committed + nbytes <= self.budget

    def reserve(self, arena: int, nbytes: int, holder: Holder) -> None:
        """Reserve *nbytes* of addresses as *arena* for *holder*."""
        if self.memory is not None:
            self.memory.reserve(arena, nbytes, holder)
        reserved = self.reserved = self.reserved + nbytes
        self.reserved_moment += nbytes * self.now
        self.peak_reserved = max(self.peak_reserved, reserved)
        self.stretch.reserved_max = max(self.stretch.reserved_max, reserved)

    def unreserve(self, arena: int, nbytes: int) -> None:
        """Unreserve the *nbytes* of *arena*."""
        if self.memory is not None:
            self.memory.unreserve(arena)
        self.reserved -= nbytes
        self.reserved_moment -= nbytes * self.now
        self.stale = True

    def map_shared(self, arena: int, source: int, places: Sequence[Place]) -> None:
        """Map what is committed in *source* into *arena* as well; that commits nothing."""
        if self.memory is not None:
            self.memory.map_shared(arena, source, places)

    def unmap_shared(self, arena: int) -> None:
        """Unmap everything that :meth:`map_shared` mapped into *arena*."""
        if self.memory is not None:
            self.memory.unmap_shared(arena)

    def commit(
        self, arena: int, nbytes: int, calls: int, spans: Iterable[Piece], slack_ns: int | None
    ) -> None:
        """Commit *nbytes* in *calls* spans, from the pool as far as it goes.

        Args:
            arena: The reservation.
            nbytes: Their bytes.
            calls: How many there are.
            spans: Where they are; read only if memory is real.
            slack_ns: Time until the decode step needs them; ``None`` at an admission.
        """
        if self.memory is not None:
            self.memory.commit(arena, list(spans), slack_ns)
        if self.pooled:
            reused = min(self.pooled, nbytes)
            self._change_pooled(-reused)
            self.reused_bytes += reused
        committed = self.committed = self.committed + nbytes
        self.committed_moment += nbytes * self.now
        self.commits += calls
        self.commit_bytes += nbytes
        if committed > self.stretch.committed_max:
            self.stretch.committed_max = committed
            if committed > self.peak_committed:
                self.peak_committed, self.peak_at = committed, self.now
        self.peak_charged = max(self.peak_charged, committed + self.pooled)

    def release(self, arena: int, nbytes: int, calls: int, spans: Iterable[Piece]) -> None:
        """Release *nbytes* in *calls* spans; the pool keeps what it may."""
        if self.memory is not None:
            self.memory.release(arena, list(spans))
        self.committed -= nbytes
        self.committed_moment -= nbytes * self.now
        self.stale = True
        self.releases += calls
        self.release_bytes += nbytes
        if self.retain:
            self._change_pooled(min(nbytes, self.retain - self.pooled))
            self.peak_pooled = max(self.peak_pooled, self.pooled)

    def trim(self) -> None:
        """Free what the pool keeps."""
        if self.memory is not None:
            self.memory.trim()
        self._change_pooled(-self.pooled)

    def _change_pooled(self, by: int) -> None:
        self.pooled += by
        self.pooled_moment += by * self.now

    # ---- whose it is ------------------------------------------------------------------------

    def own(self, nbytes: int) -> None:
        """Count *nbytes* more of committed memory as owned; negative for less."""
        self.owned += nbytes
        self.owned_moment += nbytes * self.now

    def enter(self) -> None:
        """Count one more sequence."""
        sequences = self.sequences = self.sequences + 1
        self.sequences_moment += self.now
        self.peak_sequences = max(self.peak_sequences, sequences)
        self.stretch.sequences_max = max(self.stretch.sequences_max, sequences)

    def leave(self) -> None:
        """Count one sequence less."""
        self.sequences -= 1
        self.sequences_moment -= self.now
        self.stale = True

    def share(self, nbytes: int, live: int) -> None:
        """Count one more user of *nbytes*, of which *live* are tokens, that others use too."""
        if not nbytes:
            return
        self._change_saved(nbytes, live)
        self.saved_total += nbytes
        self.peak_saved = max(self.peak_saved, self.saved)

    def unshare(self, nbytes: int, live: int) -> None:
        """Count one user less."""
        if nbytes:
            self._change_saved(-nbytes, -live)

    def _change_saved(self, nbytes: int, live: int) -> None:
        self.saved += nbytes
        self.saved_moment += nbytes * self.now
        self.overlap += live
        self.overlap_moment += live * self.now

    def keep(self, nbytes: int) -> None:
        """Count *nbytes* more as kept: of a prefix that no sequence uses; negative for less."""
        kept = self.kept = self.kept + nbytes
        self.kept_moment += nbytes * self.now
        self.peak_kept = max(self.peak_kept, kept)

    def evict(self, nbytes: int) -> None:
        """Count *nbytes* that were kept without an owner."""
        self.keep(-nbytes)
        self.kept_evicted += nbytes
        self.own(-nbytes)

    # ---- checks -----------------------------------------------------------------------------

    def verify(self) -> None:
        """Compare real memory, where there is any, with the totals.

        Raises:
            CheckFailedError: If they differ.
        """
        if self.memory is not None:
            self.memory.check(self.committed, self.pooled)

    def check_empty(self) -> None:
        """Check that everything is released.

        Raises:
            CheckFailedError: If it is not.
        """
        left = (self.committed, self.pooled, self.owned, self.sequences, self.saved, self.overlap)
        if any((*left, self.reserved, self.kept)) or self.commit_bytes != self.release_bytes:
            raise self.breach()
