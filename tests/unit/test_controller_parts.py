"""Configs with a part of a limit over all pods: stored before they are sent, and remembered while nobody knows."""

import pytest

from controller_world import World, play, settled
from kvquota_operator.ports import (
    ClusterError,
    ClusterTimeoutError,
    ConflictError,
    ForbiddenError,
    RefusedError,
    ThrottledError,
    UnreachableError,
)
from operator_fakes import POOL, config, part

PARTS = (part(50, 100),)
STORED = [ClusterTimeoutError, UnreachableError]


def a_world(*, tenants: tuple = PARTS) -> World:
    world = World().with_pods("pod-0")
    world.script.tenants = tenants
    return world


def places(lines: list[str]) -> list[str]:
    """What happened to configs, without their generations."""
    kinds = {"config": "stored", "sync": "asked"}
    told = [line.split() for line in lines if not line.endswith("pod-0 +identity")]
    return ["sent" if "+config" in words else kinds[words[0]] for words in told if words[0] in kinds]


def test_a_part_is_sent_once_it_is_stored() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["config"] = 1.2
        world.controller.touch(POOL)
        assert places(await settled(world, 1.1)) == ["stored", "asked"]
        assert places(await settled(world, 2.0)) == ["asked", "sent"]

    play(a_world(), story)


def test_a_part_that_is_stored_at_once_is_sent_in_the_same_pass() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        assert places(await settled(world)) == ["stored", "asked", "sent"]

    play(a_world(), story)


def test_a_config_that_takes_a_part_back_is_stored_first_too() -> None:
    async def story(world: World) -> None:
        world.cluster.configs["uid-pod-0"] = config(tenants=PARTS)
        world.cluster.failures["config"] = [RefusedError("too large")]
        world.controller.touch(POOL)
        assert places(await settled(world, 0.1)) == ["stored", "asked"]
        assert "sent" in places(await settled(world, 2.5))

    play(a_world(tenants=()), story)


def test_a_config_without_parts_waits_for_nothing() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["config"] = 1.2
        world.controller.touch(POOL)
        assert places(await settled(world)) == ["stored", "asked", "sent"]

    play(a_world(tenants=()), story)


@pytest.mark.parametrize(
    "kind",
    [
        ClusterTimeoutError,
        UnreachableError,
        pytest.param(ThrottledError, id="ThrottledError says that it was not stored"),
        pytest.param(ConflictError, id="ConflictError says that it was not stored"),
        pytest.param(ForbiddenError, id="ForbiddenError says that it was not stored"),
        pytest.param(RefusedError, id="RefusedError says that it was not stored"),
    ],
)
def test_a_write_without_an_answer_may_have_been_stored(kind: type[ClusterError]) -> None:
    async def story(world: World) -> None:
        world.cluster.failures["config"] = [kind("away")]
        world.controller.touch(POOL)
        await settled(world, 0.1)
        shown = world.script.shown[-1].attempts
        assert shown == ({"uid-pod-0": config(tenants=PARTS)} if kind in STORED else {})
        await settled(world, 3.0)
        assert (world.script.shown[-1].attempts, world.script.shown[-1].configs.keys()) == ({}, {"uid-pod-0"})

    play(a_world(), story)


def test_while_it_is_under_way_a_write_counts_and_is_written_again_when_nobody_answered() -> None:
    async def story(world: World) -> None:
        world.cluster.delays["config"] = 1.0
        world.controller.touch(POOL)
        await settled(world, 0.8)
        assert world.script.shown[-1].attempts == {"uid-pod-0": config(tenants=PARTS)}
        world.cluster.failures["config"] = [ClusterTimeoutError("away")]
        await settled(world, 0.25)
        world.cluster.configs["uid-pod-0"] = config(tenants=PARTS)
        world.cluster.delays["config"] = 0.0
        assert places(await settled(world, 3.0)).count("stored") == 1
        assert world.script.shown[-1].attempts == {}

    play(a_world(), story)


def test_what_a_pod_that_is_gone_was_given_is_forgotten() -> None:
    async def story(world: World) -> None:
        world.cluster.failures["config"] = [UnreachableError("away")]
        world.controller.touch(POOL)
        await settled(world, 0.05)
        world.cluster.pods, world.script.caps = (), {}
        world.controller.touch(POOL)
        await settled(world)
        assert world.script.shown[-1].attempts == {}

    play(a_world(), story)
