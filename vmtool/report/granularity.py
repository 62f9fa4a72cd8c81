"""One CUDA device as text: what it is, what it offers, and the granularity of each allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.padding import Padding
from rich.text import Text

from vmtool.memory.cuda.diagnosis import dotted
from vmtool.report.document import document
from vmtool.report.machine import machine_body, machine_rows
from vmtool.report.table import paragraph, plain_table, show, table
from vmtool.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.cuda.devices import DeviceInfo
    from vmtool.probes.granularity import AllocationGranularity, BackingSurvey

_OFFERS: Final = {
    "vmm": "virtual memory management",
    "posix_fd": "sharing by file descriptor",
    "fabric": "sharing by fabric handle",
    "rdma": "GPUDirect RDMA",
    "compression": "compression",
    "multicast": "multicast",
    "dma_buf": "dma-buf",
    "host": "host memory by handle",
    "host_numa": "host NUMA memory by handle",
}
_WORDS: Final = {None: "unknown", False: "no", True: "yes"}


def print_device(survey: BackingSurvey, device: DeviceInfo, console: Console) -> None:
    """Print what the driver says of one device."""
    console.print(Text(f"\n{survey.name}: {device.name}", style="bold"))
    table = plain_table("", ("", "left"))
    for label, text in _facts(survey, device):
        table.add_row(label, text)
    console.print(table)
    if survey.allocations:
        console.print(Text(f"\n{survey.name}: granularity by allocation", style="bold"))
        table = plain_table("", ("offered", "left"), "minimum", "recommended")
        for kind in survey.allocations:
            table.add_row(_name(kind), _WORDS[kind.supported], *_granularities(kind))
        console.print(table)


def _facts(survey: BackingSurvey, device: DeviceInfo) -> list[tuple[str, str]]:
    model = f", {device.driver_model}" if device.driver_model else ""
    free = "unknown" if survey.free_bytes is None else format_size(survey.free_bytes)
    shared = {True: "integrated: it shares the host's RAM", False: "its own", None: "unknown"}
    rows = [
        ("driver", f"CUDA {dotted(device.driver_version)}{model}"),
        ("compute capability", device.compute_capability),
        ("memory", f"{format_size(device.total_bytes)}, {free} free"),
        ("memory is", shared[device.integrated]),
    ]
    for key, label in _OFFERS.items():
        value = device.attributes[key]
        rows.append((label, _WORDS[None if value is None else bool(value)]))
    node = device.attributes["host_numa_id"]
    if node is not None:
        rows.append(("host NUMA node", str(node) if node >= 0 else "none"))
    return rows


def _name(kind: AllocationGranularity) -> str:
    parts = [kind.location]
    if kind.handle != "none":
        parts.append(kind.handle)
    if kind.flag is not None:
        parts.append(kind.flag)
    return ", ".join(parts)


def _granularities(kind: AllocationGranularity) -> tuple[str, str]:
    if kind.minimum_bytes is None or kind.recommended_bytes is None:
        return kind.refusal or "-", ""
    return format_size(kind.minimum_bytes), format_size(kind.recommended_bytes)


SCHEMA: Final = "vmtool.granularity"
VERSION: Final = 1

_NONE: Final = "-"
#: From this many columns the attempts fit into a table.
_WIDE: Final = 110
#: Granules worth knowing even where this machine has others, and who uses them.
_KNOWN_GRANULES: Final = {
    4 * KIB: "pages of x86-64",
    64 * KIB: "Windows, pages of some arm64",
    2 * MIB: "CUDA, huge pages",
}


@dataclass(frozen=True, slots=True)
class TokensPerGranule:
    """How many tokens of one KV tensor one granule holds.

    Attributes:
        tensor: The tensor's name.
        bytes_per_token: Its size per token.
        granule_bytes: The granule.
        tokens: Whole tokens in one granule; 0 if a token is larger.
        spare_bytes: What is left of the granule after those.
    """

    tensor: str
    bytes_per_token: int
    granule_bytes: int
    tokens: int
    spare_bytes: int


@dataclass(frozen=True, slots=True)
class GranularityReport:
    """What the command found.

    Attributes:
        facts: The machine.
        surveys: One for each backing.
        tensors: Name and bytes per token of the KV tensors that were asked about.
    """

    facts: MachineFacts
    surveys: tuple[BackingSurvey, ...]
    tensors: tuple[tuple[str, int], ...] = ()

    def tokens(self) -> tuple[TokensPerGranule, ...]:
        """Return the tokens per granule of every tensor, for every granule."""
        return tuple(
            TokensPerGranule(name, size, granule, *divmod(granule, size))
            for name, size in self.tensors
            for granule in self.granules()
        )

    def granules(self) -> tuple[int, ...]:
        """Return this machine's granules and the well-known ones, ascending."""
        here = {s.granularity.commit_bytes for s in self.surveys if s.granularity is not None}
        return tuple(sorted(here | set(_KNOWN_GRANULES)))


