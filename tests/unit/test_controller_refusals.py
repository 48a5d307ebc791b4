"""What a decision is shown of pods that take nothing, and of objects that the API server does not store."""

from controller_world import World, a_full_world, play, settled
from kvquota_operator.ports import RefusedError
from operator_fakes import POOL, part


def test_a_copy_that_is_refused_again_and_again_is_shown_until_it_is_stored() -> None:
    async def story(world: World) -> None:
        world.cluster.failures["config"] = [RefusedError("no")] * 4
        world.controller.touch(POOL)
        await settled(world, 0.1)
        assert world.script.shown[-1].refused == {}
        await settled(world, 1.2)
        assert world.script.shown[-1].refused == {"uid-pod-0": "no"}
        await settled(world, 4.0)
        assert (world.script.shown[-1].refused, list(world.cluster.configs)) == ({}, ["uid-pod-0"])

    play(World().with_pods("pod-0"), story)


def test_a_refused_copy_that_is_wanted_no_longer_is_not_shown() -> None:
    async def story(world: World) -> None:
        world.cluster.failures["config"] = [RefusedError("no")] * 4
        world.controller.touch(POOL)
        await settled(world, 1.2)
        world.script.caps = {}
        await settled(world, 2.5)
        assert world.script.shown[-1].refused == {}

    play(World().with_pods("pod-0"), story)


def test_a_secret_that_is_refused_again_and_again_is_shown_until_it_is_stored() -> None:
    async def story(world: World) -> None:
        world.cluster.failures["secret"] = [RefusedError("no")] * 4
        world.controller.touch(POOL)
        await settled(world, 1.2)
        assert world.script.shown[-1].secret_refused == "no"
        await settled(world, 4.0)
        assert world.script.shown[-1].secret_refused is None

    play(a_full_world(), story)


def test_a_pod_that_takes_nothing_is_behind_since_the_first_pass_until_it_has_what_it_should() -> None:
    async def story(world: World) -> None:
        world.channel.pods["pod-0"].refuses = True
        world.controller.touch(POOL)
        await settled(world, 1.0)
        first = world.script.shown[-1].behind
        assert first.keys() == {"uid-pod-0"}
        world.script.caps["pod-0"] = 200
        await settled(world, 20.0)
        assert world.script.shown[-1].behind == first
        world.channel.pods["pod-0"].refuses = False
        await settled(world, 4.0)
        assert world.script.shown[-1].behind == {}

    play(World().with_pods("pod-0"), story)


def test_a_pod_that_waits_for_its_copy_to_be_stored_is_behind() -> None:
    async def story(world: World) -> None:
        world.cluster.failures["config"] = [RefusedError("no")] * 9
        world.controller.touch(POOL)
        await settled(world, 5.0)
        assert world.script.shown[-1].behind.keys() == {"uid-pod-0"}

    world = World().with_pods("pod-0")
    world.script.tenants = (part(50, 100),)
    play(world, story)


def test_a_pod_that_takes_every_edit_is_never_behind_for_long() -> None:
    async def story(world: World) -> None:
        world.channel.pods["pod-0"].delay = 0.7
        for cap in range(101, 131):
            world.script.caps["pod-0"] = cap
            world.controller.touch(POOL)
            await settled(world, 1.0)
        starts = {since for shown in world.script.shown for since in shown.behind.values()}
        assert len(starts) > 5

    play(World().with_pods("pod-0"), story)
