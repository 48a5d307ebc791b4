"""What a replica does with news of pools, on duty and off it."""

import asyncio
from collections.abc import Iterable

import virtual_time
from kvquota_operator.controller import ControllerSettings, PoolController
from kvquota_operator.duty import Duty
from kvquota_operator.reconcile.observed import PoolKey
from operator_fakes import POOL, FakeChannel, FakeCluster, Journal, Script

OTHER = PoolKey("inference", "other")


class FakeSight:
    def __init__(self, journal: Journal, *keys: PoolKey) -> None:
        self._journal = journal
        self._keys = keys

    def keys(self) -> Iterable[PoolKey]:
        return self._keys

    def follow(self, pool: PoolKey) -> None:
        self._journal(f"follow {pool.name}")


class Scene:
    def __init__(self, *keys: PoolKey) -> None:
        self.journal = Journal()
        self.cluster = FakeCluster(self.journal)
        self.appointed = 0
        self.duty = Duty(FakeSight(self.journal, *keys), self._appoint)

    def _appoint(self) -> PoolController:
        self.appointed += 1
        clock, channel = virtual_time.LoopClock(), FakeChannel(self.journal)
        return PoolController(self.cluster, channel, clock, ControllerSettings(), decide=Script())


async def term(scene: Scene, seconds: float = 1.0) -> None:
    leading = asyncio.create_task(scene.duty.lead())
    await asyncio.sleep(seconds)
    assert scene.duty.controller is not None
    leading.cancel()
    await asyncio.wait([leading])


def test_a_replica_that_stands_by_only_follows() -> None:
    scene = Scene(POOL)
    scene.duty.touch(OTHER)
    assert scene.journal.taken() == [f"follow {OTHER.name}"]
    assert (scene.duty.controller, scene.duty.longest_pass) == (None, 0.0)


def test_a_leader_governs_what_is_there_and_what_is_touched() -> None:
    async def story() -> list[str]:
        scene = Scene(POOL)
        leading = asyncio.create_task(scene.duty.lead())
        await asyncio.sleep(0.5)
        assert scene.journal.taken() == ["observe"]
        scene.duty.touch(OTHER)
        await asyncio.sleep(0.5)
        assert scene.duty.controller is not None
        assert scene.duty.controller.pools == 2
        leading.cancel()
        await asyncio.wait([leading])
        return scene.journal.taken()

    assert virtual_time.run(story()) == ["observe"]


def test_every_term_has_a_controller_of_its_own_and_nothing_goes_on_after_it() -> None:
    async def story() -> int:
        scene = Scene(POOL)
        await term(scene)
        await term(scene)
        scene.journal.taken()
        await asyncio.sleep(60)
        assert scene.journal.taken() == []
        scene.duty.touch(POOL)
        assert scene.journal.taken() == [f"follow {POOL.name}"]
        return scene.appointed

    assert virtual_time.run(story()) == 2
