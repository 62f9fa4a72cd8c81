"""The control group of another process, and what the findings make of it."""

import sys
from dataclasses import replace

import pytest

if sys.platform != "linux":
    pytest.skip("control groups are Linux's", allow_module_level=True)

from vmtool.inspect.areas_and_reservations import MemoryArea, parse_smaps
from vmtool.inspect.findings import find
from vmtool.inspect.linux_process import describe_group
from vmtool.machine import read_facts
from vmtool.machine.cgroups import read_cgroups
from vmtool.results.inspect import (
    ChildProcess,
    FindingRating,
    LimitUse,
    ProcessIdentity,
    Sample,
    Trend,
)
from vmtool.units import GIB, MIB


class _Files:
    """Files by path."""

    def __init__(self, files):
        self._files = files

    def read(self, path):
        return self._files.get(path)

    def names(self, path):
        return tuple(
            sorted({name[len(path) + 1 :] for name in self._files if name.startswith(path)})
        )

    def exists(self, path):
        return path in self._files


_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
_DIRECTORY = "/sys/fs/cgroup/llm.slice"


def _group(**files):
    base = {
        "/proc/77/cgroup": "0::/llm.slice\n",
        "/proc/self/mountinfo": _MOUNT,
        f"{_DIRECTORY}/memory.max": "max",
        f"{_DIRECTORY}/memory.current": str(900 * MIB),
    }
    named = {f"{_DIRECTORY}/{name.replace('__', '.')}": text for name, text in files.items()}
    return describe_group(read_cgroups(_Files(base | named), "77"))


def _find(group, counters=None, limits=(), **options):
    sample = counters or Sample(0, resident_bytes=GIB)
    found = find(sample, limits, group, read_facts(), **options)
    return {finding.name: finding for finding in found}


def test_page_cache_in_a_container_is_reported_as_reclaimable():
    # ollama/ollama#11497: "the container uses all its memory", and most of it is a model's file.
    group = _group(
        memory__max=str(1000 * MIB),
        memory__stat=f"file {800 * MIB}\ninactive_file {500 * MIB}\nactive_file {300 * MIB}\n",
    )

    found = _find(group)

    assert group.reclaimable_bytes == 800 * MIB
    assert found["group-cache"].rating is FindingRating.NOTE
    assert "group-limit" not in found


def test_a_group_that_is_full_of_anonymous_memory_is_a_problem():
    found = _find(_group(memory__max=str(950 * MIB), memory__stat="file 0\n"))

    assert found["group-limit"].rating is FindingRating.PROBLEM


def test_above_memory_high_the_process_is_slowed_down_and_not_killed():
    # kubernetes/enhancements#2570: throttled at memory.high, reported as a hang.
    group = _group(
        memory__high=str(900 * MIB),
        memory__events="low 0\nhigh 51234\nmax 0\noom 0\noom_kill 0\n",
        memory__pressure="some avg10=61.50 avg60=1.00 avg300=0.00 total=1\n"
        "full avg10=60.00 avg60=1.00 avg300=0.00 total=1\n",
    )

    found = _find(group)

    assert found["group-high"].rating is FindingRating.PROBLEM
    assert found["group-high"].values["met"] == 51234
    assert found["group-high"].values["pressure"] == 61.5


@pytest.mark.parametrize(
    ("before", "rating"),
    [(2, FindingRating.PROBLEM), (3, FindingRating.NOTE), (None, FindingRating.NOTE)],
)
def test_kills_in_the_group_are_a_problem_only_while_it_is_watched(before, rating):
    group, earlier = (
        count and _group(memory__events=f"high 0\nmax 9\noom 1\noom_kill {count}\n")
        for count in (3, before)
    )

    kills = _find(group, group_before=earlier)["group-oom-kills"]

    assert (kills.rating, kills.values["count"]) == (rating, 3)
    assert kills.values["new"] == (1 if before == 2 else 0)


def test_threads_that_are_refused_at_pids_max():
    # chroma-core/chroma#1682: "can't start new thread".
    group = _group(pids__max="64", pids__current="63")
    limit = LimitUse("pids.max", "group_tasks", group.pids, group.pids_max, None, "group", "x")

    found = _find(group, limits=[limit])

    assert (group.pids, group.pids_max, group.pids_path) == (63, 64, _DIRECTORY)
    assert found["task-limit"].rating is FindingRating.PROBLEM


def test_a_group_that_limits_tasks_only_is_shown():
    # Version 2: "+pids" in cgroup.subtree_control, and no "+memory".
    files = {
        "/proc/77/cgroup": "0::/llm.slice\n",
        "/proc/self/mountinfo": _MOUNT,
        f"{_DIRECTORY}/pids.max": "16",
        f"{_DIRECTORY}/pids.current": "16",
    }

    group = describe_group(read_cgroups(_Files(files), "77"))

    assert (group.pids, group.pids_max, group.current_bytes) == (16, 16, None)


def _fork(mode, areas=None, limits=()):
    """Return what is found about a fork of a process with 12 GiB of charge, on 8 GiB of RAM.

    When the watch began, its charge fitted below the commit limit.
    """
    facts = read_facts()
    facts = replace(
        facts,
        commit=replace(facts.commit, mode=mode, limit_bytes=99 * GIB, charge_bytes=0),
        memory=replace(facts.memory, total_bytes=8 * GIB, swap_total_bytes=0),
    )
    counters = Sample(0, charge_bytes=12 * GIB, resident_bytes=3 * GIB, anonymous_bytes=2 * GIB)
    (fork,) = [
        each for each in find(counters, limits, None, facts, areas=areas) if each.name == "fork"
    ]
    return fork


