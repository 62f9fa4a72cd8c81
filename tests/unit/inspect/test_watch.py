"""A watch over an invented process: when it reads what, and what it keeps."""

import itertools

import pytest

from vmtool.inspect.areas_and_reservations import Detail, MemoryArea, ProcessGoneError
from vmtool.inspect.trends_and_conditions import parse_condition
from vmtool.inspect.watch import InspectOptions, Watch, nothing_read
from vmtool.machine import read_facts
from vmtool.results.check_outcomes import CheckOutcome
from vmtool.results.inspect import LimitUse, ProcessCgroup, ProcessIdentity, Sample, WatchEnding
from vmtool.units import GIB, MIB


class _Process:
    """A process whose every call may be the one during which something happens to it.

    Args:
        during: The name of the call; ``None`` is none.
        event: Called once, with this process, when that is called after *samples* samples.
        samples: How many samples come first.
    """

    def __init__(self, during=None, event=None, samples=0):
        self.pid = 77
        self.unavailable = {}
        self.runs = "launcher"
        self.readable = True
        self.taken = 0
        self.path, self.kills = "/g", 0
        self._pending = (during, event, samples)

    def close(self):
        pass

    def ends(self):
        raise ProcessGoneError

    def is_killed(self):  # the kernel counts first
        self.kills += 1
        self.ends()

    def moves(self):
        self.path, self.kills = "/other", 5
        self._pending = ("counters", _Process.is_killed, 90)

    def execs(self):
        self.runs = "engine"

    def execs_unreadable(self):  # a setuid program
        self.runs, self.readable = "engine", False

    def end_during(self, call):
        self._pending = (call, _Process.ends, 0)

    def _note(self, call):
        during, event, samples = self._pending
        if call == during and self.taken >= samples:
            self._pending = (None, None, 0)
            event(self)

    def counters(self, at_ns):
        self._note("counters")
        self.taken += 1
        resident = (GIB if self.runs == "launcher" else MIB) + self.taken
        return Sample(at_ns, resident_bytes=resident, threads=self.taken)

    def areas(self):
        self._note("areas")
        if not self.readable:
            return None
        size = GIB if self.runs == "launcher" else MIB
        return Detail((MemoryArea(GIB, GIB + size, "rw-p", 0, ""),), 1, 1, complete=False)

    def count_areas(self):
        return 1

    def areas_with_residency(self, *, nodes=False):
        self._note("areas_with_residency")
        detail = self.areas()
        if detail is None:
            return None
        areas = tuple(area._replace(resident=4096) for area in detail.areas)
        return Detail(areas, 1, 1, complete=True)

    def huge_bytes(self):
        self._note("huge_bytes")
        return 0

    def program(self):
        self._note("program")
        return (self.runs,) if self.readable else None

    def group(self):
        self._note("group")
        return self._group(pids=0)

    def _group(self, pids):
        events = {"oom_kill": self.kills}
        return ProcessCgroup(
            self.path, 2, MIB, events=events, pids=pids, pids_max=9, pids_path=self.path
        )

    def refreshed(self, group):
        self._note("refreshed")
        return self._group(pids=self.taken)

    def machine_kills(self):
        return self.kills

    def limits(self, counters, group):
        self._note("limits")
        return (
            LimitUse("pids.max", "group_tasks", group.pids, group.pids_max, None, "group"),
            LimitUse("RLIMIT_NPROC", "user_tasks", self.taken, 9, 9, "user"),
            LimitUse("CommitLimit", "charge_bytes", self.taken * GIB, 9 * GIB, None, "machine"),
        )

    def identity(self):
        self._note("identity")
        return ProcessIdentity(self.pid, self.runs, (self.runs,))

    def children(self):
        self._note("children")
        return ()

    def oom_score(self):
        self._note("oom_score")
        return 7

    def state(self):
        self._note("state")
        return "T" if self.taken == 9 else "S"

    def huge_disabled(self):
        self._note("huge_disabled")
        return False

    def stack_bytes(self):
        self._note("stack_bytes")


