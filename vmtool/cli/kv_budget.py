"""What ``--budget``, ``--weights`` and ``--reserve`` mean on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from vmtool.errors import UnavailableError, UsageError
from vmtool.units import parse_percent, parse_size

if TYPE_CHECKING:
    from vmtool.kv.estimate import Budget


#: The origin of a budget that does not depend on this machine.
GIVEN: Final = "as given"


def read_budget(text: str, *, weights: str | None, reserve: int, ranks: int) -> Budget:
    """Return the budget of one rank.

    Args:
        text: A size; ``auto`` for the memory that this machine has available under every limit;
            a part of that, such as ``75%``; or ``cuda:N`` for a device's free memory.
        weights: A size, or a path that `vmtool.kv.weights.weights_bytes` takes; weights read from
            files are divided evenly among the ranks.
        reserve: Bytes for everything else.
        ranks: Ranks that divide the model.

    Raises:
        UsageError: If *text* or *weights* is none of these.
        UnavailableError: If this machine does not tell, or has no such device.
    """
    from vmtool.kv.estimate import Budget

    total, origin = _total(text)
    return Budget(total, origin, _weights(weights, ranks), reserve)


def _total(text: str) -> tuple[int, str]:
    name = text.strip().lower()
    if name == "cuda" or name.startswith("cuda:"):
        return _device_free(name)
    if name == "auto":
        return _available(), "available on this machine"
    if name.endswith("%"):
        try:
            part = parse_percent(name)
        except ValueError as error:
            raise UsageError(f"--budget: {error}") from None
        if not 0 < part <= 1:
            raise UsageError(f"--budget {text!r} must be above 0% and at most 100%")
        return int(_available() * part), f"{name} of what is available on this machine"
    try:
        total = parse_size(text, exact=False)
    except ValueError as error:
        raise UsageError(
            f"--budget: {error}", hint="give a size, a percentage, auto or cuda:0"
        ) from None
    if not total:
        raise UsageError("--budget: it must be more than 0")
    return total, GIVEN


def _available() -> int:
    from vmtool.machine import read_facts

    available = read_facts().available_bytes
    if available is None:
        raise UnavailableError(
            "this machine does not tell how much memory is available", hint="give --budget a size"
        )
    return available


def _device_free(name: str) -> tuple[int, str]:
    from vmtool.cli.params import BACKING
    from vmtool.memory import device_ordinal
    from vmtool.memory.cuda.context import DeviceContext

    name = BACKING.convert(name, None, None)
    context = DeviceContext(device_ordinal(name) or 0)
    try:
        return context.free_and_total_bytes()[0], f"free on {name}, {context.info.name}"
    finally:
        context.close()


def _weights(text: str | None, ranks: int) -> int:
    if text is None:
        return 0
    if os.path.lexists(text):
        from vmtool.kv.weights import weights_bytes

        return -(-weights_bytes(text) // ranks)
    try:
        return parse_size(text, exact=False)
    except ValueError as error:
        raise UsageError(f"--weights: {error}", hint="or give the path of the weights") from None
