"""The sentences of checks, made from their numbers, and what to do about one that failed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from vmtool.results.check_outcomes import NOT_PROVEN, CheckOutcome
from vmtool.results.stress import DEVICE_COUNTERS
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vmtool.results.check_outcomes import Check

Values = dict[str, Any]
_REASONS: Final = {
    "not requested": "not requested",
    "not available": "not available on this platform",
    "not promised": "fresh memory of this kind is not guaranteed to be zero",
    "no checkpoints": "no checkpoints were taken",
    "no cycles": "nothing was committed",
    "too few checkpoints": "too few checkpoints for a slope",
    "device-shared": "something else uses the device, and NVML does not report use per process here",
}


def describe(check: Check) -> str:
    """Return what *check* compared, with the numbers."""
    values: Values = dict(check.values)
    reason = values.get("reason")
    if check.outcome is CheckOutcome.NOT_DONE and isinstance(reason, str) and reason in _REASONS:
        grown = values.get("others_bytes", values.get("grown"))
        size = f" (+{format_size(grown)})" if isinstance(grown, int) and grown > 0 else ""
        return _REASONS[reason] + size
    kind, _, rest = check.name.partition(".")
    writer = _SENTENCES.get(kind)
    if writer is not None:
        # A file may hold a check that lacks the values its name promises.
        with suppress(KeyError, TypeError, ValueError):
            return writer(rest, values)
    # Version 1 stored sentences.
    return str(values["detail"]) if "detail" in values else plain_values(values)


def hint(check: Check) -> str | None:
    """Return what to do about *check*, if it failed or if something was missing to do it."""
    kind, _, rest = check.name.partition(".")
    reason = check.values.get("reason")
    if isinstance(check.values.get("hint"), str):
        return str(check.values["hint"])
    if check.outcome is CheckOutcome.FAILED:
        if kind == "assert":
            return _ASSERT_HINTS.get(str(reason))
        return _REQUIRE_HINTS.get(rest) if kind == "require" else _HINTS.get(kind)
    if reason == "too few checkpoints":
        return _LONGER
    if reason == "did not happen":
        return "use a smaller N, more cycles, or another --method"
    if reason == "device-shared":
        return "run with NVML (vmtool[nvml]), or stop the other programs on the device"  # an older result
    return None


def summarize(checks: Sequence[Check]) -> str:
    """Return how the checks ended in one phrase: ``10 passed, 4 not done: leaks``."""
    parts = []
    for word in ("failed", "passed", NOT_PROVEN, "not done"):
        found = [check for check in checks if check.word == word]
        if not found:
            continue
        text = f"{len(found)} {word}"
        if word != "passed":
            text += f": {', '.join(_kinds(found))}"
        parts.append(text)
    return ", ".join(parts) if parts else "no checks were made"


def _kinds(checks: Iterable[Check]) -> list[str]:
    """Return the names of *checks*, those of one kind together."""
    kinds = {"leak": "leaks", "counters": "counters"}
    names = (check.name for check in checks)
    return list(dict.fromkeys(kinds.get(name.partition(".")[0], name) for name in names))


def shown_word(check: Check) -> str:
    """Return how *check* ended, as a report shows it beside its name."""
    return {"passed": "ok", "failed": "FAILED"}.get(check.word, check.word)


def _contents(_rest: str, values: Values) -> str:
    if "granule" not in values:
        how = "every byte" if values["verify"] == "full" else "two pieces of 4 KiB"
        return f"{how} of each released span contained what was written ({values['spans']:,} spans)"
    zero = values["found"] == "zero"
    text = (
        f"granule {values['granule']} (offset {values['offset']}), cycle {values['cycle']}: "
        f"{'fresh memory is not zero' if zero else 'what was written is not there'}"
    )
    if "owner_granule" in values:
        text += (
            f"; it contains the bytes of buffer {values['owner_buffer']}, "
            f"granule {values['owner_granule']}, cycle {values['owner_cycle']}"
        )
    return text


def _zero(rest: str, values: Values) -> str:
    if "granule" in values:
        return _contents(rest, values)
    return f"freshly committed memory read as zero ({values['methods']})"


def _base(_rest: str, values: Values) -> str:
    return f"{values['moved']} of {values['buffers']} buffers moved"


def _node(_rest: str, values: Values) -> str:
    elsewhere = values["elsewhere_bytes"]
    if elsewhere:
        return f"{elsewhere} bytes were on another NUMA node than {values['node']}"
    return f"every page was on NUMA node {values['node']}"


def _leases(_rest: str, values: Values) -> str:
    return (
        f"{values['leased_bytes']} bytes leased, {values['committed_bytes']} committed, pooled or "
        "quarantined"
    )


def _budget(_rest: str, values: Values) -> str:
    refused = "refused" if values["next_byte_refused"] else "not refused"
    return (
        f"at most {format_size(values['peak_bytes'])} of {format_size(values['limit_bytes'])} were "
        f"committed at once, and one byte more was {refused}"
    )


def _released(_rest: str, values: Values) -> str:
    if "error" in values:
        return str(values["error"])
    if values["mapped"] is None:
        mapped = f"it is not known whether any of {values['buffers']} buffers is still mapped"
    else:
        mapped = f"{values['mapped']} of {values['buffers']} buffers are still mapped"
    return f"{mapped}, {values['leased_bytes']} bytes leased"


def _counters(name: str, values: Values) -> str:
    if "checkpoints" in values:
        return f"agreed at {values['checkpoints']} checkpoints"
    unit = "" if name.endswith("mappings") else " bytes"
    who = "the driver" if name in DEVICE_COUNTERS else "the kernel"
    return (
        f"{values['method']}, cycle {values['cycle']}: {who} counts {values['observed']}{unit}, "
        f"vmtool expects {values['expected']} (allowed {values['low']} to {values['high']})"
    )


def _leak(name: str, values: Values) -> str:
    interval = (
        f"{leak_amount(name, values['low'])} to {leak_amount(name, values['high'])} per cycle "
        f"({100 * values['confidence']:.0f} % interval)"
    )
    grown, floor = leak_amount(name, values["grown"]), leak_amount(name, values["floor"])
    seen = f"a leak of {leak_amount(name, values['detectable_per_cycle'])} per cycle would have been seen"
    if values["low"] <= 0:
        return f"{interval}; {seen}"
    if values["grown"] <= values["floor"]:
        return f"{interval}, {grown} in a whole run: up to {floor} counts as warm-up; {seen}"
    return f"{interval}, {grown} in a whole run, of which up to {floor} counts as warm-up"


def leak_amount(counter: str, value: float) -> str:
    """Return *value* of *counter* with its unit, mappings with decimals."""
    if counter.endswith("mappings"):
        return f"{value:.3g} mapping{'' if value == 1 else 's'}"
    return f"{'-' if value <= -0.5 else ''}{format_size(round(abs(value)))}"


def _inject(_rest: str, values: Values) -> str:
    if "fault" not in values:
        return "every injected fault happened"
    times = "once" if values["calls"] == 1 else f"{values['calls']} times"
    return f"{values['fault']} did not happen: {values['call']} was called {times}"


def _assert(_rest: str, values: Values) -> str:
    if values.get("reason") == "method did not run":
        return "the method did not run"
    parts = []
    for key, runs in values.items():
        name, _, what = key.rpartition(".")
        if what != "runs":
            continue
        if f"{name}.value" not in values:
            parts.append(f"{name}: not measured (only {runs} runs had enough samples)")
            continue
        value, low, high = (
            _with_unit(values[f"{name}.{end}"], values["unit"]) for end in ("value", "low", "high")
        )
        parts.append(f"{name}: {value} ({low} to {high} in {runs} runs)")
    if values.get("reason") == NOT_PROVEN:
        parts.append("the interval includes the limit; more runs would narrow it")
    return "; ".join(parts)


def _with_unit(value: float, unit: str) -> str:
    if unit == "ns":
        return format_duration(value)
    return f"{format_size(round(value))}/s" if unit == "bytes/s" else f"{value:,.0f}/s"


def _require(_rest: str, values: Values) -> str:
    return f"not done: {values['missing']}" if values.get("missing") else "done"


def _guard(case: str, values: Values) -> str:
    words = {
        "committed": "a write to committed memory",
        "never": "a write to memory never committed",
        "released": "a write to released memory",
    }
    what = words.get(case.rpartition(".")[2], case)
    return f"{values['method']}: {what}: {_ending(values)}"


def _ending(values: Values) -> str:
    if values.get("signal"):
        return str(values["signal"])
    return "succeeded" if values.get("written") else str(values.get("error") or "no answer")


def plain_values(values: Mapping[str, Any]) -> str:
    """Return *values* by their names, where there is no sentence for them."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _run(_name: str, values: Values) -> str:
    return values["cause"] or f"outcome {values['outcome']}"


