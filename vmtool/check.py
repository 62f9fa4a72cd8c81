"""A first look at a machine: its limits, and the cost, leaks and guards of each kind of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from vmtool.errors import CallError, RefusedError, UnavailableError
from vmtool.json_documents import plain
from vmtool.machine.doctor.examine import examine
from vmtool.machine.doctor.findings import Rating
from vmtool.machine.preflight import check as check_plan
from vmtool.machine.preflight import refuse_unsafe
from vmtool.machine.run_conditions import RunConditionsWatch
from vmtool.memory.backing_by_name import device_ordinal, open_backing
from vmtool.probes.guards import prove_guards
from vmtool.results.check import MachineCheckResult, MemoryCheck
from vmtool.results.check_outcomes import Check, CheckOutcome, all_passed
from vmtool.results.stress import HUGE, Outcome, StressSettings, base_method
from vmtool.stress.demand import demand
from vmtool.stress.matrix import best_granule, cell_of, choose_granules, run_matrix
from vmtool.stress.parent.joined_result import what_ended
from vmtool.stress.parent.run_workers import run_stress
from vmtool.stress.plan import method_names, settle, with_huge
from vmtool.units import KIB, MIB, align_down, align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vmtool.machine.doctor.findings import Finding
    from vmtool.machine.facts import MachineFacts
    from vmtool.memory.backing import VirtualBacking
    from vmtool.results.check_outcomes import Value
    from vmtool.results.stress import StressResult
    from vmtool.stress.safe_memory import Room

#: Committed at once, at most; less where less is safe.
MOST_BYTES: Final = 256 * MIB
_GRANULES: Final = (4 * KIB, 64 * KIB, 2 * MIB)
#: What methods and leaks, granules and guards take, measured on two processors at a load of 3.
_STEPS_NS: Final = (8_800_000_000, 1_700_000_000, 300_000_000)
_STEPS: Final = len(_STEPS_NS)


def run_check(
    facts: MachineFacts,
    backings: Sequence[str],
    *,
    room_of: Callable[[VirtualBacking], Room],
    device_findings: Sequence[Finding],
    seed: int,
    hang_ns: int,
    name_host: bool = True,
    stress_ns: int = 6 * 10**9,
    matrix_ns: int = 4 * 10**9 // 3,
    stopping: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int, int, int], None] = lambda _what, _done, _all, _left_ns: None,
) -> MachineCheckResult:
    """Return what is found on this machine with each of *backings*.

    Args:
        facts: About this machine.
        backings: ``host`` and devices such as ``cuda:0``.
        room_of: Returns what may be committed with a backing.
        device_findings: What the doctor found on the devices.
        seed: Of the workloads.
        hang_ns: A worker that does not move for this long is killed.
        name_host: Whether the machine's name goes into the result.
        stress_ns: How long to measure methods and leaks; with the next, with starting processes
            and with the guards it comes to some fifteen seconds.
        matrix_ns: How long to measure the granules that the first does not use.
        stopping: Called about ten times a second; true ends it early.
        progress: Called with what is done now, the steps done, all, and the nanoseconds that are
            probably left.
    """
    began = perf_counter_ns()
    watch = RunConditionsWatch(name_host=name_host)
    plan = _Plan(facts, room_of, seed, hang_ns, name_host, stress_ns, matrix_ns, stopping)
    findings = tuple(
        f
        for f in (*examine(facts, loaded_later_bytes=0), *device_findings)
        if f.rating is not Rating.OK
    )
    memory: list[MemoryCheck] = []
    for number, backing in enumerate(backings):
        if stopping():
            break

        def show(what: str, step: int, first: int = number * _STEPS) -> None:
            done, steps = first + step, len(backings) * _STEPS
            usual = [_STEPS_NS[n % _STEPS] for n in range(steps)]
            elapsed_ns = perf_counter_ns() - began
            # What is done may have taken longer than usual, as on a busy machine.
            pace = max(elapsed_ns / max(sum(usual[: done + 1]), 1), 1)
            left_ns = max(
                pace * sum(usual) - elapsed_ns, pace * (usual[done] / 10 + sum(usual[done + 1 :]))
            )
            progress(what, done, steps, round(left_ns))

        memory.append(_check_memory(backing, plan, show))
    passed = not any(finding.rating is Rating.PROBLEM for finding in findings)
    return MachineCheckResult(
        wall_ns=perf_counter_ns() - began,
        complete=len(memory) == len(backings) and not stopping(),
        passed=passed and all(all_passed(each.checks) for each in memory),
        safe_bytes=facts.safe_bytes,
        limiting_bound=facts.limiting_bound,
        findings=findings,
        memory=tuple(memory),
        conditions=watch.finish(),
        machine=plain(facts),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the check of each kind of memory shares; see :func:`run_check`."""

    facts: MachineFacts
    room_of: Callable[[VirtualBacking], Room]
    seed: int
    hang_ns: int
    name_host: bool
    stress_ns: int
    matrix_ns: int
    stopping: Callable[[], bool]


