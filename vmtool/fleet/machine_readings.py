"""What a document of any command says about its machine: its facts, and the figures of each run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vmtool.results.stress import full_name
from vmtool.slopes import median_slope
from vmtool.units import GIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Numbers are measures if their names end so.
_UNITS: Final = ("_ns", "_per_s", "_bytes")
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
        # Chosen by the plan, or read elsewhere in this file.
        *("peak_committed_bytes", "slopes", "memory", "process", "trends"),
        *("interval_ns", "areas_read_ns", "areas_age_ns"),
    }
)
#: What a document has of all runs together although it has it of each run.
_OF_RUNS: Final = frozenset({"methods", "scaling", "runs"})
#: Checkpoints of one run that its leak slopes use: the pairs of more cost too much.
_SLOPE_POINTS: Final = 16
#: What ``inspect`` counts beside bytes.
_COUNTED: Final = ("areas", "threads", "descriptors")
#: Facts that change from moment to moment, or that no two machines share.
_VOLATILE: Final = frozenset(
    {
        *("available_bytes", "swap_free_bytes", "free_bytes", "free", "used_bytes", "used"),
        "available",
        *("oom_kills", "arc_bytes", "some_percent", "full_percent", "charge_bytes", "mappings"),
        *("reclaimable_bytes", "cache_bytes", "limit_hits", "high_hits", "address_space_bytes"),
        *("data_bytes", "descriptors_used", "tasks_used", "path", "load_average", "idle_share"),
        *("uptime_s", "started", "host", "label", "seed", "uuid", "pci", "binding_ns"),
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
        named: Whether the document says which machine it is of.
        digest: What copies of the document have in common, if it is known.
    """

    host: str
    source: str
    kind: str
    version: str
    facts: Mapping[str, str]
    runs: tuple[Mapping[str, float], ...]
    failed: tuple[str, ...] = ()
    named: bool = True
    digest: int | None = None


def read_document(document: Mapping[str, Any], host: str, source: str) -> MachineReading:
    """Return what *document* says.

    Args:
        document: As ``result_files.checked`` returns it.
        host: The machine, if the document does not say it.
        source: Where it came from.
    """
    kind = str(document["schema"])
    conditions = document.get("conditions") or {}
    named = bool(conditions.get("host"))
    host = conditions["host"] if named else host
    name = kind.removeprefix("vmtool.")
    runs = _runs(document, name)
    for part in _parts(document):
        runs += _runs(part, name)
    made = tuple(run for run in runs if run)
    facts, failed = dict(_facts(document)), tuple(_failed(document))
    vmtool = str(document.get("vmtool"))
    return MachineReading(host, source, kind, vmtool, facts, made, failed, named=named)


