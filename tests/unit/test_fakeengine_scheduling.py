"""The fake engine's scheduler: who runs, who waits, who gives way."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvquota_fakeengine.blocks import BlockPool
from kvquota_fakeengine.scheduling import Scheduler
from kvquota_fakeengine.sequences import Emission, Finish, Work


def scheduler(
    *, blocks: int = 64, max_sequences: int = 8, max_batched_tokens: int = 64, by_priority: bool = False
) -> Scheduler:
    """Blocks of four tokens."""
    return Scheduler(
        pool=BlockPool(blocks),
        block_tokens=4,
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
        by_priority=by_priority,
    )


def work(prompt: int | list[int], output: int, *, salt: str | None = None, priority: int = 0, like: int = 0) -> Work:
    """A prompt of so many tokens, the same for the same `like`, or of these tokens."""
    tokens = tuple(prompt) if isinstance(prompt, list) else tuple(range(1000 * like, 1000 * like + prompt))
    return Work(prompt=tokens, output_tokens=output, finish=Finish.LENGTH, salt=salt, priority=priority)


def step(of: Scheduler) -> list[Emission]:
    emissions = of.finish_step(of.plan_step())
    of.check_integrity()
    return emissions


def running(of: Scheduler) -> list[str]:
    return [sequence.key for sequence in of.running]


def waiting(of: Scheduler) -> list[str]:
    return [sequence.key for sequence in of.waiting]


def test_a_sequence_gets_its_tokens_one_a_step_and_leaves_nothing_behind() -> None:
    one = scheduler()
    one.submit("a", work(6, 3))
    seen = [step(one) for _ in range(4)]
    assert [[(e.key, e.position, e.finish) for e in emissions] for emissions in seen] == [
        [("a", 0, None)],
        [("a", 1, None)],
        [("a", 2, Finish.LENGTH)],
        [],
    ]
    assert (one.pool.held, one.running, one.totals.finished[Finish.LENGTH]) == (0, [], 1)


def test_blocks_follow_the_computed_tokens_and_the_last_token_needs_none() -> None:
    one = scheduler()
    one.submit("a", work(8, 5))
    held = []
    for _ in range(4):
        step(one)
        held.append(one.pool.held)
    assert held == [2, 3, 3, 3]
    assert [e.finish for e in step(one)] == [Finish.LENGTH]


def test_a_long_prompt_is_computed_in_chunks_but_holds_all_its_blocks() -> None:
    one = scheduler(max_batched_tokens=16)
    one.submit("a", work(40, 1))
    planned = []
    for _ in range(3):
        plan = one.plan_step()
        planned.append((plan.prefill_tokens, one.pool.held, plan.decodes))
        one.finish_step(plan)
    assert planned == [(16, 10, False), (16, 10, False), (8, 10, False)]


def test_no_more_than_the_allowed_sequences_run() -> None:
    two = scheduler(max_sequences=2)
    for key in "abc":
        two.submit(key, work(4, 2))
    step(two)
    assert (running(two), waiting(two)) == (["a", "b"], ["c"])


def test_who_does_not_fit_waits_and_holds_up_those_behind_it() -> None:
    small = scheduler(blocks=6)
    small.submit("a", work(12, 4, like=1))
    small.submit("b", work(13, 4, like=2))
    small.submit("c", work(4, 4, like=3))
    step(small)
    assert (running(small), waiting(small)) == (["a"], ["b", "c"])


def test_growth_without_room_preempts_the_youngest_which_starts_again_later() -> None:
    small = scheduler(blocks=5)
    small.submit("a", work(8, 6, like=1))
    small.submit("b", work(7, 6, like=2))
    step(small)
    assert running(small) == ["a", "b"]
    step(small)
    assert (running(small), waiting(small)) == (["a"], ["b"])
    assert small.totals.preemptions == 0  # told once it produces again
    while small.running or small.waiting:
        step(small)
    assert small.totals.preemptions == 1
    assert small.totals.prefix_queries == 8 + 7
    assert small.totals.generation_tokens == 12
    assert small.totals.finished[Finish.LENGTH] == 2


def test_who_grows_and_is_the_youngest_itself_gives_way() -> None:
    small = scheduler(blocks=5)
    small.submit("a", work(5, 6, like=1))
    small.submit("b", work(8, 6, like=2))
    step(small)
    step(small)
    assert (running(small), waiting(small)) == (["a"], ["b"])


def test_nobody_starts_in_a_step_in_which_somebody_was_preempted() -> None:
    small = scheduler(blocks=5, by_priority=True)
    small.submit("first", work(8, 6, priority=0, like=1))
    small.submit("last", work(8, 6, priority=5, like=2))
    step(small)
    small.submit("short", work(4, 1, priority=1, like=3))
    step(small)
    assert (running(small), waiting(small)) == (["first"], ["short", "last"])
    assert small.pool.free == 1  # room for the short one
    step(small)
    assert waiting(small) == ["last"]


def test_by_priority_the_highest_number_waits_longest_and_gives_way_first() -> None:
    small = scheduler(blocks=5, by_priority=True)
    small.submit("late", work(8, 6, priority=5, like=1))
    small.submit("early", work(8, 6, priority=1, like=2))
    assert waiting(small) == ["early", "late"]
    step(small)
    step(small)
    assert (running(small), waiting(small)) == (["early"], ["late"])


def test_priority_is_ignored_where_it_is_not_in_force() -> None:
    plain = scheduler()
    plain.submit("a", work(8, 6, priority=5, like=1))
    plain.submit("b", work(8, 6, priority=1, like=2))
    assert waiting(plain) == ["a", "b"]


def test_a_later_sequence_finds_the_blocks_of_an_earlier_one_even_in_the_same_step() -> None:
    one = scheduler()
    one.submit("a", work(list(range(12)), 2))
    one.submit("b", work(list(range(12)), 2))
    emissions = step(one)
    # The last block is computed again: its last token is what the answer starts from.
    assert [e.cached_tokens for e in emissions] == [0, 8]
    assert one.pool.held == 4
    assert (one.totals.prefix_queries, one.totals.prefix_hits) == (24, 8)


def test_another_salt_shares_nothing() -> None:
    one = scheduler()
    one.submit("a", work(list(range(12)), 2, salt="x"))
    one.submit("b", work(list(range(12)), 2, salt="y"))
    assert [e.cached_tokens for e in step(one)] == [0, 0]
    assert one.pool.held == 6


def test_an_aborted_sequence_frees_at_once_or_lingers_until_it_is_released() -> None:
    one = scheduler()
    one.submit("a", work(8, 6, like=1))
    one.submit("b", work(8, 6, like=2))
    one.submit("c", work(8, 6, like=3))
    step(one)
    assert one.abort("a", linger=False)
    assert one.abort("b", linger=True)
    one.check_integrity()
    assert (running(one), one.pool.held, one.lingering) == (["c"], 4, {"b"})
    one.release("b")
    one.release("b")
    assert one.pool.held == 2


def test_a_sequence_that_waits_or_is_unknown_leaves_nothing_to_free() -> None:
    one = scheduler(max_sequences=1)
    one.submit("a", work(8, 6, like=1))
    one.submit("b", work(8, 6, like=2))
    step(one)
    assert not one.abort("b", linger=True)
    assert not one.abort("nobody", linger=True)
    assert (waiting(one), one.lingering) == ([], set())


def test_a_sequence_aborted_during_a_step_produces_nothing() -> None:
    one = scheduler()
    one.submit("a", work(8, 6))
    plan = one.plan_step()
    one.abort("a", linger=False)
    assert one.finish_step(plan) == []


def test_a_stalled_sequence_holds_its_blocks_and_lets_others_go_on() -> None:
    one = scheduler()
    one.submit("a", work(8, 6, like=1))
    one.submit("b", work(8, 6, like=2))
    step(one)
    one.stall("a", stalled=True)
    assert [e.key for e in step(one)] == ["b"]
    assert len(one.pool.table("a")) == 2
    one.stall("a", stalled=False)
    assert [e.key for e in step(one)] == ["a", "b"]


def test_a_prompt_without_an_output_holds_its_blocks_for_its_steps_and_produces_nothing() -> None:
    one = scheduler(max_batched_tokens=8)
    one.submit("a", work(10, 0))
    assert step(one) == []
    assert one.pool.held == 3
    (emission,) = step(one)
    assert (emission.token, emission.finish) == (None, Finish.LENGTH)
    assert (one.pool.held, one.totals.prompt_tokens, one.totals.generation_tokens) == (0, 10, 0)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests of all kinds on a pool that is often too small; whatever was asked for is produced exactly once."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler(blocks=10, max_sequences=4, max_batched_tokens=12, by_priority=True)
        self.wanted: dict[str, int] = {}
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        output=st.integers(1, 12),
        salt=st.sampled_from([None, "a"]),
        priority=st.integers(0, 2),
    )
    def submit(self, prompt: list[int], output: int, salt: str | None, priority: int) -> None:
        self.count += 1
        key = f"s{self.count}"
        self.wanted[key] = output
        self.scheduler.submit(key, work(prompt, output, salt=salt, priority=priority))

    @rule(data=st.data(), linger=st.booleans())
    def abort(self, data: st.DataObject, linger: bool) -> None:
        if self.wanted:
            key = data.draw(st.sampled_from(sorted(self.wanted)))
            del self.wanted[key]
            self.scheduler.abort(key, linger=linger)

    @rule()
    def release_one(self) -> None:
        if self.scheduler.lingering:
            self.scheduler.release(min(self.scheduler.lingering))

    @rule()
    def step(self) -> None:
        self._take(self.scheduler.finish_step(self.scheduler.plan_step()))

    def _take(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            self.wanted[emission.key] -= 1
            assert (self.wanted[emission.key] == 0) == (emission.finish is not None)
            if emission.finish is not None:
                del self.wanted[emission.key]

    @invariant()
    def holds_together(self) -> None:
        self.scheduler.check_integrity()
        known = [*running(self.scheduler), *waiting(self.scheduler)]
        assert sorted(known) == sorted(self.wanted)

    def teardown(self) -> None:
        for key in sorted(self.scheduler.lingering):
            self.scheduler.release(key)
        for _ in range(2000):
            if not self.wanted:
                break
            self._take(self.scheduler.finish_step(self.scheduler.plan_step()))
        assert self.wanted == {}
        assert self.scheduler.pool.held == 0


TestSchedulerMachine = SchedulerMachine.TestCase