def to_document(report: GranularityReport, command: list[str]) -> dict[str, Any]:
    """Return the report as a JSON document."""
    body = {
        **machine_body(report.facts),
        "commit_headroom_bytes": report.facts.commit.headroom_bytes,
        "backings": report.surveys,
        "tokens_per_granule": report.tokens(),
    }
    return document(SCHEMA, VERSION, command=command, body=body)


def to_text(report: GranularityReport, console: Console) -> None:
    """Print the report."""
    units = plain_table("", *(survey.name for survey in report.surveys))
    for label, cell in _ROWS:
        units.add_row(label, *(_NONE if s.absent else cell(s) for s in report.surveys))
    console.print(units)
    exact = [f"{s.name} {s.ceiling.works_bytes:,}" for s in report.surveys if s.ceiling]
    if exact:  # as a row of the table it would not fit into a narrow terminal
        console.print(f"largest reservation in bytes: {', '.join(exact)}")
    for survey in report.surveys:
        if survey.device is not None:
            print_device(survey, survey.device, console)
        if survey.absent is not None:
            console.print(f"\n{survey.name}: not available: {survey.absent}")
            if survey.hint:
                console.print(f"  {survey.hint}")
    if report.tensors:
        _print_tokens(report, console)
    for survey in report.surveys:
        if survey.proofs:
            _print_proofs(survey, console)
    console.print()
    console.print(machine_rows(report.facts))


def _unit(name: str) -> Callable[[BackingSurvey], str]:
    def cell(survey: BackingSurvey) -> str:
        nbytes: int | None = getattr(survey.granularity, name)
        return _NONE if nbytes is None else format_size(nbytes)

    return cell


def _ceiling(survey: BackingSurvey) -> str:
    found, units = survey.ceiling, survey.granularity
    if found is None or units is None:
        return _NONE
    refused = found.refused_bytes
    exact = refused is not None and refused - found.works_bytes <= units.commit_bytes
    return f"{format_size(found.works_bytes)}{'' if exact else ' or more'}"


_ROWS: Final[tuple[tuple[str, Callable[[BackingSurvey], str]], ...]] = (
    ("page", _unit("page_bytes")),
    ("reserve in units of", _unit("reserve_bytes")),
    ("commit in units of", _unit("commit_bytes")),
    ("commit method", lambda survey: survey.method or _NONE),
    ("largest reservation", _ceiling),
)


def _print_tokens(report: GranularityReport, console: Console) -> None:
    here: dict[int, list[str]] = {}
    for survey in report.surveys:
        if survey.granularity is not None:
            here.setdefault(survey.granularity.commit_bytes, []).append(survey.name)
    granules = report.granules()
    users = [
        f"{format_size(size)}: {', '.join(here.get(size, ())) or _KNOWN_GRANULES[size]}"
        for size in granules
    ]
    rows = [
        [name, format_size(size), *(_tokens_cell(granule, size) for granule in granules)]
        for name, size in report.tensors
    ]
    headings = ["tensor", "a token", *map(format_size, granules)]
    console.print(Text("\ntokens per granule of one KV tensor", style="bold"))
    show(console, (table(headings, rows), paragraph(f"granules: {'; '.join(users)}")))


def _tokens_cell(granule: int, size: int) -> str:
    tokens, spare = divmod(granule, size)
    if tokens == 0:
        return f"0: a token takes {-(-size // granule):,} granules"
    return f"{tokens:,}" if spare == 0 else f"{tokens:,}, {format_size(spare)} left over"


def _print_proofs(survey: BackingSurvey, console: Console) -> None:
    granule = survey.granularity.commit_bytes if survey.granularity else 0
    console.print(Text(f"\n{survey.name}: is g = {granule} bytes the granule?", style="bold"))
    wide = console.width >= _WIDE
    proofs = plain_table("asked", ("attempt", "left"), ("answer", "left")) if wide else None
    for proof in survey.proofs:
        answer = Text(proof.answer if proof.accepted else f"refused: {proof.answer}")
        if not proof.expected:
            answer = Text(f"WRONG: {answer}", "bold red")
        if proofs is not None:
            proofs.add_row(proof.who, proof.attempt, answer)
        else:
            console.print(f"{proof.who}: {proof.attempt}")
            console.print(Padding(answer, (0, 0, 0, 4)))
    if proofs is not None:
        console.print(proofs)
    if all(proof.who == "vmtool" for proof in survey.proofs):
        console.print("The platform itself was not asked: vmtool does not know how to here.")
    elif all(proof.expected for proof in survey.proofs):
        console.print("yes: everything was answered as for a granule of that size")
