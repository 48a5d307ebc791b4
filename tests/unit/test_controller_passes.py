"""The controller with a cluster and pods in memory: what it does, in which order, and when."""

import asyncio

import pytest

import virtual_time
from controller_world import FIRST_PASS, SETTINGS, World, a_full_world, play, settled
from kvquota_operator.controller import PoolController
from kvquota_operator.ports import ConflictError, ForbiddenError, PodTimeoutError, UnreachableError
from kvquota_operator.reconcile.observed import Observed, PoolKey
from operator_fakes import POOL, FakeChannel, FakeCluster, FakePod, Journal, Script, event, pod


def test_first_pass_writes_the_secret_first_and_the_statuses_last() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        assert await settled(world) == FIRST_PASS

    play(a_full_world(), story)


def test_nothing_else_is_written_before_the_secret_is() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["secret"] = 0.2
        world.controller.touch(POOL)
        await asyncio.sleep(0.1)
        assert world.journal.taken() == FIRST_PASS[:2]
        assert await settled(world) == FIRST_PASS[2:]

    play(a_full_world(), story)


def test_a_gauge_that_moves_all_the_time_is_written_at_intervals_and_a_condition_at_once() -> None:
    used = {"blocks": 0}

    def move(observed: Observed) -> None:
        used["blocks"] += 1000
        world.script.quota_statuses["search"] = {
            "hard": {"blocks": 100_000},
            "used": dict(used),
            "conditions": [
                {"type": "Ready", "status": "True" if used["blocks"] < 20_000 else "False", "reason": "Any"}
            ],
        }

    async def story(world: World) -> None:
        world.script.also = move
        world.controller.touch(POOL)
        await asyncio.sleep(16.0)
        assert world.journal.taken().count("quota status search") == 1 + 2
        used["blocks"] = 20_000
        world.controller.touch(POOL)
        assert "quota status search" in await settled(world)

    world = a_full_world()
    play(world, story)


def test_a_settled_pool_is_only_looked_at_and_asked() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        await asyncio.sleep(10 * SETTINGS.sync_seconds)
        assert set(world.journal.taken()) == {"observe", "sync pod-0"}

    play(a_full_world(), story)


def test_a_pool_is_planned_by_one_planner_in_all_of_its_passes() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await asyncio.sleep(4 * SETTINGS.sync_seconds)
        assert len(world.script.planners) > 2
        assert {id(each) for each in world.script.planners} == {id(world.script.planners[0])}

    play(a_full_world(), story)


def test_passes_come_with_the_period_when_nothing_wakes_them() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        await asyncio.sleep(4 * SETTINGS.sync_seconds)
        assert world.journal.taken().count("observe") == 4

    play(World().with_pods("pod-0"), story)


def test_the_period_counts_from_the_start_of_a_pass() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["observe"] = 1.0
        world.controller.touch(POOL)
        await asyncio.sleep(0.5 + 4 * SETTINGS.sync_seconds)
        assert world.journal.taken().count("observe") == 5

    play(World(), story)


def test_wake_ups_close_together_are_one_pass_that_comes_at_once() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        for _ in range(20):
            world.controller.touch(POOL)
            await asyncio.sleep(0.002)
        assert await settled(world) == ["observe"]

    play(World().with_pods("pod-0"), story)


def test_a_wake_up_during_a_pass_makes_another_pass() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["observe"] = 0.2
        world.controller.touch(POOL)
        await asyncio.sleep(0.1)
        world.controller.touch(POOL)
        await asyncio.sleep(0.9)
        assert world.journal.taken() == ["observe", "observe"]

    play(World(), story)


def test_a_changed_config_is_on_the_pod_within_a_moment_of_the_wake_up() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        world.script.caps["pod-0"] = 50
        world.cluster.edition += 1
        world.controller.touch(POOL)
        assert await settled(world, 0.1) == [
            "observe",
            "config pod-0 generation 2",
            "sync pod-0",
            "sync pod-0 +config",
        ]

    play(World().with_pods("pod-0"), story)


def test_a_slow_pod_delays_no_other_and_is_not_asked_twice_at_a_time() -> None:
    async def story(world: World) -> None:
        world.channel.pods["slow"].delay = 1000.0
        world.controller.touch(POOL)
        await asyncio.sleep(5 * SETTINGS.sync_seconds)
        lines = world.journal.taken()
        assert lines.count("sync slow") == 1
        assert lines.count("sync pod-0") >= 5

    play(World().with_pods("slow", "pod-0"), story)