_BEFORE = ("program", "counters")
_READ_EACH = ("refreshed", "limits", "state", "oom_score", "huge_disabled")
_READ_ONCE = ("areas", "areas_with_residency", "huge_bytes", "group", "children")


@pytest.fixture
def watched(clock):
    """Return a function that watches a process for some seconds, or until it ends."""

    def take(process, samples, conditions=()):
        options = InspectOptions(watch=True, conditions=tuple(map(parse_condition, conditions)))
        watch = Watch(process, options, clock)
        ending = WatchEnding.COMPLETE
        try:
            for _ in range(samples):
                watch.sample()
                clock.ns += 10**9
        except ProcessGoneError:
            ending = WatchEnding.PROCESS_ENDED
        return watch.result(ending, read_facts())

    return take


@pytest.mark.parametrize("call", [*_BEFORE, *_READ_EACH])
def test_a_process_that_ends_during_a_sample_leaves_what_was_had(watched, call):
    result = watched(_Process(call, _Process.ends, samples=2), 9)

    assert result.ending is WatchEnding.PROCESS_ENDED
    assert result.samples_taken >= 2
    assert result.last.resident_bytes
    assert result.reservations[0].resident_bytes == 4096


def _kills(result):
    return {each.name: each.values["new"] for each in result.findings if "oom" in each.name}


def test_a_kill_for_lack_of_memory_is_counted_after_the_last_sample(watched):
    result = watched(_Process("counters", _Process.is_killed, samples=2), 9)

    assert _kills(result) == {"group-oom-kills": 1}


def test_kills_before_the_process_came_to_its_group_are_none_of_the_watch(watched):
    result = watched(_Process("counters", _Process.moves, samples=2), 99)

    assert result.ending is WatchEnding.PROCESS_ENDED
    assert _kills(result) == {"group-oom-kills": 1}


@pytest.mark.parametrize(("code", "found"), [(None, 1), (137, 1), (0, 0), (1, 0)])
def test_a_kill_that_no_group_counted_is_one_of_the_machine(clock, code, found):
    process = _Process()
    process.group = lambda: None
    process.limits = lambda _counters, _group: ()
    watch = Watch(process, InspectOptions(watch=True), clock)
    facts = read_facts()
    process.kills = (facts.memory.oom_kills or 0) + 1
    watch.sample()

    result = watch.result(WatchEnding.PROCESS_ENDED, facts, exit_code=code)

    assert _kills(result) == ({"oom-kills": 1} if found else {})


@pytest.mark.parametrize("call", [*_BEFORE, "identity", "stack_bytes"])
def test_a_process_that_ends_before_its_first_counters_leaves_nothing(watched, call):
    with pytest.raises(ProcessGoneError):
        watched(_Process(call, _Process.ends), 9)


@pytest.mark.parametrize("call", [*_READ_ONCE, *_READ_EACH])
def test_a_process_that_ends_during_the_first_sample_leaves_its_counters(watched, call):
    result = watched(_Process(call, _Process.ends), 9)

    assert result.ending is WatchEnding.PROCESS_ENDED
    assert (result.samples_taken, result.process.name) == (1, "launcher")
    assert result.last.resident_bytes > GIB


@pytest.mark.parametrize("call", [*_BEFORE, *_READ_EACH])
def test_an_exec_is_followed_and_no_figure_is_of_both_programs(watched, call):
    result = watched(_Process(call, _Process.execs, samples=3), 20)

    assert [program.name for program in result.programs] == ["launcher", "engine"]
    assert result.ending is WatchEnding.COMPLETE
    assert (result.process.name, result.process.command) == ("engine", ("engine",))
    assert result.reservations[0].capacity_bytes == MIB
    moment = result.programs[1].at_ns
    for sample in result.samples:
        assert (sample.resident_bytes > GIB) == (sample.at_ns < moment)
    (resident,) = [trend for trend in result.trends if trend.counter == "resident_bytes"]
    assert resident.low > 0  # across the exec it falls
    assert resident.samples == sum(sample.at_ns >= moment for sample in result.samples)


