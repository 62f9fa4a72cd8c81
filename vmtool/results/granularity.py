"""The result of ``vmtool granularity``: what each backing can map and share, and in what unit."""

from __future__ import annotations

from dataclasses import dataclass

from vmtool.machine.device_facts import DeviceFacts  # noqa: TC001
from vmtool.machine.facts import MachineFacts  # noqa: TC001
from vmtool.machine.nvml import DeviceProcess  # noqa: TC001
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001
from vmtool.memory.backing import Granularity  # noqa: TC001
from vmtool.results.check_outcomes import Check  # noqa: TC001


@dataclass(frozen=True, slots=True)
class AllocationGranularity:
    """One kind of physical memory of a device.

    Attributes:
        location: ``device``, or ``host NUMA node N``.
        handle: What its handles can be exported as: ``none``, ``posix-fd`` or ``fabric``.
        flag: ``compressible``, ``rdma`` or ``None``.
        supported: What the device's attributes say; ``None`` if they do not.
        minimum_bytes: The unit of sizes and addresses; ``None`` if unknown.
        recommended_bytes: The size with the best performance; ``None`` if unknown.
        refusal: The driver's error in place of a granularity.
    """

    location: str
    handle: str
    flag: str | None
    supported: bool | None
    minimum_bytes: int | None
    recommended_bytes: int | None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class LargestReservation:
    """The largest single reservation that was found.

    Attributes:
        works_bytes: The largest size that succeeded; 0 if none did.
        refused_bytes: The smallest size that was refused; ``None`` if none was.
        tries: How many reservations were tried.
        error: The error at the smallest refused size.
    """

    works_bytes: int
    refused_bytes: int | None
    tries: int
    error: str | None


@dataclass(frozen=True, slots=True)
class HandleTrial:
    """One handle of one kind, created and exported for a moment.

    Attributes:
        handle: ``none``, ``posix-fd`` or ``fabric``.
        created: Whether ``cuMemCreate`` gave one.
        exported: Whether it could be exported; ``None`` where that was not tried.
        refusal: The symbol of the call that failed; ``None`` if none did.
        cause: What that means, where it is known.
    """

    handle: str
    created: bool
    exported: bool | None
    refusal: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class SharingTrial:
    """One piece of memory, exported by one process and used by another.

    Attributes:
        seen: Whether the importer read what the exporter had written.
        written_back: Whether the exporter read what the importer had written.
        outlives_exporter: Whether the importer still read it when the exporter was gone.
        descriptors: File descriptors that one imported handle keeps open; ``None`` if not available.
        steps_ns: What each step took: ``create`` and ``export`` on one side, ``import``, ``map``,
            ``access``, ``unmap`` and ``release`` on the other.
        error: Why it is not available; ``None`` if it is.
    """

    seen: bool | None = None
    written_back: bool | None = None
    outlives_exporter: bool | None = None
    descriptors: int | None = None
    steps_ns: dict[str, int] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PeerTrial:
    """Memory of one device made accessible to another.

    Attributes:
        owner: The device whose memory it is.
        peer: The device that reads it.
        offered: What ``cuDeviceCanAccessPeer`` answers; ``None`` if the driver lacks it.
        granted: Whether ``cuMemSetAccess`` took both; ``None`` if it was not tried.
        seen: Whether the peer read what was written; ``None`` if it had no access.
        alone_ns: Median of ``cuMemSetAccess`` for the owner alone.
        together_ns: Its median for both; the difference is what a peer costs.
        refusal: The symbol of the refusal.
    """

    owner: int
    peer: int
    offered: bool | None
    granted: bool | None = None
    seen: bool | None = None
    alone_ns: int | None = None
    together_ns: int | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class BackingGranularity:
    """One backing.

    Attributes:
        name: What the user calls it: ``host``, ``cuda:0``.
        absent: Why it can't be used; all below but ``hint`` and ``device`` is then unknown.
        hint: What to do about that.
        method: Its commit method.
        granularity: The units in which it reserves and commits.
        largest_reservation: The largest single reservation.
        checks: What ``--prove`` tried: the attempt, with ``who`` answered it (``vmtool``, ``kernel``
            or another platform), whether it was ``accepted``, and the ``answer``.
        device: The driver's description of the device, also where it can't be used; ``None`` for
            the host.
        free_bytes: The device's free memory, with this process's own context in place.
        allocations: The granularity of each kind of allocation on the device.
        handles: What ``--prove`` found of each kind of handle, created and exported for a moment.
        sharing: What ``--prove`` found of sharing memory between two processes.
        used_by: Other processes with a context on the device, which vmtool then made none on: no
            reservation was tried; ``None`` if not available.
        error: What ended it early, such as a lost device; what it would have found is then unknown.
    """

    name: str
    absent: str | None = None
    hint: str | None = None
    method: str | None = None
    granularity: Granularity | None = None
    largest_reservation: LargestReservation | None = None
    checks: tuple[Check, ...] = ()
    device: DeviceFacts | None = None
    free_bytes: int | None = None
    allocations: tuple[AllocationGranularity, ...] = ()
    handles: tuple[HandleTrial, ...] = ()
    sharing: SharingTrial | None = None
    used_by: tuple[DeviceProcess, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TokensPerGranule:
    """How many tokens of one KV tensor fit into one granule.

    Attributes:
        tensor: The tensor's name.
        bytes_per_token: Its size per token.
        granule_bytes: The granule.
        tokens: Whole tokens in one granule; 0 if a token is larger.
        spare_bytes: What is left of the granule after those.
    """

    tensor: str
    bytes_per_token: int
    granule_bytes: int
    tokens: int
    spare_bytes: int


@dataclass(frozen=True, slots=True)
class GranularityResult:
    """What this machine can map.

    Attributes:
        machine: The facts of the machine.
        available_bytes: What this process can still commit; ``None`` where it is unknown.
        safe_bytes: What it can commit without endangering the machine.
        limiting_bound: The limit that ``safe_bytes`` comes from: the kind of a finding of
            ``vmtool doctor``.
        commit_headroom_bytes: What the commit limit leaves, negative when it is exceeded.
        backings: The host and every device.
        tokens_per_granule: For each KV tensor and each granule: those of this
            machine, and those in common use.
        peers: What ``--prove`` found of each pair of devices.
        shared_granularity_bytes: The greatest granularity of all devices, which memory that several
            of them reach has; ``None`` with fewer than two.
    """

    machine: MachineFacts
    available_bytes: int | None
    safe_bytes: int
    limiting_bound: str
    commit_headroom_bytes: int | None
    backings: tuple[BackingGranularity, ...]
    tokens_per_granule: tuple[TokensPerGranule, ...]
    peers: tuple[PeerTrial, ...] = ()
    shared_granularity_bytes: int | None = None
    conditions: RunConditions | None = None
