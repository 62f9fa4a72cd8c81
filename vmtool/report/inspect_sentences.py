"""Sentences about a process: the answer, its end, findings and remedies, conditions, devices."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from vmtool.errors import printable
from vmtool.memory.rlimits_and_privileges import ResourceLimit, how_to_raise
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.inspect import FindingRating, WatchEnding
from vmtool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vmtool.results.check_outcomes import Check
    from vmtool.results.inspect import (
        InspectResult,
        LimitUse,
        ProcessDevice,
        ProcessFinding,
        ProgramStart,
        Trend,
        Unavailable,
    )


#: What a report calls a counter.
COUNTERS: Final = {
    "address_space_bytes": "address space",
    "charge_bytes": "charge",
    "resident_bytes": "resident",
    "anonymous_bytes": "anonymous",
    "file_bytes": "file pages",
    "shared_bytes": "shared memory",
    "swapped_bytes": "swapped",
    "page_table_bytes": "page tables",
    "locked_bytes": "locked",
    "pinned_bytes": "pinned",
    "hugetlb_bytes": "reserved huge pages",
    "huge_bytes": "transparent huge pages",
    "areas": "memory areas",
    "threads": "threads",
    "descriptors": "descriptors",
    "group_bytes": "control group",
    "group_used_bytes": "group without cache",
    "minor_faults": "page faults",
}
_KINDS_OF_MEMORY: Final = frozenset(
    {"anonymous_bytes", "resident_bytes", "swapped_bytes", "pinned_bytes"}
)
_UNITS: Final = {
    "areas": "memory areas",
    "descriptors": "descriptors",
    "user_tasks": "tasks of the user",
    "group_tasks": "tasks of the control group",
    "address_space_bytes": "of address space",
    "charge_bytes": "of private writable memory",
    "locked_bytes": "of locked memory",
    "group_used_bytes": "charged to the control group, not counting its file cache",
}


def headline(result: InspectResult) -> str:
    """Return the answer: what stops the process, or what comes nearest to it."""
    who = f"{printable(result.process.name)} ({result.process.pid})"
    if not result.samples:
        end = _exit_words(result.process.exit_code)
        return f"{who}: nothing was measured: it ended before the first sample{end and f',{end}'}"
    first = next(iter(result.findings), None)  # the worst
    problems = [f for f in result.findings if f.rating is FindingRating.PROBLEM]
    if first is not None and problems:
        also = _more(len(problems) - 1, "problem")
        filling = [t for t in result.trends if t.limit and t.limit == first.values.get("limit")]
        growth = _also_grows(result, but=filling)
        return f"{who}: {describe_finding(first)[0].partition(';')[0]}{_full_in(filling)}{also}{growth}"
    filling = [trend for trend in result.trends if trend.full_in_s is not None]
    if filling:
        filling.sort(key=lambda trend: trend.full_in_s or 0.0)
        limit = next(limit for limit in result.limits if limit.name == filling[0].limit)
        growth = _also_grows(result, but=filling[:1])
        return f"{who}: no problem yet; {_use(limit)}{_full_in(filling)}{growth}"
    warnings = [f for f in result.findings if f.rating is FindingRating.WARNING]
    if first is not None and warnings:
        also = _more(len(warnings) - 1, "warning")
        return f"{who}: {describe_finding(first)[0].partition(';')[0]}{also}"
    nearest = max(
        (limit for limit in result.limits if limit.soft and limit.used is not None),
        key=lambda limit: (limit.used or 0) / (limit.soft or 1),
        default=None,
    )
    if nearest is None:
        return f"{who}: no problem found; no limit is {'set' if result.limits else 'known'}"
    return f"{who}: no problem found; nearest limit: {_use(nearest)}"


def _also_grows(result: InspectResult, *, but: Sequence[Trend]) -> str:
    """Return what grows, unless it is said already, as one of the trends *but*."""
    growth = next((finding for finding in result.findings if finding.name == "growth"), None)
    if growth is None or growth.values["counter"] in {trend.counter for trend in but}:
        return ""
    return f"; {describe_finding(growth)[0].partition(';')[0]}"


def _full_in(filling: Sequence[Trend]) -> str:
    return f", full in {time_left(filling[0])} at this rate" if filling else ""


def time_left(trend: Trend) -> str:
    """Return how long a trend takes to its limit."""
    return format_duration((trend.full_in_s or 0) * 1e9)


def _more(count: int, what: str) -> str:
    return f", and {count} more {what}{'s'[: count > 1]}" if count else ""


def _use(limit: LimitUse) -> str:
    form = shown_size if limit.counter.endswith("_bytes") else shown_count
    unit = _UNITS.get(limit.counter, limit.counter)
    return f"{form(limit.used)} of {form(limit.soft)} {unit} ({limit.name})"


def describe_ending(result: InspectResult) -> str | None:
    """Return how the watch ended, if it ended early."""
    if not result.samples:
        return None  # the first line says it
    if result.ending is WatchEnding.INTERRUPTED:
        return "interrupted: the figures cover what was watched until then"
    if result.ending is WatchEnding.PROCESS_ENDED:
        return (
            f"the process ended{_exit_words(result.process.exit_code)}: the figures are the last ones "
            "that could be read"
        )
    return None


def _exit_words(code: int | None) -> str:
    if code is None:
        return ""
    names = {128 + number: number.name for number in signal.Signals}
    return f" with exit code {code}" + (f" ({names[code]})" if code in names else "")


def describe_programs(programs: Sequence[ProgramStart]) -> str:
    """Return which programs the process ran, one after the other."""
    first, *others = programs
    words = [f"{printable(each.name)} after {format_duration(each.at_ns)}" for each in others]
    return (
        f"exec: {printable(first.name)}, then {', then '.join(words)}; trends and reservations "
        "cover only the last program"
    )


def describe_finding(finding: ProcessFinding) -> tuple[str, str]:
    """Return what a finding means, and what to do about it."""
    values = finding.values
    maker = _SENTENCES.get(finding.name)
    return maker(values) if maker is not None else (finding.name, "")


def _raise_limit(values: Mapping[str, object]) -> str:
    soft, hard, pid = (values.get(key) for key in ("soft", "hard", "pid"))
    limit = ResourceLimit(_number(soft), _number(hard))
    return how_to_raise(str(values["limit"]), limit=limit, pid=_number(pid) or 0)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _limit_words(values: Mapping[str, object], what: str, unit: str) -> str:
    form = shown_size if unit == "bytes" else shown_count
    return f"{form(values['used'])} of {form(values['soft'])} {what} is in use ({values['limit']})"


def _address_space(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        _limit_words(values, "of address space", "bytes"),
        "reservations count although they hold no memory; limit memory with a control group "
        "instead; to lift this limit: " + _raise_limit(values),
    )


def _data(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        _limit_words(values, "of private writable memory", "bytes"),
        _raise_limit(values),
    )


def _lock(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        _limit_words(values, "of locked memory", "bytes"),
        "mlock and pinned transfers fail beyond it: " + _raise_limit(values),
    )


def _lock_file(values: Mapping[str, object]) -> tuple[str, str]:
    file = str(values["file"]).rpartition("/")[2]
    return (
        (
            f"{shown_size(values['soft'])} may be locked (RLIMIT_MEMLOCK) and {file} is "
            f"{shown_size(values['size'])}: locking it fails; {shown_size(values['used'])} is locked"
        ),
        "to lock it: " + _raise_limit(values),
    )


def _descriptors(values: Mapping[str, object]) -> tuple[str, str]:
    words = _limit_words(values, "descriptors", "count").replace(" is in use", " are in use")
    return words, _raise_limit(values)


def _tasks(values: Mapping[str, object]) -> tuple[str, str]:
    words = (
        f"{shown_count(values['used'])} of {shown_count(values['soft'])} processes and threads exist "
        f"({values['limit']}); fork and new threads fail with EAGAIN beyond it"
    )
    if values["limit"] == "pids.max":
        return words, f"raise {values['path']}: TasksMax= of a unit, --pids-limit of a container"
    return words, _raise_limit(values)


def _areas(values: Mapping[str, object]) -> tuple[str, str]:
    soft = values["soft"]
    least = max(int(soft) * 4, 262_144) if isinstance(soft, int) else 262_144
    return (
        (
            f"{shown_count(values['used'])} of {shown_count(soft)} memory areas are in use "
            "(vm.max_map_count); mmap and munmap fail with ENOMEM beyond it while RAM is free"
        ),
        f"`sysctl -w vm.max_map_count={least}` on the host, or map larger pieces",
    )


def _commit(values: Mapping[str, object]) -> tuple[str, str]:
    words = f"{shown_size(values['used'])} of the commit limit of {shown_size(values['soft'])} is charged"
    if values["limit"] != "CommitLimit":
        return (
            f"{words} by all processes; Windows refuses more with error 1455 even while RAM is free",
            "enlarge the page file, or commit less",
        )
    return f"{words} (vm.overcommit_memory=2)", "add swap, or raise vm.overcommit_ratio"


def _job(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        _limit_words(values, "of commit charge", "bytes"),
        "raise the memory limit of the job object, which the container or the launcher made",
    )


def _group_limit(values: Mapping[str, object]) -> tuple[str, str]:
    met = values.get("met")
    times = f"; the limit was hit {shown_count(met)} times" if met else ""
    return (
        (
            f"{shown_size(values['used'])} of {shown_size(values['soft'])} is charged to {values['path']}, of "
            f"which only {shown_size(values['cache'])} is file cache that can be dropped{times}"
        ),
        "raise the memory limit of that group, or make the process take less",
    )


def _group_high(values: Mapping[str, object]) -> tuple[str, str]:
    met, pressure = values.get("met"), values.get("pressure")
    waited = (
        "" if pressure is None else f"; its processes wait for memory {pressure:g} % of the time"
    )
    times = f" and was exceeded {shown_count(met)} times" if met else ""
    return (
        (
            f"memory.high of {values['path']} is {shown_size(values['soft'])}{times}: above it the kernel "
            f"slows the process down and kills nothing{waited}"
        ),
        "raise memory.high, or set it to max and rely on memory.max",
    )


def _group_kills(values: Mapping[str, object]) -> tuple[str, str]:
    new = values.get("new")
    count, when = (
        (new, "during the watch") if new else (values["count"], "since the group was created")
    )
    return (
        (
            f"the OOM killer ended {shown_count(count)} process{'' if count == 1 else 'es'} of {values['path']} "
            f"{when}"
        ),
        "raise the memory limit of that group, or give each process less",
    )


def _machine_kills(values: Mapping[str, object]) -> tuple[str, str]:
    count = values["new"]
    return (
        (
            f"the OOM killer ended {shown_count(count)} process{'' if count == 1 else 'es'} of this machine "
            "during the watch, probably this one; `dmesg` names it"
        ),
        "add RAM or swap, or make the processes take less",
    )


def _group_cache(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        (
            f"{shown_size(values['cache'])} of the {shown_size(values['used'])} charged to {values['path']} is "
            "file cache, which the kernel drops before it refuses memory"
        ),
        "",
    )


def _fork(values: Mapping[str, object]) -> tuple[str, str]:
    charge, headroom = values.get("charge"), values.get("headroom")
    refused = isinstance(charge, int) and isinstance(headroom, int) and charge > headroom
    if values["mode"] == 2:
        words = (
            f"fork needs {shown_size(charge)} of commit charge and {shown_size(max(_int(headroom), 0))} is "
            "left (vm.overcommit_memory=2)"
        )
        remedy = "add swap, raise vm.overcommit_ratio, or start children with posix_spawn or vfork"
        return words, remedy if refused else ""
    if refused:
        return (
            (
                f"fork is refused: one area of {shown_size(charge)} is more than all RAM and swap "
                f"({shown_size(headroom)}, vm.overcommit_memory=0)"
            ),
            (
                "reserve that area with PROT_NONE or MAP_NORESERVE, or start children with posix_spawn or "
                "vfork"
            ),
        )
    return (
        (
            f"fork would share {shown_size(values.get('resident'))} of private memory, and copy each page that is written afterwards; it is not refused (vm.overcommit_memory={values['mode']})"
        ),
        "",
    )


def _huge(values: Mapping[str, object]) -> tuple[str, str]:
    words = (
        f"{shown_size(values['huge'])} of {shown_size(values['possible'])} of its memory is in transparent "
        f"huge pages (mode {values['thp_mode']})"
    )
    if values["disabled"]:
        return words, "the process or its parent switched them off (PR_SET_THP_DISABLE)"
    if values["thp_mode"] == "never":
        path = "/sys/kernel/mm/transparent_hugepage/enabled"
        return words, f"`echo madvise > {path}`, and let the program ask with MADV_HUGEPAGE"
    if values["thp_mode"] == "madvise" and not values["asked"]:
        return words, "the program has to ask for them: madvise(MADV_HUGEPAGE)"
    return words, "free memory may be fragmented: look at compact_fail in /proc/vmstat"


def _swapped(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        f"{shown_size(values['swapped'])} is swapped out, beside {shown_size(values['resident'])} in RAM",
        "give the machine or the control group more memory, or lower vm.swappiness",
    )


def _tables(values: Mapping[str, object]) -> tuple[str, str]:
    return (
        f"page tables take {shown_size(values['tables'])} for {shown_size(values['resident'])} of memory",
        "use huge pages, or touch less of what is reserved",
    )


def _growth(values: Mapping[str, object]) -> tuple[str, str]:
    """Return that a counter grows: the whole answer, where nothing else is wrong."""
    counter = str(values["counter"])
    name = COUNTERS[counter] + (" memory" if counter in _KINDS_OF_MEMORY else "")
    verb = "grow" if name.endswith("s") and name != "address space" else "grows"
    rates = [shown_rate(counter, values[key]) for key in ("per_second", "low", "high")]
    words = f"{name} {verb} by {rates[0]} a minute"
    full, limit = values.get("full_in_s"), values.get("limit")
    when = (
        f"{limit} is reached in {format_duration(full * 1e9)} at this rate; "
        if isinstance(full, int | float)
        else ""
    )
    remedy = (
        "it grew through the whole watch: a leak, or a heap that warms up or rises and falls in longer "
        "waves; a watch several times as long tells which"
    )
    return f"{words}; the 99 % interval is {rates[1]} to {rates[2]}", when + remedy


def _children(values: Mapping[str, object]) -> tuple[str, str]:
    count, resident = _int(values["count"]), shown_size(values["resident"])
    largest = f"{printable(str(values['name']))} ({values['largest']})"
    if count == 1:
        words = f"its child {largest} has {resident} resident, which the figures leave out"
    else:
        words = (
            f"its {count} descendants have {resident} resident, which the figures leave out (memory "
            f"that they share counts once for each); the largest is {largest}"
        )
    return words, "inspect that process; --children lists all"


def _stopped(values: Mapping[str, object]) -> tuple[str, str]:
    return "the process is stopped (state T)", f"`kill -CONT {values['pid']}` continues it"


_SENTENCES: Final = {
    "address-space-limit": _address_space,
    "data-limit": _data,
    "lock-limit": _lock,
    "lock-file": _lock_file,
    "descriptor-limit": _descriptors,
    "task-limit": _tasks,
    "area-limit": _areas,
    "commit-limit": _commit,
    "job-limit": _job,
    "group-limit": _group_limit,
    "group-high": _group_high,
    "group-oom-kills": _group_kills,
    "oom-kills": _machine_kills,
    "group-cache": _group_cache,
    "fork": _fork,
    "huge-pages": _huge,
    "swapped": _swapped,
    "page-tables": _tables,
    "growth": _growth,
    "children": _children,
    "stopped": _stopped,
}


def describe_devices(devices: Sequence[ProcessDevice]) -> Iterator[str]:
    """Yield how much of each device is used, and by whom."""
    for device in devices:
        others = ", ".join(
            f"{printable(other.name or 'process')} ({other.pid}) {shown_size(other.used_bytes)}"
            for other in device.others
        )
        yield (
            f"GPU {device.device} {printable(device.name)}: {shown_size(device.own_bytes)} used by this process, "
            f"{shown_size(device.free_bytes)} of {shown_size(device.total_bytes)} free"
            + (f"; also {others}" if others else "")
        )


def describe_check(check: Check) -> str:
    """Return whether a condition holds, with its numbers."""
    condition = check.name.removeprefix("assert ")
    unit = str(check.values.get("unit") or "")
    value, low, high = (_measured(check.values.get(key), unit) for key in ("value", "low", "high"))
    interval = f", 99 % interval {low} to {high}" if low and high else ""
    if check.outcome is CheckOutcome.NOT_DONE:
        return f"{condition}: {_why_not_done(check)}{interval}"
    word = "holds" if check.outcome is CheckOutcome.PASSED else "does not hold"
    return f"{condition}: {word} ({value}{interval})"


def _why_not_done(check: Check) -> str:
    match check.values.get("reason"):
        case "too few samples":
            samples, needed = check.values.get("samples"), check.values.get("needed")
            return f"not done: {needed} samples are needed, and there are {samples}; watch longer"
        case "not measured":
            return "not measured: the process ended before the first sample"
        case "not available":
            return "not done: the counter is not available"
        case reason:
            return str(reason)


def _measured(value: object, unit: str) -> str:
    if not isinstance(value, int | float):
        return ""
    per = "/s" if unit.endswith("/s") else ""
    if unit.startswith("ns"):
        return format_duration(value) + per
    if not unit.startswith("bytes"):
        return f"{value:,.6g}{per}"
    return ("-" if value < 0 else "") + format_size(round(abs(value))) + per


def describe_unavailable(items: Sequence[Unavailable]) -> list[str]:
    """Return what could not be read, and what would let it be read."""
    texts = []
    refused = [item for item in items if item.reason == "permission"]
    if refused:
        texts.append(
            f"{', '.join(item.what for item in refused)}: not available: {refused[0].detail}; run vmtool "
            "as the owner of the process, or as root (in a container with --cap-add SYS_PTRACE); "
            "setuid programs and those of another user namespace need CAP_SYS_PTRACE there"
        )
    for item in items:
        if item.reason == "kernel":
            texts.append(f"{item.what}: not available: this kernel has no {item.detail}")
        elif item.reason != "permission":
            texts.append(f"{item.what}: {item.detail}")
    return texts


def shown_rate(counter: str, per_second: object) -> str:
    """Return what a slope of *counter* makes in a minute."""
    per_minute = per_second * 60 if isinstance(per_second, int | float) else 0
    if counter.endswith("_bytes"):
        return ("-" if per_minute < 0 else "") + format_size(round(abs(per_minute)))
    return f"{per_minute:,.1f}"


def shown_size(value: object) -> str:
    """Return a number of bytes, or that it is not available."""
    return format_size(value) if isinstance(value, int) else "not available"


def shown_count(value: object) -> str:
    """Return a number, or that it is not available."""
    return f"{value:,}" if isinstance(value, int) else "not available"


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
