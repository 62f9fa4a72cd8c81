"""The control group of another process, and what the findings make of it."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("control groups are Linux's", allow_module_level=True)

from vmtool.inspect.areas import MemoryArea
from vmtool.inspect.findings import find
from vmtool.inspect.linux import describe_group
from vmtool.machine import read_facts
from vmtool.machine.cgroup import read_cgroups
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


def test_page_cache_in_a_container_is_said_to_be_reclaimable():
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


def test_processes_of_the_group_that_were_killed_are_a_problem():
    found = _find(_group(memory__events="high 0\nmax 9\noom 1\noom_kill 1\n"))

    assert found["group-oom-kills"].values["count"] == 1


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


def _facts_in_mode(mode, headroom):
    from dataclasses import replace

    facts = read_facts()
    commit = replace(facts.commit, mode=mode, limit_bytes=headroom, charge_bytes=0)
    return replace(facts, commit=commit)


@pytest.mark.parametrize(
    ("mode", "headroom", "refused"), [(2, GIB, True), (2, 100 * GIB, False), (1, GIB, False)]
)
def test_fork_is_refused_where_its_charge_does_not_fit(mode, headroom, refused):
    # docker-library/redis#346: "Can't save in background: fork: Cannot allocate memory".
    counters = Sample(0, charge_bytes=12 * GIB, resident_bytes=GIB)

    found = find(counters, (), None, _facts_in_mode(mode, headroom))

    forks = [finding for finding in found if finding.name == "fork"]
    assert [finding.rating for finding in forks] == [
        FindingRating.PROBLEM if refused else FindingRating.NOTE
    ]


def test_the_group_of_a_real_process_is_that_of_the_kernel():
    import os

    from vmtool.machine.files import KernelFiles

    mine = read_cgroups(KernelFiles())
    same = read_cgroups(KernelFiles(), str(os.getpid()))

    assert [level.path for level in mine.levels] == [level.path for level in same.levels]


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


@pytest.mark.parametrize(("resident", "named"), [(2 * GIB, True), (GIB // 2, False)])
def test_a_launcher_is_told_from_the_engine_that_it_started(resident, named):
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
