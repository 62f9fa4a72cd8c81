"""One replay, from a trace to its result: simulated only, or also on real memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from vmtool.errors import CallError
from vmtool.histograms import summarize
from vmtool.kv.packing.shapes_and_block_classes import block_classes, shapes_of
from vmtool.replay.account import Account
from vmtool.replay.pool_store import PoolStore
from vmtool.replay.range_store import RangeStore
from vmtool.replay.simulation import Simulation
from vmtool.results.kv_replay import (
    BadLine,
    Level,
    Operations,
    PrefixCache,
    ReplayAccident,
    ReplayResult,
    Requests,
    TraceFacts,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from vmtool.kv.packing.policies import Paged, StraddleLoses
    from vmtool.kv.traces.trace import Trace
    from vmtool.replay.real_memory import RealMemory
    from vmtool.replay.rules import Plan
    from vmtool.replay.timeline_recorder import Recorder
    from vmtool.results.kv_replay import ReplaySettings

#: More than any trace commits.
_NO_LIMIT: Final = 1 << 100


def _NO_SNAPSHOT(_make: Callable[[], ReplayResult]) -> None:  # noqa: N802 - a constant
    """Make no snapshot."""


def run_replay(
    trace: Trace,
    plan: Plan,
    settings: ReplaySettings,
    *,
    memory: RealMemory | None = None,
    find_budget: bool = False,
    recorder: Recorder | None = None,
    stop: Callable[[], bool] = lambda: False,
    snapshot: Callable[[Callable[[], ReplayResult]], None] = _NO_SNAPSHOT,
) -> ReplayResult:
    """Replay *trace* under *plan*.

    Args:
        trace: Read from its beginning.
        plan: The rules.
        settings: The same, for the result.
        memory: Real memory, on which every commit and release is done too.
        find_budget: Simulate *trace* once more if something was refused, to find the smallest
            budget that refuses nothing.
        recorder: Where measurements go; a new one by default.
        stop: Called before each event; true stops; what was done until then is the result.
        snapshot: Called before each event with a function that makes the result so far, in which
            the tokens of running sequences are missing.

    If the platform refuses real memory, what was done until then is the result, with the accident.

    Raises:
        InputError: If the trace is bad.
        CheckFailedError: If the ledger contradicts itself, or the memory the ledger.
    """
    account = Account(plan.budget_bytes, plan.retain_bytes, memory)
    simulation = Simulation(plan, make_store(plan, account), account, recorder)

    def so_far() -> ReplayResult:
        return _result(trace, plan, settings, simulation, account, memory)

    def stop_or_tell() -> bool:
        snapshot(so_far)
        return stop()

    try:
        complete = simulation.run(trace, stop if snapshot is _NO_SNAPSHOT else stop_or_tell)
    except CallError as error:
        accident = ReplayAccident(None, None, error.cause, error.hint, str(error))
        return replace(so_far(), accident=accident)
    # Before the trace may be read again.
    result = so_far()
    counts = simulation.recorder.counts
    enough = None
    if complete and not plan.prefix_cache:
        if not (counts.refused_admissions or counts.refused_steps or counts.refused_ahead):
            enough = account.peak_committed
        elif find_budget:
            enough = _unrefused_peak(trace, plan, stop)
            complete = enough is not None
    return replace(result, complete=complete, enough_budget_bytes=enough)


def _result(
    trace: Trace,
    plan: Plan,
    settings: ReplaySettings,
    simulation: Simulation,
    account: Account,
    memory: RealMemory | None,
) -> ReplayResult:
    """Return what was found until now, as that of an incomplete replay."""
    found, duration = simulation.recorder, account.now
    counts = found.counts
    return ReplayResult(
        complete=False,
        trace=_facts(trace),
        settings=settings,
        duration_ns=duration,
        events=simulation.events,
        requests=_requests(simulation),
        usage=_usage(account, simulation),
        operations=_operations(account),
        peak_sequences=account.peak_sequences,
        mean_sequences=account.area("sequences") / duration if duration else 0.0,
        waiting=summarize(found.waits.data()),
        first_token=summarize(found.first_tokens.data()),
        end_to_end=summarize(found.ends.data()),
        generated_per_s=counts.decode_steps * 10**9 / duration if duration else 0.0,
        prefilled_per_s=counts.prompt_tokens * 10**9 / duration if duration else 0.0,
        enough_budget_bytes=None,
        prefix_cache=_prefix_cache(account, simulation) if plan.prefix_cache else None,
        timeline=found.points,
        real=None if memory is None else memory.result(),
    )


def _unrefused_peak(trace: Trace, plan: Plan, stop: Callable[[], bool]) -> int | None:
    """Return the smallest budget under which nothing is refused, or ``None`` if interrupted.

    Without a limit nothing is. Any budget that its peak fits into takes the same course, and one
    that it does not fit into refuses the commit that reaches the peak, if none before.
    """
    account = Account(_NO_LIMIT, plan.retain_bytes, None)
    plan = replace(plan, budget_bytes=_NO_LIMIT)
    complete = Simulation(plan, make_store(plan, account), account).run(trace, stop)
    return account.peak_committed if complete else None


def _facts(trace: Trace) -> TraceFacts:
    reading = trace.reading
    return TraceFacts(
        name=trace.name,
        format=trace.format,
        requests=reading.requests,
        lines=reading.lines,
        late=reading.late,
        bad=reading.bad,
        bad_lines=tuple(BadLine(line, problem) for line, problem in reading.bad_lines),
    )


def _requests(simulation: Simulation) -> Requests:
    counts = simulation.recorder.counts
    ended = counts.finished + counts.too_long + counts.too_large + counts.rejected + counts.cut
    return Requests(
        arrived=counts.arrived,
        finished=counts.finished,
        too_long=counts.too_long,
        too_large=counts.too_large,
        rejected=counts.rejected,
        cut=counts.cut,
        unfinished=counts.arrived - ended,
        refused_admissions=counts.refused_admissions,
        refused_steps=counts.refused_steps,
        refused_ahead=counts.refused_ahead,
        stalled_ns=counts.stalled_ns,
        preemptions=counts.preemptions,
        deadlocks=counts.deadlocks,
        recomputed_tokens=counts.recomputed_tokens,
        prompt_tokens=counts.prompt_tokens,
        decode_steps=counts.decode_steps,
    )


def _usage(account: Account, simulation: Simulation) -> Usage:
    duration = account.now or 1
    live = simulation.recorder.live_area - account.area("overlap")
    charged = account.area("committed") + account.area("pooled")

    def level(peak: int, area: int) -> Level:
        return Level(peak, area // duration)

    return Usage(
        live=level(simulation.recorder.peak_live, live),
        committed=level(account.peak_committed, account.area("committed")),
        reserved=level(account.peak_reserved, account.area("reserved")),
        pooled=level(account.peak_pooled, account.area("pooled")),
        charged=level(account.peak_charged, charged),
        saved=level(account.peak_saved, account.area("saved")),
        waste=(charged - live - account.area("kept")) / charged if charged else 0.0,
        fragmentation=(charged - account.area("owned")) / charged if charged else 0.0,
        peak_fragmentation=account.peak_unowned / account.unowned_charged
        if account.unowned_charged
        else 0.0,
        peak_at_ns=account.peak_at,
    )


def _prefix_cache(account: Account, simulation: Simulation) -> PrefixCache:
    counts = simulation.recorder.counts
    tokens = counts.prompt_tokens + counts.saved_tokens
    return PrefixCache(
        kept=Level(account.peak_kept, account.area("kept") // (account.now or 1)),
        hit_rate=counts.saved_tokens / tokens if tokens else 0.0,
        saved_tokens=counts.saved_tokens,
        reused_bytes=account.kept_reused,
        evicted_bytes=account.kept_evicted,
    )


def _operations(account: Account) -> Operations:
    seconds = account.now / 1e9
    return Operations(
        commits=account.commits,
        commit_bytes=account.commit_bytes,
        releases=account.releases,
        release_bytes=account.release_bytes,
        reused_bytes=account.reused_bytes,
        not_committed_bytes=account.saved_total,
        commits_per_s=account.commits / seconds if seconds else 0.0,
        releases_per_s=account.releases / seconds if seconds else 0.0,
    )


def make_store(plan: Plan, account: Account) -> RangeStore | PoolStore:
    """Return the store for the policy of *plan*, which changes *account*."""
    policy = plan.policy
    shapes = shapes_of(policy)
    if shapes is not None:
        return RangeStore(
            shapes,
            policy.granule,
            plan.max_tokens,
            account,
            prefix_tokens=plan.prefix_tokens,
            share=plan.share,
            keep=plan.prefix_cache,
        )
    classes = block_classes(policy) or ()
    granules = cast("Paged | StraddleLoses", policy).granules_for
    return PoolStore(
        classes,
        policy.granule,
        granules,
        account,
        prefix_tokens=plan.prefix_tokens,
        share=plan.share,
        keep=plan.prefix_cache,
    )
