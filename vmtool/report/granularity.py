"""The report of ``vmtool granularity``: units of each backing, devices and their sharing, tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.text import Text

from vmtool.json_documents import plain
from vmtool.report.console import paragraph
from vmtool.report.machine import conditions_line, device_words, machine_rows
from vmtool.report.table import ReportTable, pairs, plain_table
from vmtool.units import KIB, MIB, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from vmtool.machine.device_facts import DeviceFacts
    from vmtool.results.granularity import (
        AllocationGranularity,
        BackingGranularity,
        GranularityResult,
        HandleTrial,
        PeerTrial,
        SharingTrial,
        TokensPerGranule,
    )

_DEVICE_OFFERS: Final = {
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
_OFFERED: Final = {None: "unknown", False: "no", True: "yes"}
_NOT_KNOWN: Final = "-"
#: From this many columns on, the attempts fit into a table.
_ATTEMPTS_WIDTH: Final = 110
#: Who uses the granules in common use.
_COMMON_USERS: Final = {
    4 * KIB: "pages of x86-64",
    64 * KIB: "Windows, pages of some arm64",
    2 * MIB: "CUDA, huge pages",
}


def print_device(backing: BackingGranularity, device: DeviceFacts, console: Console) -> None:
    """Print one device and the granularity of each kind of its allocations."""
    console.print(Text(f"\n{backing.name}: {device.name}", style="bold"))
    console.print(paragraph(device_words(device)))
    device_table = plain_table("", ("", "left"))
    for label, text in _device_rows(backing, device):
        device_table.add_row(label, text)
    console.print(device_table)
    if backing.allocations:
        console.print(Text(f"\n{backing.name}: granularity by allocation", style="bold"))
        allocation_table = plain_table("", ("offered", "left"), "minimum", "recommended")
        for allocation in backing.allocations:
            allocation_table.add_row(
                _allocation_name(allocation),
                _OFFERED[allocation.supported],
                *_allocation_units(allocation),
            )
        console.print(allocation_table)
    for trial in backing.handles:
        console.print(_handle_text(trial, device))
    if backing.sharing is not None:
        console.print(_sharing_text(backing.sharing))
    if backing.used_by:
        users = ", ".join(f"{each.name or 'process'} ({each.pid})" for each in backing.used_by)
        console.print(
            f"no reservation was tried, as the device is in use by {users}; --backing "
            f"{backing.name} tries anyway"
        )


def _handle_text(trial: HandleTrial, device: DeviceFacts) -> str:
    offered = {"posix-fd": "posix_fd", "fabric": "fabric"}.get(trial.handle, "vmm")
    value = device.attributes.get(offered)
    words = f"handle {trial.handle}: attribute {_OFFERED[None if value is None else bool(value)]}, "
    if not trial.created:
        return (
            words + f"creation refused ({trial.refusal}){f': {trial.cause}' if trial.cause else ''}"
        )
    if trial.exported is False:
        return words + f"created, export refused ({trial.refusal})"
    if trial.exported is None and trial.cause is not None:
        return f"{words}created, not exported: {trial.cause}"
    return words + ("created and exported" if trial.exported else "created")


def _sharing_text(trial: SharingTrial) -> str:
    if trial.error is not None:
        return f"sharing between two processes is not available: {trial.error}"
    steps = ", ".join(
        f"{name} {format_duration(ns)}" for name, ns in (trial.steps_ns or {}).items()
    )
    return (
        f"sharing between two processes: contents {'seen' if trial.seen else 'NOT seen'} by the "
        f"other process, its writes {'seen' if trial.written_back else 'NOT seen'} by the first, "
        f"memory {'outlives' if trial.outlives_exporter else 'does not outlive'} its exporter "
        f"({steps})"
    )


def _print_peers(peers: tuple[PeerTrial, ...], console: Console) -> None:
    console.print(Text("\npeers", style="bold"))
    peer_table = plain_table(
        "memory of", ("used by", "left"), ("access", "left"), "set access", "alone"
    )
    for peer in peers:
        if peer.granted is None or not peer.granted:
            access = f"refused ({peer.refusal})" if peer.refusal else "not offered"
        else:
            access = "yes, contents seen" if peer.seen else "yes, contents NOT seen"
        times = [
            _NOT_KNOWN if ns is None else format_duration(ns)
            for ns in (peer.together_ns, peer.alone_ns)
        ]
        peer_table.add_row(f"cuda:{peer.owner}", f"cuda:{peer.peer}", access, *times)
    console.print(peer_table)


def _device_rows(backing: BackingGranularity, device: DeviceFacts) -> list[tuple[str, str]]:
    total, free = (
        "unknown" if nbytes is None else format_size(nbytes)
        for nbytes in (device.total_bytes, backing.free_bytes)
    )
    shared = {True: "shared with the host (integrated)", False: "its own", None: "unknown"}
    device_rows = [
        ("compute capability", device.compute_capability or "unknown"),
        ("memory", f"{total}, {free} free"),
        ("memory is", shared[device.integrated]),
    ]
    for key, label in _DEVICE_OFFERS.items():
        value = device.attributes.get(key)
        device_rows.append((label, _OFFERED[None if value is None else bool(value)]))
    node = device.attributes.get("host_numa_id")
    if node is not None:
        device_rows.append(("host NUMA node", str(node) if node >= 0 else "none"))
    return device_rows


def _allocation_name(allocation: AllocationGranularity) -> str:
    parts = [allocation.location]
    if allocation.handle != "none":
        parts.append(allocation.handle)
    if allocation.flag is not None:
        parts.append(allocation.flag)
    return ", ".join(parts)


def _allocation_units(allocation: AllocationGranularity) -> tuple[str, str]:
    if allocation.minimum_bytes is None or allocation.recommended_bytes is None:
        return allocation.refusal or "-", ""
    return format_size(allocation.minimum_bytes), format_size(allocation.recommended_bytes)


def to_text(result: GranularityResult, console: Console) -> None:
    """Print the report."""
    backings = result.backings
    console.print(_answer(result))
    units = plain_table("", *(backing.name for backing in backings))
    for label, cell in _UNIT_ROWS:
        units.add_row(label, *(_NOT_KNOWN if each.absent else cell(each) for each in backings))
    console.print()
    console.print(units)
    exact = [
        f"{each.name} {each.largest_reservation.works_bytes:,}"
        for each in backings
        if each.largest_reservation
    ]
    if exact:  # as a row of the table it would not fit into a narrow terminal
        console.print(f"largest reservation in bytes: {', '.join(exact)}")
    for backing in backings:
        if backing.device is not None:
            print_device(backing, backing.device, console)
        if backing.error is not None:
            console.print(Text(f"{backing.name}: ended early: {backing.error}", style="bold red"))
        if backing.absent is not None:
            console.print(f"\n{backing.name}: not available: {backing.absent}")
            if backing.hint:
                console.print(f"  {backing.hint}")
    if result.shared_granularity_bytes is not None:
        shared = format_size(result.shared_granularity_bytes)
        console.print(
            f"\nmemory that several devices share: granules of {shared}, the largest of any device"
        )
    if result.peers:
        _print_peers(result.peers, console)
    if result.tokens_per_granule:
        _print_tokens(result, console)
    for backing in backings:
        if backing.checks:
            _print_checks(backing, console)
    console.print(Text("\nthis machine", style="bold"))
    console.print(pairs(machine_rows(result.machine)))
    if result.conditions is not None:
        console.print(paragraph(conditions_line(result.conditions, None, plain(result.machine))))


def _answer(result: GranularityResult) -> str:
    units = [
        f"{each.name} {format_size(each.granularity.commit_bytes)}"
        for each in result.backings
        if each.granularity is not None
    ]
    granules = f"granule: {', '.join(units)}; " if units else ""
    # A device has memory of its own, of which this figure says nothing.
    device = any(each.device is not None for each in result.backings)
    where = " on the host" if device else ""
    return f"{granules}{format_size(result.safe_bytes)} is safe to commit{where}"


def _unit(name: str) -> Callable[[BackingGranularity], str]:
    def cell(backing: BackingGranularity) -> str:
        nbytes: int | None = getattr(backing.granularity, name)
        return _NOT_KNOWN if nbytes is None else format_size(nbytes)

    return cell


def _largest_reservation(backing: BackingGranularity) -> str:
    found, units = backing.largest_reservation, backing.granularity
    if found is None or units is None:
        return _NOT_KNOWN
    refused = found.refused_bytes
    exact = refused is not None and refused - found.works_bytes <= units.commit_bytes
    return f"{format_size(found.works_bytes)}{'' if exact else ' or more'}"


_UNIT_ROWS: Final[tuple[tuple[str, Callable[[BackingGranularity], str]], ...]] = (
    ("page", _unit("page_bytes")),
    ("reserve in units of", _unit("reserve_bytes")),
    ("commit in units of", _unit("commit_bytes")),
    ("commit method", lambda backing: backing.method or _NOT_KNOWN),
    ("largest reservation", _largest_reservation),
)


def _print_tokens(result: GranularityResult, console: Console) -> None:
    users = {size: [words] for size, words in _COMMON_USERS.items()}
    here: dict[int, list[str]] = {}
    for backing in result.backings:
        if backing.granularity is not None:
            here.setdefault(backing.granularity.commit_bytes, []).append(backing.name)
    users |= here
    granules = sorted({found.granule_bytes for found in result.tokens_per_granule})
    sizes = {found.tensor: found.bytes_per_token for found in result.tokens_per_granule}
    cells = {(found.tensor, found.granule_bytes): found for found in result.tokens_per_granule}
    console.print(Text("\ntokens per granule of one KV tensor", style="bold"))
    tensor_rows = [
        [tensor, format_size(size), *(_tokens_cell(cells[tensor, each]) for each in granules)]
        for tensor, size in sizes.items()
    ]
    tokens_table = ReportTable(
        "tensor",
        "per token",
        *((format_size(granule), "right") for granule in granules),
        prose=len(granules),
    )
    for row in tensor_rows:
        tokens_table.add_row(*row)
    console.print(tokens_table)
    words = "; ".join(f"{format_size(size)}: {', '.join(users[size])}" for size in granules)
    console.print(f"granules: {words}")


def _tokens_cell(found: TokensPerGranule) -> str:
    if found.tokens == 0:
        return f"0: a token takes {-(-found.bytes_per_token // found.granule_bytes):,} granules"
    if not found.spare_bytes:
        return f"{found.tokens:,}"
    return f"{found.tokens:,}, {format_size(found.spare_bytes)} left over"


def _print_checks(backing: BackingGranularity, console: Console) -> None:
    granule = backing.granularity.commit_bytes if backing.granularity else 0
    console.print(Text(f"\n{backing.name}: is g = {granule} bytes the granule?", style="bold"))
    if all(check.values["who"] == "vmtool" for check in backing.checks):
        console.print("Only vmtool was tried: it cannot make the system's own calls here.")
    elif not any(check.failed for check in backing.checks):
        console.print("yes: every answer is as expected")
    wide = console.width >= _ATTEMPTS_WIDTH
    attempts = plain_table("", ("attempt", "left"), ("answer", "left")) if wide else None
    for check in backing.checks:
        values = check.values
        answer = Text(
            f"{values['answer']}" if values["accepted"] else f"refused: {values['answer']}"
        )
        if check.failed:
            answer = Text(f"WRONG: {answer}", "bold red")
        if attempts is not None:
            attempts.add_row(str(values["who"]), check.name, answer)
        else:
            console.print(f"{values['who']}: {check.name}")
            console.print(Padding(answer, (0, 0, 0, 4)))
    if attempts is not None:
        console.print(attempts)
