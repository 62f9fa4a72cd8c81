"""The machines of a fleet: what each one measured, and its facts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vmtool.results.fleet import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vmtool.fleet.machine_readings import MachineReading

#: Facts by which machines are alike unless others are named.
ALIKE: Final = ("system.cpu_model", "system.cpus", "memory.total_bytes", "device")
#: Amounts of memory are the same if they differ by this part: a kernel keeps some for itself.
_SAME_AMOUNT: Final = 0.02
#: Whatever else ends so, such as a name, is no amount.
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e\+[0-9]+)?) GiB")


@dataclass(slots=True)
class Machine:
    """One machine: what all its documents say.

    Attributes:
        host: Its name.
        facts: By path; of the last document that has it.
        runs: Of each measure, a value a run.
        named: Whether its documents say its name, and not their file.
    """

    host: str
    facts: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)
    named: bool = False

    def add(self, reading: MachineReading) -> None:
        """Add what a document says."""
        self.facts.update(reading.facts)
        self.named |= reading.named
        for run in reading.runs:
            for measure, value in run.items():
                self.runs.setdefault(measure, []).append(value)


@dataclass(slots=True)
class Fleet:
    """Machines by name, as documents come in.

    Attributes:
        machines: The machines.
        problems: Sources that gave no result.
        results: Documents that were added.
    """

    machines: dict[str, Machine] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    results: int = 0
    _texts: dict[str, str] = field(default_factory=dict)
    _ambiguous: set[str] = field(default_factory=set)
    _digests: set[tuple[str, int]] = field(default_factory=set)

    def add(self, found: MachineReading | Problem) -> None:
        """Add one document, or what is wrong with it; a copy of one is not added again."""
        if isinstance(found, Problem):
            self.problems.append(found)
            return
        if found.digest is not None:
            if (found.host, found.digest) in self._digests:
                text = f"is a copy of another result of {found.host}, and is left out"
                self.problems.append(Problem(found.source, "copy", text))
                return
            self._digests.add((found.host, found.digest))
        self.results += 1
        if found.failed:
            self.problems.append(
                Problem(found.host, "checks", f"failed: {', '.join(found.failed)}")
            )
        machine = self.machines.setdefault(found.host, Machine(found.host))
        differing = [
            name
            for name in ALIKE[:-1]  # of devices a machine may have several
            if name in machine.facts
            and name in found.facts
            and not same_amount(machine.facts[name], found.facts[name])
        ]
        if differing and found.host not in self._ambiguous:
            self._ambiguous.add(found.host)
            both = "; ".join(
                f"{name} {machine.facts[name]} and {found.facts[name]}" for name in differing
            )
            self.problems.append(
                Problem(
                    found.host,
                    "ambiguous",
                    f"may be several machines with the same name: {both}",
                )
            )
        machine.add(found)
        # Ten thousand machines have the same few facts: each text is kept once.
        texts = self._texts
        machine.facts = {
            texts.setdefault(name, name): texts.setdefault(value, value)
            for name, value in machine.facts.items()
        }
        machine.runs = {texts.setdefault(name, name): runs for name, runs in machine.runs.items()}


def same_amount(first: str, second: str) -> bool:
    """Return whether two values of a fact are the same, or amounts of memory that nearly are."""
    if first == second:
        return True
    amounts = [float(found[1]) for found in map(_AMOUNT.fullmatch, (first, second)) if found]
    return len(amounts) == 2 and max(amounts) <= min(amounts) * (1 + _SAME_AMOUNT)


def settle_amounts(machines: Sequence[Machine]) -> None:
    """Give amounts of memory that are nearly the same the most frequent text of them."""
    counts: dict[str, Counter[str]] = {}
    for machine in machines:
        for name, value in machine.facts.items():
            if _AMOUNT.fullmatch(value):
                counts.setdefault(name, Counter())[value] += 1
    for name, values in counts.items():
        common: dict[str, str] = {}
        known: dict[str, None] = {}
        for value, _ in sorted(values.items(), key=lambda item: (-item[1], item[0])):
            common[value] = next((each for each in known if same_amount(each, value)), value)
            known[common[value]] = None
        for machine in machines:
            if name in machine.facts:
                value = machine.facts[name]
                machine.facts[name] = common.get(value, value)