def _check_memory(backing: str, plan: _Plan, show: Callable[[str, int], None]) -> MemoryCheck:
    facts, hang_ns, stopping = plan.facts, plan.hang_ns, plan.stopping
    settings = StressSettings(backing=backing, seed=plan.seed, duration_ns=plan.stress_ns)
    methods = with_huge(method_names(backing, "all"), settings, facts.huge_pages.thp_mode)
    device: str | None = None
    try:
        opened = open_backing(backing, method=base_method(methods[0]))
        device, room = opened.device_name, plan.room_of(opened)
        granularity = opened.granularity
        settings = settle(
            replace(settings, methods=methods, capacity_bytes=_capacity(opened, room)), opened, room
        )
        del opened  # a device's context takes memory
        refuse_unsafe(check_plan(demand(settings, room.device_free_bytes), facts))
    except (RefusedError, UnavailableError) as error:
        return MemoryCheck(backing, device, refused=str(error))
    except CallError as error:  # such as no room for a context: the other kinds are still checked
        return MemoryCheck(backing, device, checks=(_call_failed(error),))
    show("methods and leaks", 0)
    stress = run_stress(
        settings,
        facts,
        hang_ns=hang_ns,
        name_host=plan.name_host,
        stopping=stopping,
        progress=lambda _: show("methods and leaks", 0),
    )
    found = MemoryCheck(
        backing,
        device,
        recommendation=stress.recommendation,
        checks=(*stress.checks, *_run_checks(stress)),
        stress=stress,
    )
    if stress.outcome is not Outcome.COMPLETE:
        return found
    best = methods[0] if stress.recommendation is None else stress.recommendation.method
    show("granules", 1)
    # The stress run has measured its own granule already.
    names = (base_method(best), base_method(best) + HUGE)
    cells = [cell_of(stress, name) for name in names if stress.method(name) is not None]
    complete = True
    sizes = {align_up(granule, granularity) for granule in _GRANULES}
    if others := sorted(sizes - {settings.granule_bytes}):
        try:
            matrix = run_matrix(
                replace(settings, methods=(base_method(best),), duration_ns=plan.matrix_ns, runs=1),
                room,
                facts,
                granules=others,
                patterns=("tail",),  # the order that KV caches should have
                hang_ns=hang_ns,
                stopping=stopping,
            )
        except CallError as error:  # such as a lost device: what was found stays
            return replace(found, checks=(*found.checks, _call_failed(error)))
        cells, complete = [*matrix.cells, *cells], matrix.complete
    granules = choose_granules(cells, None)
    found = replace(found, granules=granules, best_granule=best_granule(granules))
    if device_ordinal(backing) is None and complete:
        show("guards", 2)
        guards = prove_guards(backing, (base_method(best),), stopping=stopping)
        found = replace(found, checks=(*found.checks, *guards))
    return found


def _capacity(backing: VirtualBacking, room: Room) -> int:
    granule = max(2 * MIB, backing.granularity)
    return max(align_down(min(MOST_BYTES, room.safe_bytes), granule), granule)


def _call_failed(error: CallError) -> Check:
    values: dict[str, Value] = {"outcome": Outcome.CALL_FAILED.value, "cause": str(error)}
    return Check("run", CheckOutcome.FAILED, values)


def _run_checks(stress: StressResult) -> tuple[Check, ...]:
    """Return what ended the run, as a check of its own."""
    if stress.outcome in {Outcome.COMPLETE, Outcome.INTERRUPTED}:
        return ()
    values: dict[str, Value] = {"outcome": stress.outcome.value, "cause": what_ended(stress)}
    return (Check("run", CheckOutcome.FAILED, values),)