def _area(gib, permissions="rw-p", charged=True):
    return MemoryArea(GIB, (1 + gib) * GIB, permissions, 0, "", 0, charged=charged)


@pytest.mark.parametrize(
    ("left", "areas", "charge"),
    [
        (1, None, 12),
        (100, None, 12),
        (4, [_area(9, charged=False)], 3),  # mapped in another mode, with MAP_NORESERVE
        (15, [_area(4, "---p")], 16),  # was writable
    ],
)
def test_in_mode_2_a_fork_has_to_fit_below_the_commit_limit_of_now(left, areas, charge):
    # docker-library/redis#346: "Can't save in background: fork: Cannot allocate memory".
    used = 20 * GIB
    limit = LimitUse("CommitLimit", "charge_bytes", used, used + left * GIB, None, "machine")

    fork = _fork(2, areas, [limit])

    assert fork.rating is (FindingRating.PROBLEM if charge > left else FindingRating.NOTE)
    assert fork.values == {"charge": charge * GIB, "headroom": left * GIB, "mode": 2}


@pytest.mark.parametrize("mode", [0, 1])
def test_an_area_that_is_not_charged_refuses_no_fork(mode):
    # vmtool's own buffer with the method advise: writable, and mapped with MAP_NORESERVE.
    areas = [_area(1024, charged=False), _area(1024, "---p", charged=False), _area(2)]

    fork = _fork(mode, areas)

    assert fork.rating is FindingRating.NOTE
    assert fork.values == {"resident": 2 * GIB, "mode": mode}


@pytest.mark.parametrize("permissions", ["rw-p", "---p"])
def test_in_mode_0_one_charged_area_above_all_memory_refuses_a_fork(permissions):
    fork = _fork(0, [_area(1024, charged=False), _area(9, permissions), _area(2)])

    assert fork.rating is FindingRating.PROBLEM
    assert fork.values == {"charge": 9 * GIB, "headroom": 8 * GIB, "mode": 0}


@pytest.mark.parametrize(
    ("counter", "more", "found"),
    [
        ("anonymous_bytes", {}, "anonymous_bytes"),
        ("resident_bytes", {}, "resident_bytes"),  # macOS and Windows have no kinds
        ("resident_bytes", {"anonymous_bytes": GIB}, None),  # pages of a file that it reads
        ("file_bytes", {}, None),
        ("group_bytes", {}, None),  # others are in the group as well
        ("descriptors", {}, "descriptors"),
    ],
)
def test_what_grows_like_a_leak_is_the_first_warning(counter, more, found):
    trends = [
        Trend(counter, MIB, MIB, MIB, 9, grows=True),
        Trend("threads", 1, 1, 1, 9, grows=False),
    ]
    sample = Sample(0, resident_bytes=GIB, swapped_bytes=GIB, **more)

    findings = find(sample, (), None, read_facts(), trends=trends)

    growth = [each.values["counter"] for each in findings if each.name == "growth"]
    assert growth == ([found] if found else [])
    if found:
        assert findings[0].name == "growth"


@pytest.mark.parametrize("kind", [b"Anon", b"ShmemPmd", b"FilePmd"])
def test_memory_in_huge_pages_of_any_kind_is_not_warned_about(kind):
    field = kind + (b"HugePages" if kind == b"Anon" else b"Mapped")
    size = b"1048576 kB"
    text = b"\n".join(
        (
            b"7f0000000000-7f0040000000 rw-s 00000000 00:01 2 /memfd:weights (deleted)",
            b"Rss: " + size,
            field + b": " + size,
            b"THPeligible:           1",
            b"VmFlags: rd wr sh mr mw me ms sd\n",
        )
    )
    areas = parse_smaps(text)

    found = find(Sample(0, resident_bytes=GIB), (), None, read_facts(), areas=areas)

    assert areas[0].huge == GIB
    assert "huge-pages" not in {each.name for each in found}


@pytest.mark.parametrize(("resident", "named"), [(2 * GIB, True), (GIB // 2, False)])
def test_a_launcher_is_distinguished_from_the_engine_that_it_started(resident, named):
    child = ChildProcess(78, "engine", resident, 0, 1)

    found = find(Sample(0, resident_bytes=GIB), (), None, read_facts(), children=[child])

    assert [each.values["largest"] for each in found if each.name == "children"] == [78] * named


_MODEL = MemoryArea(GIB, 5 * GIB, "r--s", 7, "/models/x.gguf", GIB)
_LIBRARY = MemoryArea(8 * GIB, 9 * GIB, "r-xp", 8, "/lib/libcublas.so", GIB)


@pytest.mark.parametrize(
    ("command", "areas", "rating"),
    [
        (("llama-server", "--mlock"), [_MODEL], FindingRating.WARNING),
        (("llama-server",), [_MODEL], FindingRating.NOTE),
        (("llama-server", "--mlock"), [_LIBRARY], None),
    ],
)
def test_a_model_that_cannot_be_locked_is_named(command, areas, rating):
    # ggml-org/llama.cpp#4072: "failed to mlock ... (after previously locking 0 bytes)".
    limit = LimitUse("RLIMIT_MEMLOCK", "locked_bytes", 0, 8 * MIB, 8 * MIB, "process")

    found = _find(None, limits=[limit], areas=areas, process=ProcessIdentity(77, "x", command))

    assert (found["lock-file"].rating if rating else found.get("lock-file")) == rating