def test_a_slow_write_is_not_started_again_while_it_is_under_way() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["config"] = 7.0
        world.controller.touch(POOL)
        await asyncio.sleep(6.0)
        assert world.journal.taken().count("config pod-0 generation 1") == 1

    play(World().with_pods("pod-0"), story)


def test_the_second_decision_of_a_pass_sees_the_new_reports_and_gives_no_new_generation() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        first, second = world.script.shown
        assert (first.sync_seconds, second.sync_seconds) == (SETTINGS.sync_seconds, SETTINGS.sync_seconds)
        assert (first.reports, first.configs) == ({}, {})
        assert [seen.report.in_force.generation for seen in second.reports.values() if seen.report] == [1]
        assert [each.generation for each in second.configs.values()] == [1]

    play(World().with_pods("pod-0"), story)


def test_a_pass_over_an_unchanged_pool_decides_once_from_the_newest_reports() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        world.script.shown.clear()
        await asyncio.sleep(SETTINGS.sync_seconds)
        assert [
            each.report.sequence for seen in world.script.shown for each in seen.reports.values() if each.report
        ] == [3]
        world.cluster.edition += 1
        await asyncio.sleep(SETTINGS.sync_seconds)
        assert len(world.script.shown) == 1 + 2

    play(World().with_pods("pod-0"), story)


def test_a_pool_that_is_gone_is_left_alone_until_it_is_touched_again() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        world.cluster.there = False
        world.controller.touch(POOL)
        await asyncio.sleep(20.0)
        assert world.journal.taken() == ["observe"]
        assert world.controller.pools == 0
        world.cluster.there = True
        world.controller.touch(POOL)
        assert await settled(world) == ["observe", "sync pod-0"]

    play(World().with_pods("pod-0"), story)


def test_the_quotas_of_a_pool_that_is_gone_are_told_so_once() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        world.cluster.there = False
        world.controller.touch(POOL)
        await asyncio.sleep(20.0)
        assert world.journal.taken() == ["observe", "quota status search", "event InvalidSpec of search", "observe"]
        assert world.cluster.quota_statuses["search"]["state"] == "NotReady"
        assert world.controller.pools == 0

    play(a_full_world(), story)


def test_an_orphan_whose_status_could_not_be_written_is_tried_again() -> None:
    async def story(world: World) -> None:
        world.cluster.there = False
        world.cluster.quota_statuses["search"] = {}
        world.cluster.failures["quota status"] = [UnreachableError("away"), ConflictError("changed")]
        world.controller.touch(POOL)
        await asyncio.sleep(20.0)
        assert world.journal.taken().count("quota status search") == 3
        assert world.cluster.quota_statuses["search"]["state"] == "NotReady"
        assert world.controller.pools == 0

    play(World(), story)


def test_a_pool_that_comes_back_while_its_end_is_noticed_goes_on() -> None:
    async def story(world: World) -> None:
        world.cluster.there = False
        world.cluster.delays["observe"] = 0.1
        world.controller.touch(POOL)
        await asyncio.sleep(0.05)
        world.controller.touch(POOL)
        await asyncio.sleep(0.08)
        world.cluster.there = True
        await asyncio.sleep(1.0)
        assert world.controller.pools == 1
        assert world.journal.taken() == ["observe", "observe"]

    play(World(), story)


def test_pools_do_not_wait_for_each_other() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["observe"] = 1.0
        for number in range(10):
            world.controller.touch(PoolKey("inference", f"pool-{number}"))
        await asyncio.sleep(1.1)
        assert world.journal.taken() == ["observe"] * 10

    play(World(), story)


def test_an_event_is_told_after_the_status_that_it_explains_is_written() -> None:
    async def story(world: World) -> None:
        world.script.events = (event(name="search"), event(kind="ModelPool", name=POOL.name, reason="PlanInvalid"))
        world.cluster.failures["quota status"] = [ConflictError("changed meanwhile")]
        world.controller.touch(POOL)
        await asyncio.sleep(0.1)
        assert [line for line in world.journal.taken() if "event" in line] == ["event PlanInvalid of llama-8b"]
        await asyncio.sleep(1.0)
        told = [line for line in world.journal.taken() if "event" in line or "quota status" in line]
        assert told == ["quota status search", "event DuplicateTenant of search"]

    play(a_full_world(), story)


