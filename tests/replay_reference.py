"""A replay that is as simple as possible: token by token, computed from the definitions."""

from collections import deque
from dataclasses import dataclass, field

from vmtool.kv.packing.policies import Paged, StraddleLoses
from vmtool.results.kv_replay import OnRefusal


@dataclass(eq=False)
class Seq:
    request: object
    tokens: int
    order: int = -1
    backed: int = 0
    next_ns: int = 0
    begun: int = 0
    stalled: bool = False
    forced: bool = False
    seen: bool = False
    refused: bool = False
    answered: bool = False
    first_end: int = 0
    blocks: list = field(default_factory=list)

    @property
    def total(self):
        return self.request.prompt_tokens + self.request.output_tokens


class Reference:
    """The same rules as `vmtool.replay.simulation`.

    Prefixes of *names* tokens a block are shared under policies that fill ranges from the front.
    """

    def __init__(self, plan, names=512):
        self.names = names
        self.plan, self.policy = plan, plan.policy
        self.pools = isinstance(self.policy, (Paged, StraddleLoses))
        self.now = self.order = self.pooled = 0
        self.queue, self.admitted = deque(), []
        self.areas = dict.fromkeys(("live", "committed", "pooled", "reserved", "sequences"), 0)
        self.peaks = dict.fromkeys(("live", "committed", "charged", "sequences"), 0)
        self.n = dict.fromkeys(
            (
                *("finished", "too_long", "too_large", "rejected", "cut", "preemptions"),
                *("deadlocks", "refused_steps", "refused_admissions", "refused_ahead"),
                *("decode_steps", "prompt_tokens", "recomputed_tokens", "stalled_ns"),
            ),
            0,
        )
        self.n |= {"commit_bytes": 0, "release_bytes": 0, "reused_bytes": 0}
        self.waits, self.firsts, self.ends = [], [], []
        self.held = self.peak_at = 0
        self.levels = []  # from when, until when: live, committed, sequences

    # ---- memory, from scratch -----------------------------------------------------------

    def classes(self):
        """Yield ``(count, block_bytes, apart, blocks of tokens)`` of every pool."""
        cost, policy = self.policy.cost, self.policy
        for count, tensor in cost.tensors():
            nbytes = policy.block * tensor.bytes_per_token

            def blocks(n, tensor=tensor):
                return -(-cost.tokens_held(tensor, n) // policy.block)

            yield count, nbytes, isinstance(policy, StraddleLoses), blocks
        for layer in cost.layers:
            for state in layer.states:
                yield layer.count, state.nbytes, False, lambda _: 1

    def committed(self, extra=None):
        """Return what is committed, with *extra*: pairs of a sequence and its blocks or length."""
        if not self.pools:
            lengths = {seq: seq.backed for seq in self.admitted} | dict(extra or {})
            self.alone = sum(self.policy.committed_bytes(n) for n in lengths.values())
            return self.distinct(lengths) if self.plan.share else self.alone
        held = {seq: seq.blocks for seq in self.admitted} | dict(extra or {})
        granule = self.policy.granule
        total = 0
        for index, (count, nbytes, apart, _) in enumerate(self.classes()):
            touched = set()
            for blocks in held.values():
                for block in blocks[index]:
                    if apart:
                        first = last = self.place(nbytes, block)
                    else:
                        first = block * nbytes // granule
                        last = (block * nbytes + nbytes - 1) // granule
                    touched |= set(range(first, last + 1))
            total += count * len(touched) * granule
        return total

    def distinct(self, lengths):
        """Return the bytes of distinct granules: those inside a common prefix exist once.

        A granule is known by its place and by what it holds: the names of the blocks up to its
        end, if the prompt has all of them, else its sequence.
        """
        if not any(seq.request.prefix for seq in lengths):
            return self.alone
        seen = {}
        for seq, length in lengths.items():
            names = seq.request.prefix[: seq.request.prompt_tokens // self.names]
            for index, item in enumerate(self.policy.ranges):
                nbytes = item.bytes_held(length, self.policy.cost.in_flight)
                for at in range(-(-nbytes // self.policy.granule)):
                    end = (at + 1) * self.policy.granule
                    blocks = next(
                        (
                            n
                            for n in range(1, len(names) + 1)
                            if item.extent
                            and item.extent.grows
                            and not item.fixed_bytes
                            and item.token_bytes * self.whole(item.extent, n * self.names) >= end
                        ),
                        None,
                    )
                    key = (index, at, names[:blocks] if blocks else seq)
                    seen[key] = item.copies * self.policy.granule
        return sum(seen.values())

    @staticmethod
    def whole(extent, tokens):
        """Return the entries that no later token is a part of."""
        return tokens // (extent.ratio * extent.ranks)

    def place(self, nbytes, block):
        """Return the granule of the usable block number *block*."""
        granule = self.policy.granule
        at = found = 0
        while True:
            if at // granule == (at + nbytes - 1) // granule:
                if found == block:
                    return at // granule
                found += 1
            at += nbytes

    def want(self, seq, tokens):
        """Return what *seq* would hold at *tokens*: a length, or blocks of each pool."""
        if not self.pools:
            return tokens
        held = []
        for index, (*_, blocks) in enumerate(self.classes()):
            own = list(seq.blocks[index]) if seq.blocks else []
            used = {b for other in self.admitted if other is not seq for b in other.blocks[index]}
            used |= set(own)
            free = (b for b in range(10**6) if b not in used)
            own += [next(free) for _ in range(blocks(tokens) - len(own))]
            held.append(own)
        return held

    def give(self, seq, tokens):
        """Give *seq* memory for *tokens*, or say no."""
        want = self.want(seq, tokens)
        after = self.committed({seq: want}.items())
        if after > self.plan.budget_bytes:
            return False
        self.change(after)
        seq.backed = tokens
        if self.pools:
            seq.blocks = want
        return True

    def change(self, after):
        more = after - self.held
        if more > 0:
            reused = min(self.pooled, more)
            self.pooled -= reused
            self.n["reused_bytes"] += reused
            self.n["commit_bytes"] += more
        else:
            self.n["release_bytes"] -= more
            self.pooled += min(-more, self.plan.retain_bytes - self.pooled)
        self.held = after
        if after > self.peaks["committed"]:
            self.peaks["committed"], self.peak_at = after, self.now
        self.peaks["charged"] = max(self.peaks["charged"], after + self.pooled)

    def same(self, seq, tokens):
        """Whether *tokens* need no more than *seq* has."""
        if not self.pools:
            return self.policy.committed_bytes(tokens) <= self.policy.committed_bytes(seq.backed)
        return all(
            b(tokens) <= len(own) for (*_, b), own in zip(self.classes(), seq.blocks, strict=True)
        )

    # ---- time ---------------------------------------------------------------------------

    def go_to(self, now):
        elapsed = now - self.now
        if elapsed:
            live = sum(self.policy.cost.bytes_for(seq.tokens) for seq in self.admitted)
            if self.plan.share and not self.pools:
                self.committed()
                live -= self.alone - self.held  # shared granules are full of tokens
            assert live <= self.held <= self.plan.budget_bytes
            self.levels.append((self.now, now, live, self.held, len(self.admitted)))
            self.areas["live"] += live * elapsed
            self.areas["committed"] += self.held * elapsed
            self.areas["pooled"] += self.pooled * elapsed
            self.areas["sequences"] += len(self.admitted) * elapsed
            if not self.pools:
                one = max(self.policy.reserved_bytes(self.plan.max_tokens), self.policy.granule)
                self.areas["reserved"] += len(self.admitted) * one * elapsed
            self.peaks["live"] = max(self.peaks["live"], live)
            self.n["stalled_ns"] += elapsed * sum(seq.stalled for seq in self.admitted)
        self.now = now

    def run(self, requests):
        requests = deque(requests)
        self.own_ranges_only = not self.pools and not any(r.prefix for r in requests)
        while True:
            if self.admitted and all(seq.stalled for seq in self.admitted):
                self.deadlock()
                continue
            due = [
                # Ends come before steps, and older sequences before younger.
                (seq.next_ns, seq.tokens < seq.total, seq.order, seq)
                for seq in self.admitted
                if not seq.stalled
            ]
            first = min(due, default=None)
            if first and not (requests and requests[0].arrival_ns < first[0]):
                self.go_to(first[0])
                self.finish(first[3]) if first[3].tokens == first[3].total else self.step(first[3])
            elif requests:
                self.go_to(requests[0].arrival_ns)
                self.arrive(requests.popleft())
            else:
                return self

    def arrive(self, request):
        if request.total_tokens > self.plan.max_tokens:
            self.n["too_long"] += 1
            return
        self.queue.append(Seq(request, request.prompt_tokens))
        if len(self.queue) == 1:
            self.admit()

    def admit(self):
        while self.queue and len(self.admitted) < self.plan.max_sequences:
            if any(seq.stalled for seq in self.admitted):
                return
            seq = self.queue[0]
            ahead = min(seq.tokens + self.plan.commit_ahead, self.plan.max_tokens)
            seq.forced = False
            if not self.give(seq, ahead):
                if ahead == seq.tokens or not self.give(seq, seq.tokens):
                    if not seq.refused:
                        seq.refused = True
                        self.n["refused_admissions"] += 1
                    if not self.admitted:
                        self.n["too_large"] += 1
                    elif self.plan.on_refusal is OnRefusal.REJECT:
                        self.n["rejected"] += 1
                    else:
                        return
                    self.queue.popleft()
                    continue
                self.n["refused_ahead"] += 1
                seq.forced = True
            self.queue.popleft()
            self.order += 1
            seq.order = self.order
            self.admitted.append(seq)
            self.peaks["sequences"] = max(self.peaks["sequences"], len(self.admitted))
            if seq.seen:
                self.n["recomputed_tokens"] += seq.tokens
            else:
                self.waits.append(self.now - seq.request.arrival_ns)
            seq.seen = True
            seq.begun = seq.tokens
            self.n["prompt_tokens"] += seq.tokens
            seq.next_ns = self.now + self.plan.prefill(seq.tokens)

    def step(self, seq):
        """Begin the step that adds one token."""
        n = seq.tokens + 1
        ahead = min(n + self.plan.commit_ahead, self.plan.max_tokens)
        if self.same(seq, n if seq.forced else ahead):
            self.begin(seq)
        elif self.give(seq, ahead):
            seq.forced = False
            self.begin(seq)
        elif self.same(seq, n) or (ahead > n and self.give(seq, n)):
            self.n["refused_ahead"] += 1
            seq.forced = True
            self.begin(seq)
        else:
            self.n["refused_steps"] += 1
            self.refuse(seq, n)

    def begin(self, seq):
        if seq.tokens == seq.begun:
            seq.first_end = self.now + self.plan.step_ns
        seq.tokens += 1
        seq.next_ns = self.now + self.plan.step_ns

    def refuse(self, seq, n):
        mode = self.plan.on_refusal
        if mode is OnRefusal.WAIT:
            seq.stalled = True
        elif mode is OnRefusal.REJECT:
            self.drop(seq)
            self.n["cut" if self.admitted else "too_large"] += 1
            self.use_room()
        else:
            while True:
                if len(self.admitted) == 1:
                    self.drop(seq)
                    self.n["too_large"] += 1
                    self.use_room()
                    return
                youngest = self.admitted[-1]
                self.preempt(youngest)
                if youngest is seq:
                    return
                if self.give(seq, n):
                    seq.forced = self.plan.commit_ahead > 0
                    self.begin(seq)
                    return

    def preempt(self, seq):
        self.drop(seq)
        self.n["preemptions"] += 1
        self.queue.appendleft(seq)

    def drop(self, seq):
        self.admitted.remove(seq)
        if not seq.stalled and seq.tokens > seq.begun and seq.next_ns > self.now:
            seq.tokens -= 1  # this step is not complete
        self.n["decode_steps"] += seq.tokens - seq.begun
        if seq.tokens > seq.begun and not seq.answered:
            seq.answered = True
            self.firsts.append(seq.first_end - seq.request.arrival_ns)
        seq.stalled, seq.blocks, seq.backed = False, [], 0
        self.change(self.committed())

    def finish(self, seq):
        self.drop(seq)
        self.n["finished"] += 1
        self.ends.append(self.now - seq.request.arrival_ns)
        self.use_room()

    def use_room(self):
        for seq in [seq for seq in self.admitted if seq.stalled]:
            if not self.give(seq, seq.tokens + 1):
                return
            seq.stalled = False
            seq.forced = self.plan.commit_ahead > 0
            self.begin(seq)
        self.admit()

    def deadlock(self):
        youngest = self.admitted[-1]
        if len(self.admitted) == 1:
            self.drop(youngest)
            self.n["too_large"] += 1
        else:
            self.n["deadlocks"] += 1
            self.preempt(youngest)
        self.use_room()
