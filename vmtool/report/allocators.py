"""The report of ``vmtool allocators``: from which size on each method is faster, then the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.report.console import paragraph, show
from vmtool.report.machine import device_words
from vmtool.report.table import backing_label, table
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from vmtool.results.allocators import (
        AllocatorsResult,
        BesideWork,
        DeviceAllocators,
        StepLatency,
    )

_METHODS: Final = ("cold", "pooled", "malloc", "async")
_CALLS: Final = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease")


def to_text(result: AllocatorsResult, console: Console) -> None:
    """Print *result*."""
    for number, device in enumerate(result.devices):
        if number:
            console.print()
        show(console, _parts(device))


def _parts(result: DeviceAllocators) -> Iterator[RenderableType]:
    if result.error is not None:
        yield paragraph(
            f"ended early; these are the figures until then: {result.error}", style="bold red"
        )
    for line in _answer(result):
        yield paragraph(line)
    label = backing_label(result.backing, result.device.name)
    unit = format_size(result.granularity_bytes)
    yield paragraph(f"{label}, handles of {unit}; {device_words(result.device)}")
    yield from _timings(result)
    if result.growth:
        yield Text("\ndoubling a buffer", style="bold")
        yield table(
            ("from", "in place", "copying", "times as long"),
            [
                (
                    format_size(each.from_bytes),
                    format_duration(each.in_place_ns),
                    format_duration(each.copying_ns),
                    f"{each.copying_ns / max(each.in_place_ns, 1):.1f}",
                )
                for each in result.growth
            ],
        )
    if result.chunks:
        yield Text("\nchunks", style="bold")
        yield table(
            ("chunk", *(name.removeprefix("cuMem").lower() for name in _CALLS), "per GiB"),
            [
                (
                    format_size(each.chunk_bytes),
                    *(
                        format_duration(each.calls_ns[name]) if name in each.calls_ns else "-"
                        for name in _CALLS
                    ),
                    format_duration(each.ns_per_gib),
                )
                for each in result.chunks
            ],
        )
    if result.beside is not None:
        yield from _beside(result.beside)


def _answer(result: DeviceAllocators) -> Iterator[str]:
    for pair, nbytes in result.faster_from_bytes.items():
        method, baseline = pair.split("<")
        if method == "cold" and baseline == "async":
            continue  # keeping memory is compared with keeping memory
        if nbytes is None:
            yield f"{method} is not faster than {baseline} at the largest size measured"
        else:
            yield f"{method} is faster than {baseline} from {format_size(nbytes)} on"
    if result.growth:
        start = result.grows_faster_from_bytes
        yield (
            "doubling in place is not faster than copying at the largest length measured"
            if start is None
            else f"doubling in place is faster than copying from {format_size(start)} on"
        )
    if result.knee_bytes is not None:
        yield (
            f"chunks of {format_size(result.knee_bytes)} are enough: larger ones save less than 10 "
            "% per GiB"
        )


def _timings(result: DeviceAllocators) -> Iterator[RenderableType]:
    sizes = sorted({each.nbytes for each in result.timings})
    found = {(each.method, each.nbytes): each for each in result.timings}
    yield Text("\nallocate + release", style="bold")
    rows = []
    for nbytes in sizes:
        cells = []
        for method in _METHODS:
            each = found[method, nbytes]
            if each.allocate_ns is None or each.release_ns is None:
                cells.append("-")
            else:
                cells.append(
                    f"{format_duration(each.allocate_ns)} + {format_duration(each.release_ns)}"
                )
        rows.append((format_size(nbytes), *cells))
    yield table(("size", *_METHODS), rows)
    errors = {each.method: each.error for each in result.timings if each.error is not None}
    for method, error in errors.items():
        yield paragraph(f"{method} was not measured: {error}")


def _beside(beside: BesideWork) -> Iterator[RenderableType]:
    yield Text("\nmapping beside work", style="bold")
    if beside.error is not None:
        yield paragraph(
            f"{'the context was lost' if beside.lost else 'failed' if beside.available else 'not available'}: "
            f"{beside.error}",
            style="bold red",
        )
    rows = (("alone", beside.alone), ("with mapping", beside.beside))
    latencies = [_latency(name, steps) for name, steps in rows if steps is not None]
    if latencies:
        yield table(("steps of the work", "median", "99 %", "longest"), latencies)
    if beside.beside is None:
        return
    intact = beside.work_intact and beside.range_intact
    yield paragraph(
        f"{beside.cycles:,} cycles of mapping, filling, checking and unmapping; contents "
        f"{'intact' if intact else 'WRONG'}"
    )


def _latency(name: str, steps: StepLatency) -> tuple[str, ...]:
    return name, *(format_duration(ns) for ns in (steps.median_ns, steps.p99_ns, steps.max_ns))
