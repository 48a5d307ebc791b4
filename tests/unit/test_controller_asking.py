"""Which pods the controller asks, and what it reports of those that do not answer."""

import asyncio

import pytest

from controller_world import SETTINGS, World, play, settled
from kvquota_operator.ports import PodTimeoutError, PodUnreachableError
from kvquota_operator.reconcile.observed import PoolClaim, ReportSeen
from operator_fakes import POOL, moved, pod


def test_a_pod_that_was_not_asked_yet_has_no_entry_among_the_reports() -> None:
    async def story(world: World) -> None:
        world.cluster.pods = (pod("pod-0", ip=None),)
        world.controller.touch(POOL)
        await settled(world)
        assert [seen.reports for seen in world.script.shown] == [{}, {}]

    play(World().with_pods("pod-0"), story)


def test_an_unreachable_pod_is_reported_with_its_last_report_and_the_error() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        good = world.script.shown[-1].reports["uid-pod-0"]
        world.channel.pods["pod-0"].failures = [PodTimeoutError("pod-0 did not answer")] * 3
        await asyncio.sleep(SETTINGS.sync_seconds)
        assert world.script.shown[-1].reports["uid-pod-0"] == ReportSeen(
            good.report, good.received_at, "pod-0 did not answer"
        )

    play(World().with_pods("pod-0"), story)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        pytest.param({"governed": False}, False, id="a pod without a sidecar is not asked"),
        pytest.param({"ip": None}, False, id="a pod without an address is not asked"),
        pytest.param({"deleting": True}, True, id="a pod that drains is asked what it still holds"),
    ],
)
def test_who_is_asked(change: dict[str, object], asked: bool) -> None:
    async def story(world: World) -> None:
        world.script.caps = {}
        world.cluster.pods = (moved(pod("pod-0"), **change),)
        world.controller.touch(POOL)
        assert ("sync pod-0" in await settled(world)) is asked

    play(World().with_pods("pod-0"), story)


@pytest.mark.parametrize(
    ("caps", "asked"),
    [
        pytest.param({}, False, id="a pod that two pools claim is not asked by the one that does not get it"),
        pytest.param({"pod-0": 100}, True, id="a pod that two pools claim is asked by the one that gets it"),
    ],
)
def test_a_disputed_pod(caps: dict[str, int], asked: bool) -> None:
    async def story(world: World) -> None:
        world.script.caps = caps
        world.cluster.pods = (moved(pod("pod-0"), other_pools=(PoolClaim("2026", "other"),)),)
        world.controller.touch(POOL)
        assert ("sync pod-0" in await settled(world)) is asked

    play(World().with_pods("pod-0"), story)


def test_a_deleted_pod_is_forgotten() -> None:
    async def story(world: World) -> None:
        world.controller.touch(POOL)
        await settled(world)
        world.cluster.pods, world.script.caps = (), {}
        await asyncio.sleep(SETTINGS.sync_seconds)
        assert world.script.shown[-1].reports == {}

    play(World().with_pods("pod-0"), story)


def test_a_pod_that_moved_is_asked_at_once_though_its_old_address_failed_for_long() -> None:
    async def story(world: World) -> None:
        world.channel.pods["pod-0"].failures = [PodUnreachableError("nobody there")] * 8
        world.controller.touch(POOL)
        await asyncio.sleep(30.0)
        world.channel.pods["pod-0"].failures = []
        world.journal.taken()
        world.cluster.pods = (pod("pod-0", ip="10.0.0.99"),)
        world.controller.touch(POOL)
        assert "sync pod-0 +config +identity" in await settled(world)

    play(World().with_pods("pod-0"), story)


def test_without_a_secret_nothing_is_sent_to_pods() -> None:
    async def story(world: World) -> None:
        world.cluster.secret = None
        world.controller.touch(POOL)
        assert await settled(world) == ["observe", "config pod-0 generation 1"]

    play(World().with_pods("pod-0"), story)
