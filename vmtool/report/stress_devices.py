"""What a stress run found about its devices, in sentences: waits of unmapping, and what peers cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmtool.report.table import duration_or_dash
from vmtool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vmtool.results.stress import DeviceResult, StressResult, UnmapResult


def unmapping_words(found: UnmapResult) -> str:
    """Return in a sentence whether unmapping waited for running work, or why that is not known."""
    if found.not_measured is not None:
        return f"whether unmapping waits for running work was not measured: {found.not_measured}"
    unmap = _waiting("cuMemUnmap", found.waited, found.idle_ns, found.busy_ns, found.left_ns)
    release = _waiting(
        "cuMemRelease",
        found.release_waited,
        found.release_idle_ns,
        found.release_busy_ns,
        found.release_left_ns,
    )
    return (
        f"{unmap}; {release} (medians of {found.rounds}); synchronising before it costs "
        f"{duration_or_dash(found.idle_synchronise_ns)} on an idle device"
    )


def device_sentences(result: StressResult) -> Iterator[str]:
    """Say of each device whether unmapping waited, and what access of its peers costs."""
    if result.unmapping is not None and not result.devices:
        yield unmapping_words(result.unmapping)
    for device in result.devices:
        if device.unmapping is not None:
            yield f"{device.backing}: {unmapping_words(device.unmapping)}"
        yield f"{device.backing}: {_peer_words(device)}"


def _peer_words(device: DeviceResult) -> str:
    if not device.peers:
        return "no other device had access to its memory"
    words = f"{', '.join(device.peers)} can access its memory"
    costs = () if device.unmapping is None else device.unmapping.access_ns
    if len(costs) < 2:
        return words
    alone, *more = map(format_duration, costs)
    with_peers = (
        f"{cost} with {count} peer{'s'[: count > 1]}" for count, cost in enumerate(more, 1)
    )
    return (
        f"{words}; cuMemSetAccess on one new mapping takes {alone} alone, {', '.join(with_peers)}"
    )


def _waiting(
    call: str,
    waited: bool | None,
    idle_ns: int | None,
    busy_ns: int | None,
    left_ns: int | None,
) -> str:
    idle, busy, left = map(duration_or_dash, (idle_ns, busy_ns, left_ns))
    if waited is None:
        return f"whether {call} waits for running work is unknown, as the work was too short: {idle} idle"
    did = "waited" if waited else "did not wait"
    return f"{call} {did} for work that ran on another range: {idle} idle, {busy} with {left} of work left"
