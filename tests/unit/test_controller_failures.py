"""What the controller repeats, and what ends it, when a cluster, a pod or the operator itself fails."""

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


@pytest.mark.parametrize("method", ["observe", "secret", "config", "pool status", "quota status"])
def test_a_bug_in_the_cluster_ends_the_controller(method: str) -> None:
    async def story(world: World) -> None:
        world.cluster.failures[method] = [ZeroDivisionError("a bug")]
        world.controller.touch(POOL)
        await asyncio.sleep(60.0)

    with pytest.raises(ExceptionGroup) as raised:
        play(a_full_world(), story)
    assert raised.group_contains(ZeroDivisionError)


def test_a_bug_in_the_channel_ends_the_controller() -> None:
    async def story(world: World) -> None:
        world.channel.pods["pod-0"].failures = [ZeroDivisionError("a bug")]
        world.controller.touch(POOL)
        await asyncio.sleep(60.0)

    with pytest.raises(ExceptionGroup) as raised:
        play(World().with_pods("pod-0"), story)
    assert raised.group_contains(ZeroDivisionError)


def test_a_bug_in_the_decision_ends_the_controller() -> None:
    def divide(_: object) -> None:
        raise ZeroDivisionError

    async def story(world: World) -> None:
        world.script.also = divide
        world.controller.touch(POOL)
        await asyncio.sleep(60.0)

    with pytest.raises(ExceptionGroup) as raised:
        play(World(), story)
    assert raised.group_contains(ZeroDivisionError)


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
