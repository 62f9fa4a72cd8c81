"""The limits of control groups: what each level allows, and the pressure on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """How long tasks waited for memory, in percent of the last 10 s (Linux's PSI).

    Attributes:
        some_percent: At least one task waited.
        full_percent: All tasks waited.
    """

    some_percent: float
    full_percent: float


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """One control group on the way from this process to the root.

    Attributes:
        path: Its directory.
        version: 1 or 2.
        limit_bytes: ``memory.max`` (v1: ``memory.limit_in_bytes``); ``None`` is unlimited.
        high_bytes: ``memory.high``, above which v2 throttles; ``None`` is unlimited.
        used_bytes: Memory charged to it and to the groups below it.
        cache_bytes: File cache in that, without shared memory and tmpfs.
        reclaimable_bytes: The part of the cache that the kernel drops first: neither dirty, nor
            being written back, nor mapped, nor locked.
        oom_kills: Processes in it (version 2: or below it) that the OOM killer ended, for whatever
            limit; which one it was shows in *limit_hits*.
        oom_killer_off: Whether tasks in it wait at the limit, and are not killed (version 1).
        under_oom: Whether they wait now, at this group's limit or at that of one above it.
        limit_hits: How often it was at the limit, and had to reclaim (``max`` of
            ``memory.events.local``; without that file, also for groups below it).
        high_hits: How often it was above high, and was throttled (``high`` there).
        pressure: How long its tasks waited for memory; ``None`` where the kernel does not count it.
    """

    path: str
    version: int
    limit_bytes: int | None = None
    high_bytes: int | None = None
    used_bytes: int | None = None
    reclaimable_bytes: int = 0
    oom_kills: int | None = None
    cache_bytes: int | None = None
    limit_hits: int | None = None
    high_hits: int | None = None
    pressure: MemoryPressure | None = None
    oom_killer_off: bool = False
    under_oom: bool = False

    @property
    def throttles(self) -> bool:
        """Whether the bound is high, above which tasks are slowed down and never killed."""
        return (
            self.high_bytes is not None and self.bound_bytes == self.high_bytes != self.limit_bytes
        )

    @property
    def bound_bytes(self) -> int | None:
        """The lower of limit and high; ``None`` is unlimited."""
        bounds = [b for b in (self.limit_bytes, self.high_bytes) if b is not None]
        return min(bounds, default=None)

    @property
    def available_bytes(self) -> int | None:
        """What can still be charged before the bound; ``None`` is unlimited."""
        if self.bound_bytes is None:
            return None
        hard = max((self.used_bytes or 0) - self.reclaimable_bytes, 0)
        return max(self.bound_bytes - hard, 0)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The tightest limit of one thing in the control groups that this process is in.

    Attributes:
        path: The directory of the group.
        limit: The limit: of tasks, or in bytes.
        used: What is used of it.
        page_bytes: For reserved huge pages, their size.
    """

    path: str
    limit: int
    used: int
    page_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupFacts:
    """The limits of every control group that this process is in.

    Attributes:
        levels: Memory, from the process's own group up to the root; both versions on hybrid systems.
        tasks: Processes and threads (``pids.max``); ``None`` is unlimited.
        huge_pages: Reserved huge pages (``hugetlb``), by size; a page above it is SIGBUS.
    """

    levels: tuple[CgroupLevel, ...] = ()
    tasks: GroupLimit | None = None
    huge_pages: tuple[GroupLimit, ...] = ()

    @property
    def tightest(self) -> CgroupLevel | None:
        """The level that leaves least, or ``None`` if no level is limited."""
        limited = [level for level in self.levels if level.available_bytes is not None]
        return min(limited, key=lambda level: level.available_bytes or 0, default=None)

    @property
    def available_bytes(self) -> int | None:
        """What the tightest level leaves; ``None`` is unlimited."""
        return None if self.tightest is None else self.tightest.available_bytes