def test_an_event_is_told_although_the_answer_to_the_write_of_its_status_was_lost() -> None:
    async def story(world: World) -> None:
        world.script.events = (event(name="search"),)
        world.cluster.answers_lost = 1
        world.controller.touch(POOL)
        await asyncio.sleep(10 * SETTINGS.sync_seconds)
        told = [line for line in world.journal.taken() if "event" in line or "quota status" in line]
        assert told == ["quota status search", "event DuplicateTenant of search"]

    play(a_full_world(), story)


@pytest.mark.parametrize(
    ("status", "writes"),
    [pytest.param({}, 1, id="it is as it was"), pytest.param({"state": "Other"}, 2, id="it is something else by now")],
)
def test_of_a_write_that_may_have_been_stored_nothing_is_told_where_it_was_not(
    status: dict[str, str], writes: int
) -> None:
    async def story(world: World) -> None:
        world.script.events = (event(name="search"),)
        world.cluster.failures["quota status"] = [UnreachableError("away")]
        world.controller.touch(POOL)
        await asyncio.sleep(0.1)
        world.script.events, world.script.quota_statuses = (), {"search": status}
        await asyncio.sleep(10 * SETTINGS.sync_seconds)
        told = [line for line in world.journal.taken() if "event" in line or "quota status" in line]
        assert told == ["quota status search"] * writes

    play(a_full_world(), story)


def test_an_event_that_fails_spoils_nothing_and_is_told_later() -> None:
    async def story(world: World) -> None:
        world.script.events = (event(name="search"),)
        world.cluster.failures["event"] = [ForbiddenError("no right to create events"), UnreachableError("away")]
        world.controller.touch(POOL)
        await asyncio.sleep(10 * SETTINGS.sync_seconds)
        assert world.cluster.quota_statuses == {"search": {"state": "Ready"}}
        assert [line for line in world.journal.taken() if "event" in line] == ["event DuplicateTenant of search"] * 3
        assert [each for each in world.counted if "Event" in each] == [
            "failed Event Forbidden",
            "failed Event Unreachable",
            "done Event",
        ]

    play(a_full_world(), story)


def test_where_the_second_of_two_events_fails_the_first_is_not_told_again() -> None:
    async def story(world: World) -> None:
        world.script.events = (event(name="search"), event(name="search", reason="KeyTaken"))
        world.cluster.delays["event"] = 1.0
        world.controller.touch(POOL)
        await asyncio.sleep(1.5)
        world.cluster.failures["event"] = [UnreachableError("away")]
        await asyncio.sleep(10 * SETTINGS.sync_seconds)
        told = [line for line in world.journal.taken() if "event" in line]
        assert told == ["event DuplicateTenant of search", *["event KeyTaken of search"] * 2]

    play(a_full_world(), story)


def test_an_event_that_waits_for_its_next_try_outlives_another_write_of_the_status() -> None:
    async def story(world: World) -> None:
        world.script.events = (event(name="search"),)
        world.cluster.failures["event"] = [UnreachableError("away", retry_after=10.0)]
        world.controller.touch(POOL)
        await asyncio.sleep(6.0)
        world.script.events, world.script.quota_statuses = (), {"search": {"state": "Refusing"}}
        await asyncio.sleep(10.0)
        told = [line for line in world.journal.taken() if "event" in line or "quota status" in line]
        tell, write = "event DuplicateTenant of search", "quota status search"
        assert told == [write, tell, write, tell]

    play(a_full_world(), story)


def test_a_longest_pass_grows_while_a_pass_hangs_and_is_zero_afterwards() -> None:
    async def story(world: World) -> None:
        assert world.controller.longest_pass() == 0.0
        world.cluster.delays["observe"] = 50.0
        world.controller.touch(POOL)
        await asyncio.sleep(40.0)
        assert world.controller.longest_pass() == pytest.approx(40.0)
        world.cluster.delays["observe"] = 0.0
        await asyncio.sleep(11.0)
        assert world.controller.longest_pass() == 0.0

    play(World(), story)


def test_a_controller_without_telemetry_works_too() -> None:
    async def scene() -> list[str]:
        journal = Journal()
        cluster, channel = FakeCluster(journal, pods=(pod(),)), FakeChannel(journal, {"pod-0": FakePod()})
        channel.pods["pod-0"].failures = [PodTimeoutError("late")]
        clock, script = virtual_time.LoopClock(), Script(caps={"pod-0": 1})
        controller = PoolController(cluster, channel, clock, SETTINGS, decide=script)
        running = asyncio.create_task(controller.run())
        controller.touch(POOL)
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        return journal.taken()

    assert virtual_time.run(scene()) == ["observe", "config pod-0 generation 1", "sync pod-0"]
