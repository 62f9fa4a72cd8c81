"""What a document of any command says about its machine: facts, and numbers run by run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.units import GIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Numbers are measures if their names end so.
_UNITS: Final = ("_ns", "_per_s", "_bytes", "per_cycle")
#: Of a summary, only these: the others follow from them or are single samples.
_SUMMARY: Final = frozenset({"median_ns", "p99_ns"})
#: What names an element of a list.
_NAMES: Final = ("name", "method", "phase", "operation", "call", "counter", "ledger", "kind")
#: Keys with nothing to compare: samples, addresses, what was asked for, what differs by nature.
_SKIPPED: Final = frozenset(
    {
        *("schema", "version", "vmtool", "command", "machine", "settings", "conditions", "device"),
        *("histogram", "round_medians_ns", "checkpoints", "timeline", "base_addresses", "samples"),
        *("checks", "verdicts", "accidents", "failures", "warnings", "areas", "reservations"),
        *("wall_ns", "overhead_ns", "resident_before_bytes", "resident_after_bytes", "order"),
        *("total_bytes", "trace", "index", "findings", "processes", "steps", "base"),
    }
)
#: What a document has of all runs together although it has it of each run.
_OF_RUNS: Final = frozenset({"methods", "scaling", "runs"})
#: Facts that change from moment to moment, or that no two machines share.
_VOLATILE: Final = frozenset(
    {
        *("available_bytes", "swap_free_bytes", "free_bytes", "free", "used_bytes", "used"),
        *("oom_kills", "arc_bytes", "some_percent", "full_percent", "charge_bytes", "mappings"),
        *("reclaimable_bytes", "cache_bytes", "limit_hits", "high_hits", "address_space_bytes"),
        *("data_bytes", "descriptors_used", "tasks_used", "path", "load_average", "idle_share"),
        *("uptime_s", "started", "host", "label", "seed", "uuid", "pci_bus_id"),
    }
)
#: Totals of memory differ by a few MiB between machines that are alike.
_ROUNDED: Final = ("total_bytes", "commit.limit_bytes")


@dataclass(frozen=True, slots=True)
class MachineReading:
    """What one document says.

    Attributes:
        host: The machine: as the document says, else as the file is called.
        source: The file or worker that the document came from.
        kind: Its schema, such as ``vmtool.stress``.
        version: The version of vmtool that wrote it.
        facts: Facts of the machine and settings, by path.
        runs: The measures of each run, by path.
        failed: Checks that failed, and the outcome if the command did not complete.
    """

    host: str
    source: str
    kind: str
    version: str
    facts: Mapping[str, str]
    runs: tuple[Mapping[str, float], ...]
    failed: tuple[str, ...] = ()


def read_document(document: Mapping[str, Any], host: str, source: str) -> MachineReading:
    """Return what *document* says.

    Args:
        document: The JSON object.
        host: The machine, if the document does not say it.
        source: Where it came from.

    Raises:
        ValueError: If it is not a document of vmtool with facts of a machine.
    """
    kind = document.get("schema")
    if not isinstance(kind, str) or not kind.startswith("vmtool."):
        raise ValueError("is not a result of vmtool")
    machine = document.get("machine")
    if not isinstance(machine, Mapping):
        raise ValueError(f"is a {kind} without facts about a machine")  # noqa: TRY004 - of data
    conditions = document.get("conditions")
    if isinstance(conditions, Mapping) and isinstance(conditions.get("host"), str):
        host = str(conditions["host"])
    prefix = ".".join([kind.removeprefix("vmtool."), *_plan(document.get("settings"))])
    runs = document.get("runs")
    if isinstance(runs, list) and runs:
        found = tuple(dict(_measures(run, prefix)) for run in runs if isinstance(run, Mapping))
        # What is of all runs together, such as leak slopes, is known once.
        of_all = {key: value for key, value in document.items() if key not in _OF_RUNS}
        found = (*found, dict(_measures(of_all, prefix)))
    else:
        found = (dict(_measures(document, prefix)),)
    return MachineReading(
        host,
        source,
        kind,
        str(document.get("vmtool")),
        dict(_facts(document)),
        found,
        tuple(_failed(document)),
    )


def _failed(document: Mapping[str, Any]) -> Iterator[str]:
    outcome = document.get("outcome")
    if isinstance(outcome, str) and outcome not in {"complete", "passed"}:
        yield f"outcome {outcome}"
    checks = document.get("checks")
    for check in checks if isinstance(checks, list) else ():
        if isinstance(check, Mapping) and check.get("outcome") == "failed":
            yield str(check.get("name"))


def _plan(settings: Any) -> Iterator[str]:
    """Yield what makes measures comparable: where, and in what unit."""
    if isinstance(settings, Mapping):
        backing, granule = settings.get("backing"), settings.get("granule_bytes")
        if isinstance(backing, str):
            yield backing.partition(":")[0]
        if isinstance(granule, int):
            yield format_size(granule).replace(" ", "")


def _measures(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in _SKIPPED or key == "runs":
                continue
            if key == "summary" and isinstance(item, Mapping):
                for name in _SUMMARY:
                    if isinstance(item.get(name), (int, float)):
                        yield f"{path}.{name}", float(item[name])
            elif isinstance(item, (int, float)):
                if key.endswith(_UNITS) and not isinstance(item, bool):
                    yield f"{path}.{key}", float(item)
            elif isinstance(item, (Mapping, list)):
                # Lists are named by their elements.
                yield from _measures(item, path if isinstance(item, list) else f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                names = (item.get(key) for key in _NAMES)
                named = [each for each in names if isinstance(each, str)]
                if named:
                    yield from _measures(item, f"{path}.{named[0]}")


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "vmtool", str(document.get("vmtool"))
    yield from _flat(document["machine"], "")
    for name in ("conditions", "settings"):
        if isinstance(document.get(name), Mapping):
            yield from _flat(document[name], "" if name == "conditions" else name)
    if isinstance(document.get("device"), str):
        yield "device", document["device"]


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _VOLATILE:
                yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            size = item.get("page_bytes") if isinstance(item, Mapping) else None
            yield from _flat(item, f"{path}.{at if size is None else size}")
    elif path.endswith(_ROUNDED) and isinstance(value, int):
        yield path, f"{round(value / GIB)} GiB"
    elif value is not None:
        yield path, str(value)
