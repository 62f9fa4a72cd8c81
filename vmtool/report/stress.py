"""The report of ``vmtool stress``: the answer, latencies, driver calls, checks, and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from vmtool.report.check_sentences import describe, hint, shown_word, summarize
from vmtool.report.console import paragraph, show
from vmtool.report.machine import conditions_line, device_words
from vmtool.report.recommendation_and_advice import (
    advice_text,
    huge_text,
    recommendation_rows,
    recommendation_text,
)
from vmtool.report.table import backing_label, duration_or_dash, table
from vmtool.report.text_chart import histogram_rows
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.stress import COUNTERS, DEVICE_COUNTERS, Outcome
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from vmtool.report.table import ReportTable
    from vmtool.results.check_outcomes import Check
    from vmtool.results.stress import (
        CallFailure,
        DeviceResult,
        MethodResult,
        StressResult,
        UnmapResult,
    )


CALL_HEADINGS: Final = ("driver call", "median", "p99", "max", "calls", "per commit")
DEVICE_HEADINGS: Final = ("device", "method", "commit", "release", "cycles/s", "outcome")
_COLUMNS: Final = {
    "median": "median_ns",
    "mean": "mean_ns",
    "p90": "p90_ns",
    "p99": "p99_ns",
    "p99.9": "p999_ns",
    "max": "max_ns",
}
_OUTCOMES: Final = {
    Outcome.COMPLETE: "complete",
    Outcome.INTERRUPTED: "interrupted: the figures cover what was done until then",
    Outcome.CALL_FAILED: "a call failed; the figures cover what was done until then",
    Outcome.CRASHED: "a worker died; the figures are its last report",
    Outcome.HUNG: "a worker made no progress and was killed; the figures are its last report",
}
_BEFORE_A_REPORT: Final = {
    Outcome.CRASHED: "a worker died before its first report: there are no figures",
    Outcome.HUNG: "a worker made no progress before its first report and was killed: there are no figures",
}
_INVARIANTS: Final = ("contents", "zero", "base", "budget", "leases", "released")


def to_text(result: StressResult, console: Console, *, explain: bool = False) -> None:
    """Print *result*: the answer first.

    Args:
        result: What was found.
        console: Where to print it.
        explain: Whether to show the distributions, the checks with their numbers, and the machine.
    """
    console.print(Text(answer(result), style="bold"))
    show(console, (paragraph(line, indent="  ") for line in recommendation_lines(result)))
    show(console, _head(result))
    for method in result.methods:
        if not method.cycles:
            continue  # it ended before there were any figures
        console.print()
        console.print(_method_line(method, result))
        console.print(_latencies(method))
        if explain:
            console.print()
            console.print(histogram_rows(method, console.width))
        if method.calls:
            console.print()
            console.print(_calls(method))
    console.print()
    for block in _tail(result, explain=explain):
        console.print(block)


def answer(result: StressResult) -> str:
    """Return the whole result in one line."""
    if result.outcome in _BEFORE_A_REPORT and not any(m.cycles for m in result.methods):
        return f"{_BEFORE_A_REPORT[result.outcome]}; checks: {summarize(result.checks)}"
    if result.outcome is not Outcome.COMPLETE:
        return f"{_OUTCOMES[result.outcome]}; checks: {summarize(result.checks)}"
    checks = f"checks: {summarize(result.checks)}"
    if result.recommendation is not None:
        return f"{recommendation_text(result.recommendation)}; {checks}"
    costs = [(m.method, cost) for m in result.methods if (cost := cycle_ns(m)) is not None]
    if not costs:
        return checks
    granule = format_size(result.settings.granule_bytes)
    spread = _spread(result, costs[0][0])
    touched = result.methods[0].phase("touch") is not None
    what = "committing, touching and releasing" if touched else "committing and releasing"
    return f"{costs[0][0]}: {what} {granule} takes {format_duration(costs[0][1])}{spread}; {checks}"


def recommendation_lines(result: StressResult) -> list[str]:
    """Return what else there is to know about the method to use; nothing without one."""
    best = result.recommendation
    if best is None:
        return []
    system = result.machine.get("system", {}).get("os", "")
    lines = [f"{name}: {text}" for name, text in recommendation_rows(best, system)]
    huge = huge_text(best)
    return lines if huge is None else [*lines, huge]


def cycle_ns(method: MethodResult) -> int | None:
    """Return the medians of commit, touch and release together."""
    found = [
        phase.summary.median_ns
        for phase in method.phases
        if phase.phase != "verify" and phase.summary.median_ns is not None
    ]
    return sum(found) if found else None


def _spread(result: StressResult, name: str) -> str:
    """Return the lowest and highest cycle over the runs of the method called *name*."""
    costs = [
        cost
        for run in result.runs
        if (method := run.method(name)) is not None and (cost := cycle_ns(method)) is not None
    ]
    if len(costs) < 2:
        return ""
    low, high = format_duration(min(costs)), format_duration(max(costs))
    return f" ({low} to {high} in {len(costs)} runs)"


def _head(result: StressResult) -> Iterator[RenderableType]:
    settings = result.settings
    place = backing_label(settings.backing, result.device)
    options = [f"touch {settings.touch}", f"verify {settings.verify}"]
    options += [name for name in ("huge", "prefault") if getattr(settings, name)]
    if settings.huge_page_bytes is not None:
        options.append(f"reserved huge pages of {format_size(settings.huge_page_bytes)}")
    if settings.node is not None:
        options.append(f"NUMA node {settings.node}")
    yield Text(
        f"{place}, {settings.pattern} pattern, granules of {format_size(settings.granule_bytes)}, "
        f"{', '.join(options)}, seed {settings.seed}"
    )
    parts = []
    if settings.workers * settings.threads > 1:
        parts.append(f"workers: {settings.workers}, threads in each: {settings.threads}")
    parts.append(f"{format_size(settings.capacity_bytes)} reserved for each buffer")
    if result.peak_committed_bytes is None:
        peak = "unknown how much was committed at once"
    else:
        peak = f"at most {format_size(result.peak_committed_bytes)} committed"
    if result.peak_resident_bytes is not None:
        peak += f" and {format_size(result.peak_resident_bytes)} resident"
    parts += [peak, f"budget {format_size(settings.budget_bytes)}"]
    yield Text(", ".join(parts))
    if result.hold is not None:
        yield Text(
            f"the whole budget was held once: {format_size(result.hold.bytes)} of "
            f"{format_size(result.hold.budget_bytes)} committed and touched in "
            f"{format_duration(result.hold.wall_ns)}"
        )
    if settings.inject:
        yield Text(f"injected faults: {', '.join(settings.inject)}")
    if not result.devices and (device := result.machine.get("device")):
        yield Text(device_words(device))
    for each in result.devices:
        yield Text(f"{each.backing}: {device_words(each.machine)}")
    if result.conditions is not None:
        yield Text(conditions_line(result.conditions, settings.label, result.machine))


def device_rows(result: StressResult) -> list[tuple[str, ...]]:
    """Return each device and method: medians, rate and how its workers ended."""
    rows = []
    for device in result.devices:
        words = device.outcome.value
        rows += [
            (
                device.backing,
                method.method,
                *(
                    duration_or_dash(
                        phase.summary.median_ns if (phase := method.phase(name)) else None
                    )
                    for name in ("commit", "release")
                ),
                f"{method.cycles_per_s:,.0f}",
                words,
            )
            for method in device.methods
        ] or [(device.backing, "-", "-", "-", "-", words)]
    return rows


def failed_in(failure: CallFailure) -> str:
    """Return in what a call failed: the operation, and its granule and cycle if it has them."""
    if failure.granule is None or failure.cycle is None:
        return failure.operation
    return f"{failure.operation} of granule {failure.granule}, cycle {failure.cycle}"


def _method_line(method: MethodResult, result: StressResult) -> Text:
    cost = cycle_ns(method)
    each = (
        ""
        if cost is None
        else f"{format_duration(cost)} per cycle{_spread(result, method.method)}, "
    )
    if not method.wall_ns:  # it failed in its first round, whose time was not taken
        return Text.assemble((method.method, "bold"), f": {each}{method.cycles:,} cycles")
    return Text.assemble(
        (method.method, "bold"),
        f": {each}{method.cycles:,} cycles in {format_duration(method.wall_ns)}, "
        f"{method.cycles_per_s:,.0f} cycles/s, {format_size(round(method.bytes_per_s))}/s",
    )


def call_rows(method: MethodResult) -> list[tuple[str, ...]]:
    """Return one row for each driver call of *method*, below :data:`CALL_HEADINGS`."""
    return [
        (
            call.call,
            duration_or_dash(call.summary.median_ns),
            duration_or_dash(call.summary.p99_ns),
            duration_or_dash(call.summary.max_ns),
            f"{call.summary.samples:,}",
            f"{call.summary.samples / method.cycles:.2f}" if method.cycles else "-",
        )
        for call in method.calls
    ]


def _latencies(method: MethodResult) -> ReportTable:
    columns = [
        (heading, name)
        for heading, name in _COLUMNS.items()
        if any(getattr(phase.summary, name) is not None for phase in method.phases)
    ]
    rows = [
        [phase.phase, *(duration_or_dash(getattr(phase.summary, name)) for _, name in columns)]
        for phase in method.phases
    ]
    return table(["", *(heading for heading, _ in columns)], rows)


def _calls(method: MethodResult) -> ReportTable:
    return table(CALL_HEADINGS, call_rows(method))


def _tail(result: StressResult, *, explain: bool) -> Iterator[RenderableType]:
    if explain:
        yield Text(f"harness overhead: {format_duration(result.overhead_ns)} in each sample")
    before, after = result.resident_before_bytes, result.resident_after_bytes
    if explain and before is not None and after is not None:
        yield Text(f"resident memory: {format_size(before)} before, {format_size(after)} after")
    yield from map(Text, device_sentences(result))
    if not result.settings.clear:
        yield Text("pool memory was not cleared when it was mapped (--no-clear)")
    for name in ("degraded", "quarantined"):
        total = sum(getattr(method, f"{name}_bytes") for method in result.methods)
        if total:
            yield Text(f"{name}: {format_size(total)}")
    for scaling in result.scaling:
        yield Text(
            f"scaling of {scaling.method}: {scaling.speedup:.2f} times the rate of one "
            f"({scaling.single_cycles_per_s:,.0f} to {scaling.cycles_per_s:,.0f} cycles/s)"
        )
    if result.devices:
        yield table(DEVICE_HEADINGS, device_rows(result))
    yield from _checks(result, explain=explain)
    for failure in result.failures:
        why = "injected" if failure.injected else "not injected"
        where = f"{result.settings.backing_of(failure.worker)} " if result.devices else ""
        yield _problem(
            f"{where}failed in {failed_in(failure)} ({why}): {failure.message}",
            failure.cause,
            failure.hint,
        )
    for accident in result.accidents:
        how = accident.signal or (
            f"exit code {accident.exit_code}" if accident.kind == "exit" else "no progress"
        )
        yield _problem(
            f"worker {accident.worker} was ended by {how} in {accident.operation} of granule "
            f"{accident.granule}, cycle {accident.cycle}, method {accident.method}",
            accident.cause,
            accident.hint,
        )
    if explain:
        for advice in result.warnings:
            message, remedy = advice_text(advice)
            yield Text(f"warning: {message}; {remedy}")


def _checks(result: StressResult, *, explain: bool) -> Iterator[RenderableType]:
    checks = {check.name: check for check in result.checks}
    if not checks:
        yield Text("checks: none could be made, because no worker finished")
        return
    counters = (*DEVICE_COUNTERS, *COUNTERS)
    groups = (
        ("checks", {name: name for name in _INVARIANTS}),
        ("counters", {f"counters.{name}": name.replace("_", " ") for name in counters}),
        ("leaks", {f"leak.{name}": name.replace("_", " ") for name in counters}),
    )
    for title, members in groups:
        found = [(name, checks[check]) for check, name in members.items() if check in checks]
        if not found:
            continue
        yield Text(f"{title}: {_outcomes(found)}")
        if title == "leaks" and (seen := _leak_bounds(found)):
            yield Text(f"  {seen}")
    skipped = {remedy: describe(c) for c in result.checks if not c.failed and (remedy := hint(c))}
    for remedy, detail in skipped.items():
        yield Text(f"  {detail}; {remedy}")
    rest = set(checks) - {check for _, members in groups for check in members}
    for name in sorted(rest):
        if checks[name].failed:
            continue  # below
        yield Text(f"{name}: {shown_word(checks[name])} ({describe(checks[name])})")
    if explain:
        for check in result.checks:
            if check.outcome is CheckOutcome.PASSED and check.name not in rest:
                yield Text(f"  {check.name}: {describe(check)}")
    for check in result.checks:
        if check.failed:
            yield _problem(f"{check.name} FAILED: {describe(check)}", None, hint(check))


def _leak_bounds(found: list[tuple[str, Check]]) -> str:
    """Return the slope, its interval and what could have been seen, for the resident memory."""
    for counter in ("resident", "device memory", "address space"):
        check = next((check for name, check in found if name == counter), None)
        if check is not None and "per_cycle" in check.values:
            return f"{counter}: {describe(check)}"
    return ""


def _outcomes(found: list[tuple[str, Check]]) -> str:
    """Return names by outcome, such as ``contents, zero ok; base FAILED``."""
    words: dict[str, list[str]] = {}
    for name, check in found:
        words.setdefault(shown_word(check), []).append(name)
    return "; ".join(f"{', '.join(names)} {word}" for word, names in words.items())


def _problem(message: str, cause: str | None, remedy: str | None) -> RenderableType:
    text = Text(message, style="bold red")
    for label, more in (("cause", cause), ("hint", remedy)):
        if more:
            text.append(f"\n{label}: {more}", style="not bold default")
    return text


def device_sentences(result: StressResult) -> Iterator[str]:
    """Say of each device whether unmapping waited, and what access of its peers costs."""
    if result.unmapping is not None and not result.devices:
        yield unmapping_words(result.unmapping)
    for device in result.devices:
        if device.unmapping is not None:
            yield f"{device.backing}: {unmapping_words(device.unmapping)}"
        yield f"{device.backing}: {_peer_words(device)}"


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
