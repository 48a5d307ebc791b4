"""What the controller repeats, and what it holds back, when a cluster, a pod or the operator itself fails."""

import asyncio

import pytest

from controller_world import FIRST_PASS, World, a_full_world, play
from kvquota_operator.ports import (
    BadAnswerError,
    ChannelError,
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    ForbiddenError,
    NotOursError,
    PodTimeoutError,
    PodUnreachableError,
    RefusedError,
    ThrottledError,
    TokenRefusedError,
    UnreachableError,
    VanishedError,
)
from kvquota_operator.reconcile.observed import Observed, PoolKey
from operator_fakes import POOL

EVERY_CLUSTER_ERROR = [
    UnreachableError,
    ClusterTimeoutError,
    ThrottledError,
    ConflictError,
    ForbiddenError,
    NotOursError,
    VanishedError,
    RefusedError,
]


def a_bug() -> Exception:
    return ZeroDivisionError("a bug")


def bugs_told(caplog: pytest.LogCaptureFixture) -> int:
    """How many lines have a traceback of one."""
    found = [record.exc_info[1] for record in caplog.records if record.exc_info]
    return sum(isinstance(error, ZeroDivisionError) for error in found)


@pytest.mark.parametrize("kind", EVERY_CLUSTER_ERROR)
@pytest.mark.parametrize("method", ["secret", "config", "pool status", "quota status"])
def test_a_write_that_fails_is_done_again_and_stops_nothing_else(method: str, kind: type[ClusterError]) -> None:
    async def story(world: World) -> None:
        world.cluster.failures[method] = [kind("no")]
        world.controller.touch(POOL)
        await asyncio.sleep(1.0)
        lines = world.journal.taken()
        failed = next(line for line in FIRST_PASS if line.startswith(method))
        assert lines.count(failed) == 2
        assert [line for line in FIRST_PASS if line not in lines] == []
        assert [each for each in world.counted if each.startswith("failed")] == [
            f"failed {method.rsplit(maxsplit=1)[-1].capitalize()} {kind.reason}"
        ]

    play(a_full_world(), story)


@pytest.mark.parametrize("kind", EVERY_CLUSTER_ERROR)
def test_a_look_that_fails_is_repeated(kind: type[ClusterError]) -> None:
    async def story(world: World) -> None:
        world.cluster.failures["observe"] = [kind("no"), kind("no")]
        world.controller.touch(POOL)
        await asyncio.sleep(1.0)
        assert world.journal.taken() == ["observe", "observe", *FIRST_PASS]

    play(a_full_world(), story)


@pytest.mark.parametrize("kind", [PodUnreachableError, PodTimeoutError, TokenRefusedError, BadAnswerError])
def test_a_pod_that_fails_is_asked_again(kind: type[ChannelError]) -> None:
    async def story(world: World) -> None:
        world.channel.pods["pod-0"].failures = [kind("no")]
        world.controller.touch(POOL)
        await asyncio.sleep(1.0)
        lines = world.journal.taken()
        assert lines.count("sync pod-0 +config +identity") == 1
        assert "failed Sync " + kind.reason in world.counted

    play(World().with_pods("pod-0"), story)


@pytest.mark.parametrize("method", ["secret", "config", "pool status", "quota status"])
def test_a_bug_in_a_write_holds_back_what_is_written_and_stops_nothing_else(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        world.bugs = True
        world.cluster.failures[method] = [a_bug()]
        world.controller.touch(POOL)
        await asyncio.sleep(1.0)
        lines = world.journal.taken()
        failed = next(line for line in FIRST_PASS if line.startswith(method))
        assert lines.count(failed) == 2
        assert [line for line in FIRST_PASS if line not in lines] == []
        assert [each for each in world.counted if each.startswith("failed")] == [
            f"failed {method.rsplit(maxsplit=1)[-1].capitalize()} Bug"
        ]

    play(a_full_world(), story)
    assert bugs_told(caplog) == 1


def test_a_bug_in_the_channel_holds_back_one_pod() -> None:
    async def story(world: World) -> None:
        world.bugs = True
        world.channel.pods["pod-0"].failures = [a_bug()]
        world.controller.touch(POOL)
        await asyncio.sleep(3.0)
        assert world.journal.taken().count("sync pod-0 +config +identity") == 1
        assert [each for each in world.counted if each.startswith("failed")] == ["failed Sync Bug"]

    play(World().with_pods("pod-0"), story)


def test_a_bug_in_the_decision_holds_back_its_pool_and_is_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    other = PoolKey(POOL.namespace, "other")

    def divide(observed: Observed) -> None:
        if observed.key == POOL:
            raise a_bug()

    async def story(world: World) -> None:
        world.bugs = True
        world.script.also = divide
        world.controller.touch(POOL)
        world.controller.touch(other)
        await asyncio.sleep(60.0)
        tries = [observed.key for observed in world.script.shown]
        assert 5 < tries.count(POOL) < 12
        assert tries.count(other) > 25
        assert world.counted.count("failed Pass Bug") == tries.count(POOL) == bugs_told(caplog)
        assert world.journal.taken().count("event OperatorBug of llama-8b") == tries.count(POOL)

    play(World(), story)


def test_a_pool_whose_bug_is_over_goes_on_within_half_a_minute() -> None:
    async def story(world: World) -> None:
        world.bugs = True
        world.cluster.failures["observe"] = [a_bug() for _ in range(20)]
        world.controller.touch(POOL)
        await asyncio.sleep(300.0)
        world.journal.taken()
        world.cluster.failures.clear()
        world.controller.touch(POOL)
        await asyncio.sleep(31.0)
        lines = world.journal.taken()
        assert [line for line in FIRST_PASS if line not in lines] == []

    play(a_full_world(), story)


def test_what_a_pod_said_once_is_asked_for_again_after_a_bug() -> None:
    """One report that nobody foresaw does not hold its pool back for longer than the pod says so."""

    def judge(observed: Observed) -> None:
        if any(seen.report is not None and seen.report.sequence < 6 for seen in observed.reports.values()):
            raise a_bug()

    async def story(world: World) -> None:
        world.bugs = True
        world.script.also = judge
        world.controller.touch(POOL)
        await asyncio.sleep(60.0)
        assert {"failed Pass Bug", "done Status"} <= set(world.counted)

    play(a_full_world(), story)


def test_a_cancelled_controller_ends_and_leaves_nothing_running() -> None:
    async def story(world: World) -> None:
        world.channel.pods["pod-0"].delay = 1000.0
        world.controller.touch(POOL)
        await asyncio.sleep(1.0)
        running = world.running
        assert running is not None
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert [task.get_name() for task in asyncio.all_tasks() if "inference" in task.get_name()] == []

    play(World().with_pods("pod-0"), story)
