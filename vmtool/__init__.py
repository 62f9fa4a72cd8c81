"""Diagnose and benchmark virtually contiguous, physically scattered memory."""

from __future__ import annotations

# As typing has it; nothing is imported before what guards against a lack of memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vmtool.errors import CallError, RefusedError, UnavailableError, UsageError, VmtoolError
    from vmtool.kv.estimate import estimate
    from vmtool.kv.estimate_result import EstimateResult
    from vmtool.memory.backing_by_name import open_backing
    from vmtool.memory.buffer import VirtualBuffer
    from vmtool.memory.buffer_views import LiveViewError
    from vmtool.memory.errors import CapacityError

__version__ = "0.2.0"

__all__ = [
    "CallError",
    "CapacityError",
    "EstimateResult",
    "LiveViewError",
    "RefusedError",
    "UnavailableError",
    "UsageError",
    "VirtualBuffer",
    "VmtoolError",
    "__version__",
    "estimate",
    "open_backing",
]

#: Where the public names are; each is imported when it is first used, as the program needs none.
_PUBLIC = {
    "CallError": "vmtool.errors",
    "CapacityError": "vmtool.memory.errors",
    "EstimateResult": "vmtool.kv.estimate_result",
    "LiveViewError": "vmtool.memory.buffer_views",
    "RefusedError": "vmtool.errors",
    "UnavailableError": "vmtool.errors",
    "UsageError": "vmtool.errors",
    "VirtualBuffer": "vmtool.memory.buffer",
    "VmtoolError": "vmtool.errors",
    "estimate": "vmtool.kv.estimate",
    "open_backing": "vmtool.memory.backing_by_name",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vmtool' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as the names themselves

    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
