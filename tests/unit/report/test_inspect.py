"""The report of a look at a process, whole, from fixed numbers."""

from dataclasses import replace

import pytest
from printed import printed

from vmtool.inspect.trends_and_conditions import parse_condition
from vmtool.inspect.watch import InspectOptions, nothing_read
from vmtool.machine import read_facts
from vmtool.machine.nvml import DeviceProcess
from vmtool.report.csv_and_openmetrics import process_metrics, samples_csv
from vmtool.report.inspect import reservation_table, to_text
from vmtool.report.inspect_page import to_html
from vmtool.report.inspect_sentences import describe_finding, headline
from vmtool.results.check_outcomes import Check, CheckOutcome
from vmtool.results.inspect import (
    ChildProcess,
    FindingRating,
    InspectResult,
    LimitUse,
    ProcessCgroup,
    ProcessDevice,
    ProcessFinding,
    ProcessIdentity,
    ProgramStart,
    ReservedRange,
    Sample,
    Trend,
    Unavailable,
    WatchEnding,
)
from vmtool.units import GIB, KIB, MIB

_SECOND = 10**9


def _reservation(base, capacity, committed, **more):
    values = {
        "resident_bytes": committed,
        "huge_bytes": 0,
        "swapped_bytes": 0,
        "pieces": 1,
        "granule_bytes": None,
        "granule_exact": False,
        "permissions": "rw-p",
        "kind": "anonymous",
        "name": "",
    } | more
    return ReservedRange(base=base, capacity_bytes=capacity, committed_bytes=committed, **values)


