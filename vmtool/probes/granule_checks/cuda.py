"""How a CUDA driver itself responds to sizes that are not multiples of its granularity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.memory.cuda.errors_and_diagnosis import INVALID_VALUE, CudaError
from vmtool.probes.granule_checks import attempt_check

if TYPE_CHECKING:
    from vmtool.memory.cuda.backing import CudaBacking
    from vmtool.results.check_outcomes import Check


def ask_driver(backing: CudaBacking) -> tuple[Check, ...]:
    """Create handles of m, m/2 and m + 1 bytes, where m is the driver's minimum granularity.

    One handle of m bytes exists at a time, for a moment.

    Raises:
        CudaError: What is no answer to the size: any code but CUDA_ERROR_INVALID_VALUE.
    """
    minimum = backing.units.reserve_bytes
    return (
        _create(backing, minimum, "m", legal=True),
        _create(backing, minimum // 2, "m/2", legal=False),
        _create(backing, minimum + 1, "m+1", legal=False),
    )


def _create(backing: CudaBacking, nbytes: int, what: str, *, legal: bool) -> Check:
    attempt = f"cuMemCreate {what} ({nbytes} bytes)"
    call = backing.context.call
    try:
        handle = call("cuMemCreate", nbytes, backing.properties, 0)
    except CudaError as error:
        if error.code != INVALID_VALUE:
            raise
        return attempt_check("driver", attempt, False, f"{error.symbol} ({error.code})", not legal)
    call("cuMemRelease", handle)
    return attempt_check("driver", attempt, True, "done", legal)
