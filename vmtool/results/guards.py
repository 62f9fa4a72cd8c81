"""What ``vmtool guards`` found: whether memory that is not committed faults."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decoding stored results reads the types
from dataclasses import dataclass, field
from typing import Any

from vmtool.machine.run_conditions import RunConditions  # noqa: TC001 - likewise
from vmtool.results.check_outcomes import Check  # noqa: TC001 - likewise


@dataclass(frozen=True, slots=True)
class GuardsResult:
    """The result of ``vmtool guards``.

    Attributes:
        checks: One for each write in a child process, ``guard.METHOD.CASE``; its values are
            *method*, *case* (``committed``, ``never`` or ``released``), *faulted*, *must_fault*,
            *written*, *signal* and *error*.
        complete: Whether all were tried; an interrupt leaves the rest out.
        passed: Whether all that were tried went as they had to.
        machine: Facts about the machine, as ``vmtool doctor`` shows them.
    """

    backing: str
    checks: tuple[Check, ...]
    complete: bool
    passed: bool
    conditions: RunConditions | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
