"""The results of ``vmtool kv-replay``: of one replay, and of a comparison."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping  # noqa: TC003 - decoding reads the types
from dataclasses import dataclass

from vmtool.histograms import HistogramData, Summary  # noqa: TC001 - decoding reads the types
from vmtool.machine.facts import MachineFacts  # noqa: TC001 - decoding reads the types
from vmtool.machine.run_conditions import RunConditions  # noqa: TC001 - likewise


class OnRefusal(enum.Enum):
    """What happens when the budget refuses memory to a sequence that decodes."""

    WAIT = "wait"
    REJECT = "reject"
    PREEMPT = "preempt"


@dataclass(frozen=True, slots=True)
class Point:
    """The totals at one moment of simulated time, and their range since the point before.

    Attributes:
        at_ns: When.
        live_bytes: Bytes of tokens, shared ones once.
        committed_bytes: Committed.
        reserved_bytes: Address space.
        sequences: Sequences admitted.
        live_max_bytes: The most of live_bytes in the stretch.
        committed_min_bytes: The least of committed_bytes in the stretch.
        committed_max_bytes: The most.
        reserved_min_bytes: The least of reserved_bytes in the stretch.
        reserved_max_bytes: The most.
        sequences_min: The least of sequences in the stretch.
        sequences_max: The most.
        refused: Admissions and steps that were refused memory in the stretch.
    """

    at_ns: int
    live_bytes: int
    committed_bytes: int
    reserved_bytes: int
    sequences: int
    live_max_bytes: int
    committed_min_bytes: int
    committed_max_bytes: int
    reserved_min_bytes: int
    reserved_max_bytes: int
    sequences_min: int
    sequences_max: int
    refused: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of the trace that is not a request.

    Attributes:
        line: Its number, from 1.
        problem: What is wrong.
    """

    line: int
    problem: str


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What was read.

    Attributes:
        name: The file, or the settings of a synthetic trace.
        format: azure, burstgpt, mooncake, jsonl or synthetic.
        requests: Requests read.
        lines: Lines read; 0 for a synthetic trace.
        late: Requests whose time was before that of an earlier line; they arrive with that one.
        bad: Lines that are not requests.
        bad_lines: The first of them.
    """

    name: str
    format: str
    requests: int
    lines: int
    late: int
    bad: int
    bad_lines: tuple[BadLine, ...]


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The rules, as numbers and names.

    Attributes:
        model: The model.
        format_k: Element format of K.
        format_v: Element format of V.
        tp: Ranks among which the heads are divided.
        pp: Stages into which the layers are divided.
        dcp: Ranks among which the tokens are divided.
        policy: The packing policy.
        granule_bytes: The granule.
        block_tokens: Tokens in a block, where the policy has blocks.
        budget_bytes: What may be committed.
        budget_origin: Where that number came from.
        max_tokens: The longest sequence.
        max_sequences: Sequences at once, at most.
        prefill_tokens_per_s: Prompt tokens of a sequence in a second.
        step_ns: A decode step of a sequence.
        on_refusal: What happens when memory is refused.
        commit_ahead_tokens: Tokens for which memory is committed before they are due.
        retain_bytes: Released memory that is kept.
        share_prefixes: Whether equal prefixes are shared.
        prefix_cache: Whether they are kept when no sequence has them any more.
        seed: The seed of everything that is drawn at random.
    """

    model: str
    format_k: str
    format_v: str
    tp: int
    pp: int
    dcp: int
    policy: str
    granule_bytes: int
    block_tokens: int
    budget_bytes: int
    budget_origin: str
    max_tokens: int
    max_sequences: int
    prefill_tokens_per_s: float
    step_ns: int
    on_refusal: OnRefusal
    commit_ahead_tokens: int
    retain_bytes: int
    share_prefixes: bool
    prefix_cache: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Requests:
    """How requests ended, and what delayed them.

    Attributes:
        arrived: Requests that arrived.
        finished: Requests that got all their tokens.
        too_long: Rejected on arrival: longer than the longest sequence.
        too_large: Rejected or ended because they do not fit into the whole budget.
        rejected: Rejected when memory was refused at their admission (on_refusal reject).
        cut: Ended early when memory was refused to a step (on_refusal reject).
        unfinished: Still waiting or decoding when the replay was interrupted.
        refused_admissions: Requests that were refused memory at an admission.
        refused_steps: Decode steps that were refused the memory they needed.
        refused_ahead: Commits ahead of need that were refused; nothing waited for them.
        stalled_ns: Time that sequences waited for memory between two steps, together.
        preemptions: Sequences that lost their memory and began anew.
        deadlocks: Preemptions because every sequence waited for memory (on_refusal wait).
        recomputed_tokens: Tokens that were prefilled again after a preemption.
        prompt_tokens: Tokens prefilled, with those.
        decode_steps: Tokens generated.
    """

    arrived: int
    finished: int
    too_long: int
    too_large: int
    rejected: int
    cut: int
    unfinished: int
    refused_admissions: int
    refused_steps: int
    refused_ahead: int
    stalled_ns: int
    preemptions: int
    deadlocks: int
    recomputed_tokens: int
    prompt_tokens: int
    decode_steps: int