RESULT = InspectResult(
    process=ProcessIdentity(4242, "llama-server", ("llama-server", "-m", "x.gguf"), "ml"),
    ending=WatchEnding.COMPLETE,
    wall_ns=30 * _SECOND,
    interval_ns=_SECOND,
    samples=tuple(
        Sample(
            at_ns=i * 10 * _SECOND,
            address_space_bytes=80 * GIB,
            charge_bytes=12 * GIB,
            resident_bytes=9 * GIB + i * 64 * MIB,
            anonymous_bytes=8 * GIB + i * 64 * MIB,
            file_bytes=GIB,
            shared_bytes=0,
            swapped_bytes=0,
            page_table_bytes=18 * MIB,
            locked_bytes=0,
            huge_bytes=6 * GIB,
            areas=61_204,
            minor_faults=2_000_000 + i * 16_384,
            major_faults=12,
            threads=34,
            descriptors=57,
            cpu_ns=5 * _SECOND,
            group_bytes=10 * GIB,
            group_used_bytes=9 * GIB,
        )
        for i in range(4)
    ),
    samples_taken=31,
    areas_read_ns=70_000_000,
    areas_age_ns=8 * _SECOND,
    limits=(
        LimitUse("RLIMIT_AS", "address_space_bytes", 80 * GIB, None, None, "process"),
        LimitUse(
            "CommitLimit", "charge_bytes", 30 * GIB, 47 * GIB, None, "machine", "/proc/sys/vm"
        ),
        LimitUse("RLIMIT_MEMLOCK", "locked_bytes", 0, 8 * MIB, 8 * MIB, "process"),
        LimitUse("RLIMIT_NOFILE", "descriptors", 57, 1024, 1 << 20, "process"),
        LimitUse("vm.max_map_count", "areas", 61_204, 65_530, None, "machine", "/proc/sys/vm"),
        LimitUse(
            "memory.max", "group_used_bytes", 9 * GIB, 16 * GIB, None, "group", "/sys/fs/cgroup"
        ),
        LimitUse("pids.max", "group_tasks", 60, 512, None, "group", "/sys/fs/cgroup/pids.max"),
    ),
    group=ProcessCgroup(
        "/sys/fs/cgroup/llm.slice",
        2,
        10 * GIB,
        14 * GIB,
        16 * GIB,
        GIB,
        {"max": 0, "high": 5, "oom_kill": 0},
        0.5,
        0.25,
    ),
    oom_score=420,
    reservations=(
        _reservation(
            *(0x7F0000000000, 64 * GIB, 8 * GIB),
            huge_bytes=6 * GIB,
            pieces=9000,
            granule_bytes=2 * MIB,
            granule_exact=True,
        ),
        _reservation(
            *(0x7E0000000000, 4 * GIB, GIB),
            kind="file",
            name="/models/x.gguf",
            permissions="r--s",
            node_bytes=(768 * MIB, 256 * MIB),
        ),
        _reservation(*(0x7D0000000000, 128 * MIB, 3 * MIB), pieces=4, owner="glibc malloc arena"),
        _reservation(0x7C0000000000, 64 * MIB, 640 * KIB, pieces=11, granule_bytes=64 * KIB),
    ),
    reservations_total=57,
    devices=(),
    children=(),
    findings=(
        ProcessFinding(
            "area-limit",
            FindingRating.PROBLEM,
            {
                "limit": "vm.max_map_count",
                "used": 61_204,
                "soft": 65_530,
                "hard": None,
                "path": "/",
            },
        ),
        ProcessFinding(
            "growth",
            FindingRating.WARNING,
            {
                "counter": "anonymous_bytes",
                "per_second": 6.4 * MIB,
                "low": 6 * MIB,
                "high": 7 * MIB,
            },
        ),
        ProcessFinding("fork", FindingRating.NOTE, {"resident": 8 * GIB, "mode": 0}),
    ),
    trends=(
        Trend("resident_bytes", 6.4 * MIB, 6.0 * MIB, 6.8 * MIB, 31, grows=True),
        Trend(
            "page_table_bytes", 40.0, 20.0, 60.0, 31, False, growth=1200.0, growth_least=float(MIB)
        ),
        Trend("threads", 0.0, -0.1, 0.1, 31, grows=False, growth_most=3.0, growth_least=8.0),
        Trend("huge_bytes", 0.0, -MIB, MIB, 31, False, growth_most=30.0 * MIB, growth_least=MIB),
        Trend("areas", 120.0, 110.0, 130.0, 31, True, "vm.max_map_count", 36.05),
    ),
    checks=(
        Check(
            "assert resident.slope<1MiB/min",
            CheckOutcome.FAILED,
            {
                "value": 6.4 * MIB,
                "low": 6.0 * MIB,
                "high": 6.8 * MIB,
                "limit": MIB / 60,
                "unit": "bytes/s",
            },
        ),
    ),
    huge_possible_bytes=8 * GIB,
    programs=(
        ProgramStart(0, "sh", ("sh", "-c", "exec llama-server")),
        ProgramStart(1_020_000_000, "llama-server", ("llama-server",)),
    ),
    unavailable=(
        Unavailable("devices", "platform", "NVML is not available: nvidia-ml-py is not installed"),
    ),
)


def test_the_report(golden):
    golden("inspect", lambda console: to_text(RESULT, console))


def test_the_report_at_forty_columns(golden):
    golden("inspect-40", lambda console: to_text(RESULT, console), width=40)


def test_the_page_shows_trends_and_the_reservations_by_address():
    page = to_html(RESULT, command=["vmtool", "inspect", "4242"])

    assert "memory areas: vm.max_map_count is reached in 36.0 s at this rate" in page
    at = [page.index(f"{item.base:#x} ") for item in RESULT.reservations]
    assert at == sorted(at, reverse=True)  # as their addresses are, largest first