@pytest.mark.parametrize("call", [*_BEFORE, *_READ_EACH])
def test_nothing_of_a_program_is_left_after_an_exec_into_one_that_may_not_be_read(watched, call):
    result = watched(_Process(call, _Process.execs_unreadable, samples=30), 33)

    assert [program.name for program in result.programs] == ["launcher", "engine"]
    assert (result.reservations, result.huge_possible_bytes, result.last.areas) == ((), None, None)
    assert result.trends == ()  # too few samples of the new one


def test_a_program_that_may_not_be_read_from_the_start_is_one_program(watched):
    process = _Process(None)
    process.execs_unreadable()

    assert len(watched(process, 9).programs) == 1


@pytest.mark.parametrize("call", [*_BEFORE, *_READ_ONCE, *_READ_EACH])
def test_an_exec_during_the_first_sample_begins_it_anew(watched, call):
    result = watched(_Process(call, _Process.execs), 3)

    assert [program.name for program in result.programs] == ["engine"]
    assert all(sample.resident_bytes < GIB for sample in result.samples)
    assert result.reservations[0].capacity_bytes == MIB


def test_a_new_program_that_ends_at_once_leaves_the_figures_of_the_one_before(watched):
    def exec_and_end(process):
        process.execs()
        process.end_during("counters")

    result = watched(_Process("program", exec_and_end, samples=4), 20)

    assert result.ending is WatchEnding.PROCESS_ENDED
    assert result.process.name == "launcher"
    assert result.reservations[0].capacity_bytes == GIB


@pytest.mark.parametrize("tries", [1, 40])
def test_a_process_that_only_execs_is_still_sampled(watched, tries):
    process = _Process()
    marks = itertools.count()
    process.program = lambda: (next(marks),)

    assert watched(process, tries).samples_taken == tries


def test_a_condition_on_a_slope_begins_anew_after_an_exec_and_a_peak_does_not(watched):
    conditions = ("resident.slope<1GiB/h", "resident.max<1GiB", "resident<1GiB")

    result = watched(_Process("program", _Process.execs, samples=30), 33, conditions)

    assert [check.values.get("reason") for check in result.checks] == [
        "too few samples",
        None,
        None,
    ]
    assert [check.outcome for check in result.checks] == [
        CheckOutcome.NOT_DONE,
        CheckOutcome.FAILED,
        CheckOutcome.PASSED,
    ]


def test_what_all_processes_use_of_a_limit_is_as_new_as_the_last_sample(watched):
    result = watched(_Process(), 9)

    used = {limit.name: limit.used for limit in result.limits}
    assert used == {"pids.max": 9, "RLIMIT_NPROC": 9, "CommitLimit": 9 * GIB}
    assert result.group.pids == 9
    assert "stopped" in {finding.name for finding in result.findings}


def test_what_is_read_seldom_has_one_point_for_each_reading(clock):
    process = _Process()
    process.huge_bytes = lambda: process.taken * MIB
    watch = Watch(process, InspectOptions(watch=True, detail_interval_ns=61 * 10**9), clock)
    for _ in range(9000):  # more than are kept
        watch.sample()
        clock.ns += 10**9
    result = watch.result(WatchEnding.COMPLETE, read_facts())

    (trend,) = [each for each in result.trends if each.counter == "huge_bytes"]

    assert len(result.samples) < 4100
    assert trend.samples == 148
    assert trend.per_second == pytest.approx(MIB, rel=0.01)


def test_limits_that_take_long_to_read_are_read_less_often(watched, clock):
    process, reads = _Process(), []
    limits = process.limits

    def slow_limits(counters, group):
        reads.append(clock.ns)
        clock.ns += 10_000_000  # thousands of processes
        return limits(counters, group)

    process.limits = slow_limits
    watched(process, 60)

    assert len(reads) == 12


def test_a_condition_on_a_process_that_was_never_read_fails():
    condition = parse_condition("resident<1GiB")
    options = InspectOptions(watch=True, conditions=(condition,))

    result = nothing_read(ProcessIdentity(77, "true", ("true",)), options, read_facts())

    assert result.samples_taken == 0
    assert result.last.resident_bytes is None
    assert result.checks[0].outcome is CheckOutcome.NOT_DONE
    assert result.checks[0].values["reason"] == "not measured"
