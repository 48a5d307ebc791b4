"""How often pods are asked and statuses written, however many there are."""

import asyncio

import pytest

import virtual_time
from controller_world import World, play, settled
from kvquota_operator.pacing import Pacing, Turns
from kvquota_operator.reconcile.observed import Observed
from kvquota_operator.reconcile.writes import WRITE_SECONDS, Written, due
from operator_fakes import POOL


@pytest.mark.parametrize(
    ("pools", "periods"),
    [
        pytest.param({}, (2.0, WRITE_SECONDS), id="without pools nothing is stretched"),
        pytest.param({"a": (500, 21), "b": (500, 21)}, (2.0, WRITE_SECONDS), id="a thousand pods change nothing"),
        pytest.param({"a": (3000, 2), "b": (3000, 2)}, (4.0, WRITE_SECONDS), id="six thousand pods take four seconds"),
        pytest.param({"a": (10, 180), "b": (10, 180)}, (2.0, 19.0), id="360 statuses take 20 s"),
    ],
)
def test_periods(pools: dict[str, tuple[int, int]], periods: tuple[float, float]) -> None:
    pacing = Pacing(2.0)
    for name, (pods, statuses) in pools.items():
        pacing.counts(name, pods, statuses)
    assert (pacing.sync_seconds, pacing.write_seconds, pacing.pools) == (*periods, len(pools))


def test_a_pool_that_is_gone_counts_no_more() -> None:
    pacing = Pacing(2.0)
    pacing.counts("a", 6000, 360)
    pacing.counts("b", 10, 1)
    pacing.forget("a")
    pacing.forget("unknown")
    assert (pacing.sync_seconds, pacing.write_seconds, pacing.pools) == (2.0, WRITE_SECONDS, 1)


async def entries(turns: Turns, count: int) -> list[float]:
    loop = asyncio.get_running_loop()
    start, found = loop.time(), []

    async def enter(number: int) -> None:
        async with turns:
            found.append(round(loop.time() - start, 3))

    await asyncio.gather(*(enter(number) for number in range(count)))
    return found


def test_turns_are_evenly_apart_after_a_burst_and_in_order() -> None:
    async def scene() -> tuple[list[float], list[float]]:
        turns = Turns(10, burst=3, at_once=9)
        first = await entries(turns, 6)
        await asyncio.sleep(10)
        return first, await entries(turns, 4)

    assert virtual_time.run(scene()) == ([0.0, 0.0, 0.0, 0.1, 0.2, 0.3], [0.0, 0.0, 0.0, 0.1])


def test_a_burst_counts_as_part_of_its_second() -> None:
    assert virtual_time.run(entries(Turns(5, burst=3, at_once=9), 8)) == [0.0, 0.0, 0.0, 0.2, 0.4, 1.0, 1.0, 1.0]


def test_what_was_held_up_counts_in_the_second_in_which_it_is_done() -> None:
    async def scene() -> list[float]:
        turns, loop = Turns(5, burst=5, at_once=5), asyncio.get_running_loop()
        start, done = loop.time(), []

        async def write(seconds: float) -> None:
            async with turns:
                await asyncio.sleep(seconds)
                done.append(round(loop.time() - start, 3))

        await asyncio.gather(*(write(1.5 if number < 5 else 0.0) for number in range(12)))
        return done

    assert virtual_time.run(scene()) == [1.5] * 5 + [2.5] * 5 + [3.5] * 2


def test_no_more_are_inside_than_may_be_and_one_that_gives_up_leaves_its_place() -> None:
    async def scene() -> list[float]:
        turns, loop = Turns(10, burst=9, at_once=1), asyncio.get_running_loop()
        async with turns:
            gone = asyncio.create_task(entries(turns, 1))
            await asyncio.sleep(1.0)
            gone.cancel()
        start = loop.time()
        slow = Turns(0.1, burst=1, at_once=1)
        async with slow:
            pass
        waiting = asyncio.create_task(entries(slow, 1))
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert loop.time() - start == 1.0
        return [*await entries(turns, 1), *await entries(slow, 1)]

    assert virtual_time.run(scene()) == [0.0, 19.0]


def test_wake_ups_while_a_decision_takes_long_are_one_pass() -> None:
    world = World().with_pods("pod-0")

    def take_long(_: Observed) -> None:
        virtual_time.pass_by(0.2)

    world.script.also = take_long

    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world, 1.0)
        decided = len(world.script.shown)
        for _ in range(6):
            world.controller.touch(POOL)
            await asyncio.sleep(0.1)
        assert len(world.script.shown) - decided <= 2

    play(world, story)


def test_a_status_is_written_as_the_latest_pass_wants_it() -> None:
    """The first status waits for its turn behind others while another pass decides."""
    world = World()
    world.script.quota_statuses = {f"q{number}": {"state": "Old"} for number in range(60)}
    world.cluster.quota_statuses = {name: {} for name in world.script.quota_statuses}

    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await asyncio.sleep(1.0)
        world.script.quota_statuses = {name: {"state": "New"} for name in world.script.quota_statuses}
        world.controller.touch(POOL)
        await asyncio.sleep(3.0)
        assert world.cluster.quota_statuses["q59"] == {"state": "New"}
        assert sum(line == "quota status q59" for line in world.journal.lines) == 1

    play(world, story)


@pytest.mark.parametrize(
    ("wanted", "writes"),
    [
        pytest.param({"inFlight": 9}, False, id="a number waits for its stretched turn"),
        pytest.param({"inFlight": 1, "observedGeneration": 2}, True, id="what is answered does not"),
    ],
)
def test_only_numbers_wait_for_longer(wanted: dict[str, int], writes: bool) -> None:
    assert due({"inFlight": 1}, wanted, Written(at=100.0), now=110.0, seconds=12.0) is writes
    assert due({"inFlight": 1}, wanted, Written(at=100.0), now=112.0, seconds=12.0)