def test_the_page_has_all_that_the_text_has_of_a_reservation():
    page = to_html(RESULT, command=["vmtool", "inspect", "4242"])

    for words in ("perms", "r--s", "granule", "≤ 64 KiB", "huge", "node 1", "256 MiB"):
        assert words in page
    assert "exec: sh, then llama-server after 1.02 s" in page


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"devices": (ProcessDevice(0, "H200", GIB, GIB, MIB, (DeviceProcess(9, "x", KIB),)),)},
            ["GPU 0 H200: 1 MiB used by this process", "also x (9) 1 KiB"],
        ),
        (
            {"unavailable": (Unavailable("devices", "not listed", "NVML lists none"),)},
            ["devices: NVML lists none"],
        ),
        ({"children": (ChildProcess(9, "engine", 3 * GIB, 0, 77),)}, ["engine", "3 GiB", "77"]),
        ({"ending": WatchEnding.INTERRUPTED}, ["interrupted: the figures cover what was watched"]),
        ({"ending": WatchEnding.PROCESS_ENDED}, ["the process ended: the figures are the last"]),
        (
            {
                "ending": WatchEnding.PROCESS_ENDED,
                "process": replace(RESULT.process, exit_code=137),
            },
            ["the process ended with exit code 137 (SIGKILL): the figures"],
        ),
        ({}, ["53 smaller ones not shown (see --top)"]),
        (
            {"process": replace(RESULT.process, own_pid_namespace=True)},
            ["it runs in another PID namespace, where its PID is different"],
        ),
        (
            {"samples": (replace(RESULT.last, hugetlb_bytes=5 * GIB, pinned_bytes=7 * GIB),)},
            ["reserved huge pages", "5 GiB", "pinned", "7 GiB"],
        ),
    ],
)
def test_the_page_says_all_that_the_text_says(changed, words):
    result = replace(RESULT, **changed)

    text = "\n".join(printed(lambda console: to_text(result, console), 240))
    page = to_html(result, command=["vmtool"])

    for each in words:
        assert each in text
        assert each in page


def _headline(findings=(), trends=(), limits=RESULT.limits):
    return headline(replace(RESULT, findings=findings, trends=trends, limits=limits))


def test_a_leak_heads_the_report():
    problem, growth, note = RESULT.findings
    filling = Trend("address_space_bytes", MIB, MIB, MIB, 31, True, "RLIMIT_AS", 90.0)
    limit = LimitUse("RLIMIT_AS", "address_space_bytes", GIB, 2 * GIB, None, "process")
    grows = "anonymous memory grows by 384 MiB a minute"

    assert _headline([growth, note]) == f"llama-server (4242): {grows}"
    assert _headline([growth, growth]) == f"llama-server (4242): {grows}, and 1 more warning"
    assert _headline([problem, growth]).endswith(f"(vm.max_map_count); {grows}")
    assert _headline([growth], [filling], [limit]) == (
        "llama-server (4242): no problem yet; 1 GiB of 2 GiB of address space (RLIMIT_AS), full "
        f"in 90.0 s at this rate; {grows}"
    )
    of_it = replace(growth, values={**growth.values, "counter": "address_space_bytes"})
    assert "grows" not in _headline([of_it], [filling], [limit])


def test_a_process_that_ended_before_the_first_sample_is_reported():
    who = ProcessIdentity(77, "true", ("true",))
    condition = parse_condition("resident<1GiB")
    result = nothing_read(who, InspectOptions(watch=True, conditions=(condition,)), read_facts())
    result = replace(result, process=replace(who, exit_code=0))

    assert printed(lambda console: to_text(result, console), 100) == [
        "true (77): nothing was measured: it ended before the first sample, with exit code 0",
        "",
        "resident<1GiB: not measured: the process ended before the first sample",
    ]
    assert "nothing was measured" in to_html(result, command=["vmtool", "inspect"])
    assert samples_csv(result).count("\n") == 1
    assert process_metrics(result.process, result.last, result.limits) == "# EOF\n"