_SENTENCES: Final[dict[str, Callable[[str, Values], str]]] = {
    "contents": _contents,
    "zero": _zero,
    "base": _base,
    "leases": _leases,
    "node": _node,
    "budget": _budget,
    "released": _released,
    "counters": _counters,
    "leak": _leak,
    "inject": _inject,
    "assert": _assert,
    "require": _require,
    "guard": _guard,
    "run": _run,
}
_HINTS: Final = {
    "contents": "run again with --verify full and another --method; test the RAM if both fail",
    "zero": "run again with --verify full and another --method; test the RAM if both fail",
    "counters": "run with another --method to see whether the method or the kernel is at fault",
    "leak": "confirm with --soak 10m; --method all shows which method leaks",
    "guard": "report this with --json; nothing else that vmtool says about this method can be trusted",
}
_LONGER: Final = "run for longer: --duration 10s, or more --cycles"
#: By the reason; where the whole interval is beyond the limit, no other run mends it.
_ASSERT_HINTS: Final = {
    NOT_PROVEN: "make more runs (--runs), or run for longer: a busy machine widens the interval",
    "not measured": "run for longer, so that four runs have enough samples, or name another statistic",
    "method did not run": "run it too (--method all), or leave its name out of the condition",
}
_REQUIRE_HINTS: Final = {
    "leaks": _LONGER,
    "contents": "leave out --verify off and --touch none",
}