@dataclass(frozen=True, slots=True)
class Level:
    """A number of bytes over simulated time.

    Attributes:
        peak_bytes: The most at once.
        mean_bytes: The average over time, rounded down.
    """

    peak_bytes: int
    mean_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory over simulated time.

    Attributes:
        live: Bytes of tokens, shared ones once.
        committed: Committed to ranges and pools.
        reserved: Address space.
        pooled: Released and kept for the next commit.
        charged: Committed and pooled together.
        saved: What sequences did not commit because others had the same prefix.
        waste: The part of what is charged that holds no tokens, neither of sequences nor of kept
            prefixes, on average over time.
        fragmentation: The part of what is charged that belongs to neither, on average: free
            blocks in committed granules, and what the pool keeps.
        peak_fragmentation: That part at the moment when most bytes belonged to neither.
        peak_at_ns: When most was committed for the first time.
    """

    live: Level
    committed: Level
    reserved: Level
    pooled: Level
    charged: Level
    saved: Level
    waste: float
    fragmentation: float
    peak_fragmentation: float
    peak_at_ns: int


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """What was saved by keeping prefixes that no sequence used any more.

    Attributes:
        kept: Bytes kept.
        hit_rate: The part of the tokens to prefill that were there already, with running sequences
            or kept.
        saved_tokens: These tokens; they were not prefilled.
        reused_bytes: Bytes that were kept when a sequence took them again.
        evicted_bytes: Bytes that were given up to make room, or at the end.
    """

    kept: Level
    hit_rate: float
    saved_tokens: int
    reused_bytes: int
    evicted_bytes: int


@dataclass(frozen=True, slots=True)
class Operations:
    """Commits and releases.

    Attributes:
        commits: Spans committed.
        commit_bytes: The bytes of the committed spans.
        releases: Spans released.
        release_bytes: The bytes of the released spans.
        reused_bytes: Committed bytes that came from the pool.
        not_committed_bytes: Bytes that were not committed because a prefix was shared.
        commits_per_s: Spans in a second of simulated time.
        releases_per_s: Spans in a second of simulated time.
    """

    commits: int
    commit_bytes: int
    releases: int
    release_bytes: int
    reused_bytes: int
    not_committed_bytes: int
    commits_per_s: float
    releases_per_s: float


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one kind of operation took.

    Attributes:
        operation: reserve, commit, release or unreserve for one call each; touch for the first
            writes to the pages of one commit; admission, step or end for all commits and touches of
            a sequence's admission or of a decode step, or all releases at its end.
        total_ns: All of them together.
        summary: Median and percentiles.
        histogram: All samples.
    """

    operation: str
    total_ns: int
    summary: Summary
    histogram: HistogramData


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """What one holder had at the peak.

    Attributes:
        holder: sequences, prefixes, block pools, or the pool of released memory.
        held_bytes: Its bytes. Memory that several sequences map counts once, under prefixes.
    """

    holder: str
    held_bytes: int