def test_names_that_steer_a_terminal_are_spelled_out_everywhere():
    name = "ev\x1b[31mil\n\u202ex"
    findings = [
        ProcessFinding(
            "children",
            FindingRating.NOTE,
            {"count": 2, "resident": GIB, "largest": 9, "name": name},
        )
    ]
    result = replace(
        RESULT,
        process=ProcessIdentity(77, name, (name, name), name),
        programs=(ProgramStart(0, name), ProgramStart(1, name)),
        findings=findings,
        children=(ChildProcess(9, name, GIB, 0, 1),),
        devices=(ProcessDevice(0, name, GIB, GIB, GIB, (DeviceProcess(9, name, GIB),)),),
        reservations=tuple(
            replace(RESULT.reservations[0], name=name, kind=kind)
            for kind in ("anonymous", "file", "shared", "device")
        ),
        unavailable=(Unavailable(name, "platform", name),),
    )
    text = "\n".join(printed(lambda console: to_text(result, console), 240))
    page = to_html(result, command=["vmtool", "inspect", name])

    assert "\nx" not in text  # a line break of the name
    for each in (text, page, process_metrics(result.process, result.last, result.limits)):
        assert "\\x1b" in each
        assert not {"\x1b", "\u202e"} & set(each)


def test_the_table_has_a_row_for_each_sample():
    rows = samples_csv(RESULT).splitlines()

    assert len(rows) == 5
    assert rows[1].split(",")[1] == str(80 * GIB)


def test_metrics_name_the_process_and_end_as_openmetrics_wants():
    text = process_metrics(RESULT.process, RESULT.last, RESULT.limits)

    assert text.endswith("# EOF\n")
    assert 'vmtool_process_areas{pid="4242",name="llama-server"} 61204' in text
    assert 'limit="vm.max_map_count"} 65530' in text
    assert text.count("# TYPE vmtool_process_limit gauge") == 1


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        (
            "fork",
            {"charge": 12 * GIB, "headroom": 4 * GIB, "mode": 2},
            "fork needs 12 GiB of commit charge and 4 GiB is left",
        ),
        (
            "task-limit",
            {"limit": "pids.max", "used": 63, "soft": 64, "hard": None, "path": "/sys/fs/cgroup/a"},
            "63 of 64 processes and threads exist (pids.max)",
        ),
        (
            "group-high",
            {"path": "/g", "used": GIB, "soft": GIB, "met": 5000, "pressure": 61.5},
            (
                "above it the kernel slows the process down and kills nothing; its processes wait for "
                "memory 61.5 % of the time"
            ),
        ),
        (
            "group-cache",
            {"path": "/g", "used": 900 * MIB, "cache": 600 * MIB, "soft": GIB},
            "600 MiB of the 900 MiB charged to /g is file cache",
        ),
        (
            "children",
            {"count": 1, "resident": GIB, "largest": 9, "name": "node"},
            "its child node (9) has 1 GiB resident, which the figures leave out",
        ),
        (
            "children",
            {"count": 3, "resident": GIB, "largest": 9, "name": "node"},
            "its 3 descendants have 1 GiB resident, which the figures leave out (memory that they share",
        ),
        (
            "oom-kills",
            {"new": 1},
            "the OOM killer ended 1 process of this machine during the watch, probably this one",
        ),
        (
            "huge-pages",
            {"huge": 0, "possible": GIB, "thp_mode": "madvise", "asked": 0, "disabled": 0},
            "0 B of 1 GiB of its memory is in transparent huge pages (mode madvise)",
        ),
    ],
)
def test_each_finding_is_a_sentence_with_its_numbers(name, values, words):
    message, remedy = describe_finding(ProcessFinding(name, FindingRating.PROBLEM, values))

    assert words in message
    assert remedy or name == "group-cache"


def test_what_is_resident_is_not_shown_as_nothing_where_it_was_not_read():
    first, *others = RESULT.reservations
    partly = replace(RESULT, reservations=(replace(first, resident_bytes=None), *others))
    text = "\n".join(printed(lambda console: to_text(partly, console), 240))
    assert text.count("not read") == 1
    page = to_html(partly, command=["vmtool", "inspect", "1"])
    assert "committed, resident not read</p>" in page
    assert '<rect class="unknown"' in page
    assert '<rect class="unknown"' not in to_html(RESULT, command=["vmtool", "inspect", "1"])
    nowhere = [replace(item, resident_bytes=None) for item in RESULT.reservations]
    assert "resident" not in reservation_table(nowhere)[0]
