"""A group that stays above its memory.high is noticed, and the effect on its tasks is reported."""

import pytest

from vmtool.machine.cgroups import CgroupLevel
from vmtool.machine.memory_high import HighWatch
from vmtool.units import MIB

SECOND = 10**9


@pytest.fixture
def group(tmp_path):
    """Return a function that sets what a group says; it begins far below its memory.high."""

    def say(used, hits, high=150 * MIB):
        for name, text in (
            ("current", used),
            ("high", high),
            ("max", "max"),
            ("events", f"low 0\nhigh {hits}\nmax 0\noom 0\noom_kill 0"),
        ):
            (tmp_path / f"memory.{name}").write_text(f"{text}\n", encoding="ascii")

    say(20 * MIB, 10)
    return say


@pytest.fixture
def watch(group, tmp_path):
    level = CgroupLevel(str(tmp_path), 2, high_bytes=150 * MIB, used_bytes=20 * MIB, high_hits=10)
    watch = HighWatch([level])
    yield watch
    watch.close()


def test_the_time_above_is_counted_without_a_break(group, watch):
    assert watch.slowed_ns(0) == 0
    for second, hits in enumerate(range(11, 21)):
        group(160 * MIB, hits)
        assert watch.slowed_ns(second * SECOND) == second * SECOND
    group(149 * MIB, 21)  # the kernel could reclaim enough
    assert watch.slowed_ns(10 * SECOND) == 0
    group(160 * MIB, 22)
    assert watch.slowed_ns(11 * SECOND) == 0
    assert watch.slowed_ns(12 * SECOND) == SECOND


def test_a_group_without_delays_causes_no_finding(group, watch):
    """A task is delayed by 2 s at most, after which the kernel counts again."""
    group(160 * MIB, 11)
    assert [watch.slowed_ns(at * SECOND) for at in (0, 4, 6, 8)] == [0, 4 * SECOND, 0, 0]


def test_a_limit_that_was_raised_is_noticed(group, watch):
    group(160 * MIB, 11)
    assert watch.slowed_ns(0) == watch.slowed_ns(SECOND) - SECOND == 0
    group(160 * MIB, 12, high="max")
    assert watch.slowed_ns(2 * SECOND) == 0


def test_the_reason_has_the_use_before_the_workers_were_ended(group, watch):
    group(163 * MIB, 510)
    watch.slowed_ns(0)
    group(20 * MIB, 510)
    found = watch.diagnose()
    assert found.kind == "cgroup-throttled"
    assert "is above memory.high, 150 MiB, with 163 MiB in use" in found.cause
    assert "the kernel slowed its tasks down 500 times" in found.cause
    assert "raise memory.high" in found.remedy


def test_groups_without_a_memory_high_or_that_cannot_be_read_are_left_alone(tmp_path):
    gone = CgroupLevel(str(tmp_path / "gone"), 2, high_bytes=MIB)
    watch = HighWatch([CgroupLevel(str(tmp_path), 2), gone])
    assert watch.slowed_ns(0) == 0
    watch.close()
