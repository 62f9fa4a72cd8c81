"""The parser of ``--inject``: a call, a number and an effect become a fault.

Apart from :mod:`vmtool.memory.injected_faults`, because this knows the error names of every platform and
driver, and they know faults.
"""

from __future__ import annotations

import errno
import re
import signal
import sys
from typing import Final

from vmtool.errors import UsageError
from vmtool.memory.injected_faults import Fault
from vmtool.memory.windows.diagnosis import code_of, symbol_of

_SPEC: Final = re.compile(r"([a-zA-Z]\w*):([1-9][0-9]{0,8})(\+?)(?:=(\w+))?", re.ASCII)
#: The driver's calls, which fail with a CUresult on every platform.
_OF_THE_DRIVER: Final = re.compile(r"cu[A-Z]\w*", re.ASCII)
_DEFAULT_CUDA_EFFECT: Final = "CUDA_ERROR_OUT_OF_MEMORY"
_DEFAULT_EFFECT: Final = "ERROR_COMMITMENT_LIMIT" if sys.platform == "win32" else "ENOMEM"
_HINT: Final = (
    "write CALL:N or CALL:N=EFFECT, such as VirtualAlloc2:3, MapViewOfFile3:10=1455, "
    "VirtualFree:5+=ERROR_INVALID_ADDRESS, VirtualFree:20=SKIP, VirtualFree:7=HANG or "
    "cuMemMap:3=CUDA_ERROR_OUT_OF_MEMORY"
    if sys.platform == "win32"
    else "write CALL:N or CALL:N=EFFECT, such as mmap:3, madvise:10=EAGAIN, mprotect:5+=ENOMEM, "
    "madvise:20=SKIP, mmap:7=SIGKILL, mmap:7=HANG or cuMemMap:3=CUDA_ERROR_OUT_OF_MEMORY"
)


def parse_fault(text: str) -> Fault:
    """Return the fault that ``CALL:N[+][=EFFECT]`` describes; by default memory runs out.

    Raises:
        UsageError: If *text* is something else.
    """
    match = _SPEC.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a fault to inject", hint=_HINT)
    call, nth, onwards, effect = match.groups()
    of_driver = _OF_THE_DRIVER.fullmatch(call) is not None
    effect = (effect or (_DEFAULT_CUDA_EFFECT if of_driver else _DEFAULT_EFFECT)).upper()
    if effect not in {"SKIP", "HANG"} and effect not in signal.Signals.__members__:
        symbol = _result_name(effect) if of_driver else _error_name(effect)
        if symbol is None:
            raise UsageError(
                f"{effect!r} in {text!r} is not an error, a signal, SKIP or HANG", hint=_HINT
            )
        effect = symbol
    return Fault(call, int(nth), bool(onwards), effect)


def _error_name(effect: str) -> str | None:
    """Return the name of the platform's error that *effect* names or numbers, if there is one."""
    if sys.platform == "win32":
        name = symbol_of(int(effect)) if effect.isdigit() else effect
        return name if code_of(name) else None
    else:
        if effect.isdigit():
            return errno.errorcode.get(int(effect))
        return effect if effect in errno.errorcode.values() else None


def _result_name(effect: str) -> str | None:
    from vmtool.memory.cuda.driver import result_name

    return result_name(effect)