def _parts(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the runs of stress that ``check`` made, one for each kind of memory."""
    for part in _mappings(document.get("memory")):
        if isinstance(part.get("stress"), Mapping):
            yield part["stress"]


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))


def _runs(document: Mapping[str, Any], name: str) -> list[dict[str, float]]:
    """Return the measures of each run, and then those of all runs together, known once."""
    settings = document.get("settings")
    prefix = ".".join([name, *_plan(settings)])
    huge = isinstance(settings, Mapping) and settings.get("huge") is True
    if name == "inspect":
        return [dict(_process(document, prefix))]
    runs = list(_mappings(document.get("runs")))
    found = [dict(_measures(run, prefix, huge=huge)) for run in runs]
    slopes = _run_slopes(document, prefix)
    for run, made in zip(runs, found, strict=True):
        made.update(slopes.get(run.get("index"), {}))
    of_all = {key: value for key, value in document.items() if not (runs and key in _OF_RUNS)}
    once = dict(_measures(of_all, prefix, huge=huge))
    if not (runs and slopes):
        for slope in _mappings(document.get("slopes")):
            at, value = f"{prefix}.{slope.get('counter')}.per_cycle", slope.get("per_cycle")
            if isinstance(value, (int, float)):
                grown = slope.get("grown", 0) > slope.get("floor", 0)
                once[at] = max(once.get(at, 0.0), float(value) if grown else 0.0)
    return [*found, once]


def _process(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Yield what a process used at last, and how fast that grew."""
    process = document.get("process")
    if isinstance(process, Mapping):
        prefix = f"{prefix}.{process.get('name')}"
    samples = list(_mappings(document.get("samples")))
    for key, value in samples[-1].items() if samples else ():
        if isinstance(value, int) and (key.endswith("_bytes") or key in _COUNTED):
            yield f"{prefix}.{key}", float(value)
    for trend in _mappings(document.get("trends")):
        if isinstance(trend.get("per_second"), (int, float)):
            grown = float(trend["per_second"]) if trend.get("grows") else 0.0
            yield f"{prefix}.{trend.get('counter')}.per_s", grown


def _run_slopes(document: Mapping[str, Any], prefix: str) -> dict[Any, dict[str, float]]:
    """Return the leak slope of each counter in each run: that of the worker that grew fastest.

    Growth that stress never calls a leak, the heap of an interpreter that warms up, is 0.
    """
    slopes = _mappings(document.get("slopes"))
    floors = {str(slope.get("counter")): slope.get("floor", 0) for slope in slopes}
    series: dict[tuple[Any, Any, str], list[tuple[float, float]]] = {}
    for point in _mappings(document.get("checkpoints")):
        process, cycle = point.get("process"), point.get("cycle")
        if isinstance(process, Mapping) and isinstance(cycle, int):
            for counter in floors.keys() & process.keys():
                if isinstance(process[counter], int):
                    at = (point.get("run", 0), point.get("worker"), counter)
                    series.setdefault(at, []).append((cycle, process[counter]))
    found: dict[Any, dict[str, float]] = {}
    for (run, _, counter), points in series.items():
        if len(points) < 3:
            continue
        every = -(-len(points) // _SLOPE_POINTS)
        slope = median_slope([points[::every]])
        grown = slope * (points[-1][0] - points[0][0]) > floors[counter]
        name = f"{prefix}.{counter}.per_cycle"
        measures = found.setdefault(run, {})
        measures[name] = max(measures.get(name, 0.0), slope if grown else 0.0)
    return found


def _failed(document: Mapping[str, Any]) -> Iterator[str]:
    outcome = document.get("outcome")
    if isinstance(outcome, str) and outcome not in {"complete", "passed"}:
        yield f"outcome {outcome}"
    if document.get("complete") is False:
        yield "incomplete"
    places = [document, *_mappings(document.get("memory")), *_mappings(document.get("backings"))]
    for place in places:
        for check in _mappings(place.get("checks")):
            if check.get("outcome") == "failed":
                yield str(check.get("name"))
    for finding in _mappings(document.get("findings")) if "passed" in document else ():
        if finding.get("rating") == "problem":
            yield str(finding.get("kind"))


def _plan(settings: Any) -> Iterator[str]:
    """Yield what makes measures comparable: where, and in what unit."""
    if isinstance(settings, Mapping):
        backing, granule = settings.get("backing"), settings.get("granule_bytes")
        if isinstance(backing, str):
            yield backing.partition(":")[0]
        if isinstance(granule, int):
            yield format_size(granule).replace(" ", "")


def _measures(value: Any, path: str, *, huge: bool) -> Iterator[tuple[str, float]]:
    """Yield each measure in *value*, which is at *path*, of a run with ``--huge`` or without."""
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
                elif key == "reached" and value.get("outcome") == "found":  # of ``limits``
                    unit = "" if ".mappings." in path else "_bytes"
                    yield f"{path}.reached{unit}", float(item)
            elif isinstance(item, (Mapping, list)):
                # Lists are named by their elements.
                at = path if isinstance(item, list) else f"{path}.{key}"
                yield from _measures(item, at, huge=huge)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                key = next((key for key in _NAMES if isinstance(item.get(key), str)), None)
                if key is not None:
                    name = full_name(item[key], huge=huge) if key == "method" else item[key]
                    yield from _measures(item, f"{path}.{name}", huge=huge)


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "vmtool", str(document.get("vmtool"))
    yield from _flat(document["machine"], "")
    for name in ("conditions", "settings"):
        if isinstance(document.get(name), Mapping):
            yield from _flat(document[name], "" if name == "conditions" else name)
    for place in (
        *_mappings(document.get("memory")),
        *_mappings(document.get("backings")),
        document,
    ):
        if isinstance(place.get("device"), str):
            yield "device", place["device"]


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _VOLATILE and (path, key) != ("system", "vmtool"):  # said already
                yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            size = item.get("page_bytes") if isinstance(item, Mapping) else None
            yield from _flat(item, f"{path}.{at if size is None else size}")
    elif path.endswith(_ROUNDED) and isinstance(value, int):
        yield path, f"{value / GIB:.4g} GiB"
    elif value is not None:
        yield path, str(value)
