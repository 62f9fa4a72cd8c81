"""Checks that the granule is what the platform reports: shorter and shifted calls must fail."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vmtool.errors import CallError, VmtoolError
from vmtool.memory.cuda.errors_and_diagnosis import INVALID_VALUE, CudaError
from vmtool.memory.errors import MisalignedError, QuarantineError, Unwinding
from vmtool.memory.governor import Tier
from vmtool.probes.granule_checks import attempt_check

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.memory.backing import VirtualBacking
    from vmtool.memory.reservation import Reservation
    from vmtool.results.check_outcomes import Check


def prove_granularity(backing: VirtualBacking) -> tuple[Check, ...]:
    """Commit and release at g, g/2 and g + 1, through vmtool and directly, and return what happened.

    At most two granules are committed, in a reservation of its own that is given back.

    Raises:
        CallError: If the reservation is refused, or a device's driver fails: only "invalid value" is
            an answer to the size.
    """
    granule = backing.granularity
    reservation = backing.reserve(4 * granule)
    with Unwinding() as stack:
        stack.undo(backing.unreserve, reservation)
        return (*_ask_vmtool(backing, reservation), *_ask_platform(backing, reservation))


def _ask_vmtool(backing: VirtualBacking, reservation: Reservation) -> list[Check]:
    g = backing.granularity

    def cycle(offset: int, nbytes: int) -> None:
        backing.commit(reservation, offset, nbytes)
        backing.release(reservation, offset, nbytes)

    def attempt(what: str, offset: int, nbytes: int, *, legal: bool) -> Check:
        accepted, answer, refused_for_granule = _try(lambda: cycle(offset, nbytes))
        return attempt_check(
            "vmtool", what, accepted, answer, accepted if legal else refused_for_granule
        )

    return [
        attempt("commit and release g at offset 0", 0, g, legal=True),
        attempt("commit and release g at offset g", g, g, legal=True),
        attempt("commit g at offset g/2", g // 2, g, legal=False),
        attempt("commit g at offset g+1", g + 1, g, legal=False),
        attempt("commit g/2 at offset 0", 0, g // 2, legal=False),
        attempt("commit g+1 at offset 0", 0, g + 1, legal=False),
    ]


def _try(action: Callable[[], None]) -> tuple[bool, str, bool]:
    """Return whether *action* was accepted, what was said, and whether it is the right refusal."""
    try:
        action()
    except MisalignedError as error:
        return False, f"{error}; {error.hint}", True
    except (CallError, VmtoolError) as error:
        lost = isinstance(error, QuarantineError)  # it is not known what was done
        if lost or (isinstance(error, CudaError) and error.code != INVALID_VALUE):
            raise
        return False, str(error), False
    return True, "done", False


def _ask_platform(backing: VirtualBacking, reservation: Reservation) -> tuple[Check, ...]:
    """Call the platform itself, where vmtool can."""
    if backing.tier is Tier.DEVICE:
        from vmtool.memory.cuda.backing import CudaBacking
        from vmtool.probes.granule_checks.cuda import ask_driver

        return ask_driver(backing) if isinstance(backing, CudaBacking) else ()
    if backing.name != "host":
        return ()
    if sys.platform == "win32":
        from vmtool.probes.granule_checks.windows import ask_windows

        return ask_windows(backing.method, reservation.base, backing.granularity)
    else:  # mypy needs both branches spelled out
        from vmtool.probes.granule_checks.posix import ask_kernel

        return ask_kernel(backing.method, reservation.base, backing.granularity)