@dataclass(frozen=True, slots=True)
class RealRun:
    """What happened on real memory.

    Attributes:
        backing: host or cuda:N.
        method: How it commits.
        granule_bytes: The granule of the backing itself.
        touched: Whether each page was written to after its commit; never on a device.
        populated: Whether the pages were there with the commit: on a device, or with prefault.
        timings: How long the operations took.
        stepping_commits: Decode steps that committed memory.
        stalled_steps: Steps that had to wait for it: it took longer than it was ahead.
        stall_ns: How long they waited, together.
        checks: Comparisons of what is really charged with the simulation; none differed.
        ledger_peak_bytes: The most that the governor leased.
        machine: Facts about this machine.
        held: Who held how much when most was leased.
        conditions: When and where it was measured, and what else the machine did.
    """

    backing: str
    method: str
    granule_bytes: int
    touched: bool
    populated: bool
    timings: tuple[Timing, ...]
    stepping_commits: int
    stalled_steps: int
    stall_ns: int
    checks: int
    ledger_peak_bytes: int
    machine: MachineFacts
    held: tuple[HeldBytes, ...] = ()
    conditions: RunConditions | None = None


@dataclass(frozen=True, slots=True)
class ReplayAccident:
    """The end of the real memory: the death of its process, or a call that failed.

    Attributes:
        signal: The signal that the process died of, such as ``SIGKILL``, or null.
        exit_code: Its exit code, or null.
        cause: The likely cause on this machine; null if it is unknown.
        hint: What to do; null if that is unknown.
        error: The call that failed, or null if the process died.
    """

    signal: str | None
    exit_code: int | None
    cause: str | None
    hint: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One replay of a trace.

    Attributes:
        complete: Whether the whole trace was replayed; false after an interruption.
        trace: What was read.
        settings: The rules.
        duration_ns: Simulated time from the first arrival to the end.
        events: Moments at which something changed.
        requests: How requests ended.
        usage: Memory over time.
        operations: Commits and releases.
        peak_sequences: The most sequences at once.
        mean_sequences: On average over time.
        waiting: The time from arrival to first admission, of requests that were admitted.
        first_token: The time from arrival to the end of the first decode step, in simulated time,
            of requests that got there.
        end_to_end: The time from arrival to the last token, in simulated time, of finished requests.
        generated_per_s: Tokens generated in a second of simulated time, all sequences together.
        prefilled_per_s: Prompt tokens prefilled in a second of simulated time, all together.
        enough_budget_bytes: The smallest budget that refuses nothing, not even ahead of need;
            null if something was refused and it was not looked for, or prefixes are kept, which
            fill any budget.
        prefix_cache: What keeping prefixes brought, or null without it.
        timeline: At most 512 points, ascending in time. Each covers the time since the one
            before, the first since the beginning; what is most in any is the most of the replay.
        real: What happened on real memory, or null of a simulation.
        accident: How the process with the real memory died, or which call of it failed, or null;
            the rest is what it had done until then.
    """

    complete: bool
    trace: TraceFacts
    settings: ReplaySettings
    duration_ns: int
    events: int
    requests: Requests
    usage: Usage
    operations: Operations
    peak_sequences: int
    mean_sequences: float
    waiting: Summary
    first_token: Summary
    end_to_end: Summary
    generated_per_s: float
    prefilled_per_s: float
    enough_budget_bytes: int | None
    prefix_cache: PrefixCache | None
    timeline: tuple[Point, ...]
    real: RealRun | None = None
    accident: ReplayAccident | None = None


@dataclass(frozen=True, slots=True)
class ComparedReplay:
    """One row of a comparison.

    Attributes:
        labels: The value on each axis.
        result: The replay, or null if the combination is not possible.
        impossible: Why it is not; empty if it is.
    """

    labels: Mapping[str, str]
    result: ReplayResult | None
    impossible: str


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """Replays of one trace under several rules.

    Attributes:
        complete: Whether every combination was replayed.
        rows: One for each combination.
        best: Which rows finished most requests and, of those, wasted least; from 0.
        problem: Why combinations were not replayed, such as a worker that died; empty after an
            interruption.
    """

    complete: bool
    rows: tuple[ComparedReplay, ...]
    best: tuple[int, ...]
    problem: str = ""

    @classmethod
    def of(
        cls, rows: Iterable[ComparedReplay], *, complete: bool, problem: str = ""
    ) -> ReplayComparison:
        """Return the comparison of *rows*."""
        found = tuple(rows)
        ranks = [
            (-1, 0.0)
            if row.result is None
            else (row.result.requests.finished, -row.result.usage.waste)
            for row in found
        ]
        top = max(ranks, default=(-1, 0.0))
        best = tuple(i for i, rank in enumerate(ranks) if rank == top and rank[0] >= 0)
        return cls(complete, found, best, problem)
