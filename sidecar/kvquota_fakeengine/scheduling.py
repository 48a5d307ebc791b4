"""Which sequences run in a step, which wait, and who gives way when the pool is short.

Invariants (`check_integrity`):
1. A sequence waits, runs, or is gone; only running ones and those that linger hold blocks.
2. A running sequence holds enough blocks for its computed tokens.
3. Nobody starts in a step in which somebody was preempted, and nobody starts before an earlier one of its rank.
4. A sequence starts only if its whole length so far fits the pool.
5. Whoever grows and finds no block preempts the last in rank: by arrival, or by priority where that is in force.

It does not know time, HTTP, text or tenants. The rules are those of vLLM 0.32 with chunked prefill and prefix caching.
"""

import bisect
from dataclasses import dataclass, field

from kvquota_fakeengine.blocks import BlockPool
from kvquota_fakeengine.prefix_chain import extend_chain
from kvquota_fakeengine.sequences import Emission, Finish, RunningSequence, Work
from kvquota_fakeengine.tokens import answer_token


@dataclass(slots=True)
class Totals:
    """Counters since the engine's start."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    finished: dict[Finish, int] = field(default_factory=lambda: dict.fromkeys(Finish, 0))


@dataclass(frozen=True, slots=True)
class Step:
    """How many tokens are computed for each scheduled sequence."""

    scheduled: tuple[tuple[RunningSequence, int], ...]

    @property
    def prefill_tokens(self) -> int:
        return sum(count for sequence, count in self.scheduled if sequence.produced == 0 or count > 1)

    @property
    def decodes(self) -> bool:
        return any(sequence.produced > 0 for sequence, _ in self.scheduled)


@dataclass(slots=True)
class Scheduler:
    """`max_sequences` at once, `max_batched_tokens` a step, blocks of `block_tokens`."""

    pool: BlockPool
    block_tokens: int
    max_sequences: int
    max_batched_tokens: int
    by_priority: bool
    totals: Totals = field(default_factory=Totals)
    waiting: list[RunningSequence] = field(default_factory=list)
    running: list[RunningSequence] = field(default_factory=list)
    lingering: set[str] = field(default_factory=set)
    _arrivals: int = 0

    def submit(self, key: str, work: Work) -> None:
        self._arrivals += 1
        sequence = RunningSequence(key=key, work=work, arrival=self._arrivals, tokens=list(work.prompt))
        bisect.insort(self.waiting, sequence, key=self._rank)

    def stall(self, key: str, *, stalled: bool) -> None:
        """Keep a sequence from making progress while it holds its blocks, or let it go on."""
        for sequence in (*self.running, *self.waiting):
            if sequence.key == key:
                sequence.stalled = stalled

    def plan_step(self) -> Step:
        budget = self.max_batched_tokens
        scheduled: list[tuple[RunningSequence, int]] = []
        preempted: set[str] = set()
        for sequence in list(self.running):
            count = min(sequence.uncomputed, budget)
            if sequence.stalled or count == 0 or sequence.key in preempted:
                continue
            preempted |= self._make_room(sequence, count)
            if sequence.key not in preempted:
                scheduled.append((sequence, count))
                budget -= count
        scheduled = [entry for entry in scheduled if entry[0].key not in preempted]
        if not preempted:
            scheduled += self._start_waiting(budget)
        for sequence, count in scheduled:
            self._publish(sequence, sequence.computed + count)
        return Step(tuple(scheduled))

    def finish_step(self, step: Step) -> list[Emission]:
        """Account for the computed tokens; every sequence that has caught up produces one more token."""
        emissions = []
        running = {sequence.key for sequence in self.running}
        for sequence, count in step.scheduled:
            if sequence.key not in running:
                continue
            sequence.computed += count
            if sequence.uncomputed == 0:
                emissions.append(self._produce(sequence))
        return emissions

    def abort(self, key: str, *, linger: bool) -> bool:
        """Forget the sequence; if it is to `linger` its blocks stay held under its key. False if it held none."""
        self.waiting = [sequence for sequence in self.waiting if sequence.key != key]
        for sequence in self.running:
            if sequence.key == key:
                self.running.remove(sequence)
                self._give_back(key, linger=linger)
                return True
        return False

    def release(self, key: str) -> None:
        """Give back the blocks of a sequence that lingered."""
        if key in self.lingering:
            self.lingering.remove(key)
            self.pool.close_table(key)

    def _rank(self, sequence: RunningSequence) -> tuple[int, int]:
        return (sequence.work.priority if self.by_priority else 0, sequence.arrival)

    def _make_room(self, sequence: RunningSequence, count: int) -> set[str]:
        """Find blocks for `count` more tokens; the keys of those preempted for it, perhaps the sequence's own."""
        preempted: set[str] = set()
        while len(self.pool.table(sequence.key)) < self._blocks_for(sequence.computed + count):
            if self.pool.grow(sequence.key):
                continue
            victim = max(self.running, key=self._rank)
            self._preempt(victim)
            preempted.add(victim.key)
            if victim is sequence:
                break
        return preempted

    def _preempt(self, victim: RunningSequence) -> None:
        self.running.remove(victim)
        self.pool.close_table(victim.key)
        victim.computed = 0
        victim.untold_preemptions += 1
        bisect.insort(self.waiting, victim, key=self._rank)

    def _start_waiting(self, budget: int) -> list[tuple[RunningSequence, int]]:
        started = []
        while self.waiting and len(self.running) < self.max_sequences and budget > 0:
            sequence = self.waiting[0]
            if not self._start(sequence):
                break
            count = min(sequence.uncomputed, budget)
            budget -= count
            self._publish(sequence, sequence.computed + count)
            started.append((sequence, count))
        return started

    def _start(self, sequence: RunningSequence) -> bool:
        length = len(sequence.tokens)
        # The last token is always computed again, since its result is what the next one is sampled from.
        self._name_blocks(sequence, length)
        reusable = sequence.names[: (length - 1) // self.block_tokens]
        shared = reusable[: self.pool.known_prefix(reusable)]
        if not self.pool.open_table(sequence.key, shared=shared, fresh=self._blocks_for(length) - len(shared)):
            return False
        self.running.append(self.waiting.pop(0))
        sequence.computed = len(shared) * self.block_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.totals.prefix_queries += length
            self.totals.prefix_hits += sequence.computed
        return True

    def _produce(self, sequence: RunningSequence) -> Emission:
        position = sequence.produced
        cached = sequence.cached_tokens or 0
        if position == 0:
            self.totals.prompt_tokens += len(sequence.work.prompt)
            self.totals.cached_prompt_tokens += cached
        token = answer_token(position) if sequence.work.output_tokens else None
        if token is not None:
            sequence.tokens.append(token)
            self.totals.generation_tokens += 1
        # As in vLLM, a preemption shows in the counter only once the sequence produces again.
        self.totals.preemptions += sequence.untold_preemptions
        sequence.untold_preemptions = 0
        finish = self._finished(sequence) if sequence.produced == sequence.work.output_tokens else None
        return Emission(
            key=sequence.key,
            token=token,
            position=position,
            prompt_tokens=len(sequence.work.prompt),
            cached_tokens=cached,
            finish=finish,
        )

    def _finished(self, sequence: RunningSequence) -> Finish:
        self.running.remove(sequence)
        self._give_back(sequence.key, linger=False)
        self.totals.finished[sequence.work.finish] += 1
        return sequence.work.finish

    def _give_back(self, key: str, *, linger: bool) -> None:
        if linger:
            self.lingering.add(key)
        else:
            self.pool.close_table(key)

    def _publish(self, sequence: RunningSequence, upto: int) -> None:
        self._name_blocks(sequence, upto)
        for index in range(sequence.computed // self.block_tokens, upto // self.block_tokens):
            self.pool.publish(sequence.key, index, sequence.names[index])

    def _name_blocks(self, sequence: RunningSequence, upto: int) -> None:
        extend_chain(
            sequence.names, sequence.tokens, block_tokens=self.block_tokens, salt=sequence.work.salt, upto=upto
        )

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def check_integrity(self) -> None:
        """Raise `AssertionError` naming the first invariant that does not hold."""
        self.pool.check_integrity()
        running, waiting = {s.key for s in self.running}, {s.key for s in self.waiting}
        if running & waiting or len(running) + len(waiting) != len(self.running) + len(self.waiting):
            raise AssertionError("a sequence runs and waits, or twice")
        if self.pool.holders() != running | self.lingering:
            raise AssertionError("blocks are held by somebody who neither runs nor lingers")
        for sequence in self.running:
            if len(self.pool.table(sequence.key)) < self._blocks_for(sequence.computed):
                raise AssertionError(f"{sequence.key} has computed more tokens than it holds blocks for")
        if self.waiting != sorted(self.waiting, key=self._rank):
            raise AssertionError("the queue is out of order")
