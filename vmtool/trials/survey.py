"""What each kind of memory on this machine can do, or why it is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.errors import UnavailableError, VmtoolError
from vmtool.memory import describe_device, open_backing
from vmtool.memory.ceiling import Ceiling, largest_reservation
from vmtool.memory.governor import Tier
from vmtool.memory.proof import Proof, prove_granularity

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.memory.backing import Granularity, VirtualBacking
    from vmtool.memory.cuda.allocations import AllocationGranularity
    from vmtool.memory.cuda.devices import DeviceInfo

#: Enough for the exact answer where addresses have 48 bits and the granule is 4 KiB.
_TRIES: Final = 64
#: Drivers may take hundreds of milliseconds to give a large range back: within 1 % is enough.
_DEVICE_TRIES: Final = 24


@dataclass(frozen=True, slots=True)
class BackingSurvey:
    """One backing.

    Attributes:
        name: What the user calls it: ``host``, ``cuda:0``.
        absent: Why it can't be used; all below but ``hint`` and ``device`` is then unknown.
        hint: What to do about that.
        method: How it commits.
        granularity: Its units.
        ceiling: The largest single reservation.
        proofs: What was tried to prove the granularity, if asked for.
        device: What the driver says of the device, also where it can't be used; ``None`` for the host.
        free_bytes: The device's free memory, beside this process's own context.
        allocations: The granularity of each kind of allocation on the device.
    """

    name: str
    absent: str | None = None
    hint: str | None = None
    method: str | None = None
    granularity: Granularity | None = None
    ceiling: Ceiling | None = None
    proofs: tuple[Proof, ...] = ()
    device: DeviceInfo | None = None
    free_bytes: int | None = None
    allocations: tuple[AllocationGranularity, ...] = ()


def survey_all(
    *, prove: bool = False, announce: Callable[[str], None] = lambda _name: None
) -> tuple[BackingSurvey, ...]:
    """Survey the host and every CUDA device; without devices, one entry says why.

    A device that fails is reported as absent and does not hide the others.

    Args:
        prove: Also try the granularity.
        announce: Called with the name of each device before it is opened, which takes a while.
    """
    found = [survey("host", prove=prove)]
    try:
        from vmtool.memory.cuda.devices import devices

        names = [f"cuda:{info.ordinal}" for info in devices()]
    except VmtoolError as error:
        return (*found, BackingSurvey("cuda", absent=str(error), hint=error.hint))
    for name in names:
        announce(name)
        try:
            found.append(survey(name, prove=prove))
        except VmtoolError as error:
            found.append(_absent(name, error))
    return tuple(found)


def survey(name: str, *, prove: bool = False) -> BackingSurvey:
    """Survey one backing; one that this machine lacks is reported as absent.

    Args:
        name: ``host``, ``cuda`` or ``cuda:N``.
        prove: Also try the granularity.

    Raises:
        UsageError: If *name* is unknown.
        CallError: If the platform fails.
    """
    try:
        backing = open_backing(name)
    except UnavailableError as error:
        return _absent(name, error)
    return BackingSurvey(
        name=backing.name,
        method=backing.method,
        granularity=backing.units,
        ceiling=largest_reservation(
            backing, tries=_TRIES if backing.tier is Tier.HOST else _DEVICE_TRIES
        ),
        proofs=prove_granularity(backing) if prove else (),
        **_device(backing),
    )


def _absent(name: str, error: VmtoolError) -> BackingSurvey:
    """Return the survey of what cannot be used, with what its driver says: that takes no context."""
    try:
        info = describe_device(name)
    except VmtoolError:  # the driver itself is missing or fails: *error* says so
        info = None
    return BackingSurvey(name, absent=str(error), hint=error.hint, device=info)


def _device(backing: VirtualBacking) -> dict[str, Any]:
    """Return the fields that only a device has."""
    if backing.tier is not Tier.DEVICE:
        return {}
    from vmtool.memory.cuda.allocations import allocations
    from vmtool.memory.cuda.devices import device, free_bytes

    info = device(int(backing.name.partition(":")[2]))
    return {
        "device": info,
        "free_bytes": free_bytes(info.ordinal),
        "allocations": allocations(info),
    }
