"""One replica stands for election: when its work runs, and when it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import virtual_time
from kvquota_operator.electing import Candidate
from kvquota_operator.leading import NOBODY, Record, Timing
from kvquota_operator.ports import ClusterError, ConflictError, UnreachableError

TIMING = Timing()
ME, OTHER = "me", "other"


class FakeLease:
    """A Lease in memory. `down`: raised by everything; `hangs`: nothing is answered."""

    def __init__(self, journal: list[str]) -> None:
        self.record = Record()
        self.down: ClusterError | None = None
        self.hangs = False
        self._journal = journal
        self._versions = 0

    async def look(self) -> Record:
        await self._answers()
        return self.record

    async def make(self, lease_seconds: float) -> Record:
        await self._answers()
        return self.put(NOBODY, terms=0)

    async def write(self, over: Record, holder: str, lease_seconds: float) -> Record:
        await self._answers()
        if over.version != self.record.version:
            raise ConflictError("changed")
        self._journal.append(f"lease {holder or 'nobody'}" if holder != self.record.holder else "renewed")
        return self.put(holder, terms=over.terms + 1)

    def put(self, holder: str, *, terms: int = 1) -> Record:
        self._versions += 1
        self.record = Record(str(self._versions), holder, TIMING.lease_seconds, terms)
        return self.record

    async def _answers(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        if self.down is not None:
            raise self.down


class Scene:
    """A candidate over a Lease in memory. `journal` says what happened, without the renewals."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lease = FakeLease(self.lines)
        self.candidate = Candidate(self.lease, asyncio.get_running_loop().time, ME, TIMING)
        self.fails: BaseException | None = None

    @property
    def journal(self) -> list[str]:
        return [line for line in self.lines if line != "renewed"]

    async def lead(self) -> None:
        self.lines.append("works")
        try:
            if self.fails is not None:
                raise self.fails
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            self.lines.append("ended")


def play(story: Callable[[Scene], Awaitable[None]]) -> Scene:
    async def whole() -> Scene:
        scene = Scene()
        running = asyncio.create_task(scene.candidate.run(scene.lead))
        await story(scene)
        running.cancel()
        await asyncio.wait([running])
        return scene

    return virtual_time.run(whole())


def test_the_first_replica_of_all_makes_the_lease_and_leads_when_it_is_old_enough() -> None:
    async def story(scene: Scene) -> None:
        await asyncio.sleep(9.9)
        assert (scene.journal, scene.candidate.may_write()) == ([], False)
        await asyncio.sleep(0.3)
        assert scene.candidate.may_write()

    assert play(story).journal == ["lease me", "works", "ended", "lease nobody"]


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    async def story(scene: Scene) -> None:
        scene.lease.put(NOBODY)
        await asyncio.sleep(0.1)
        assert scene.journal == ["lease me", "works"]

    play(story)


def test_who_stands_by_follows_a_leader_that_is_silent_and_not_one_that_renews() -> None:
    async def story(scene: Scene) -> None:
        scene.lease.put(OTHER)
        for _ in range(20):
            await asyncio.sleep(2)
            scene.lease.put(OTHER)
        assert scene.journal == []
        await asyncio.sleep(9.9)
        assert not scene.candidate.may_write()
        await asyncio.sleep(1.3)
        assert scene.candidate.may_write()

    play(story)


@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_a_leader_that_cannot_renew_stops_before_another_one_may_follow(how: str) -> None:
    async def story(scene: Scene) -> None:
        scene.lease.put(NOBODY)
        await asyncio.sleep(5)
        scene.lease.hangs = how == "hangs"
        scene.lease.down = UnreachableError("nobody answers") if how == "refuses" else None
        last = scene.lease.record
        await asyncio.sleep(TIMING.deadline_seconds + 0.2)
        assert (scene.journal, scene.candidate.may_write()) == (["lease me", "works", "ended"], False)
        scene.lease.hangs, scene.lease.down = False, None
        await asyncio.sleep(4)
        assert scene.lease.record != last
        assert scene.journal == ["lease me", "works", "ended", "works"]

    play(story)


def test_a_leader_that_finds_another_one_stops_at_once() -> None:
    async def story(scene: Scene) -> None:
        scene.lease.put(NOBODY)
        await asyncio.sleep(1)
        scene.lease.put(OTHER)
        await asyncio.sleep(2.5)
        assert scene.journal == ["lease me", "works", "ended"]

    assert play(story).lease.record.holder == OTHER


def test_a_lease_that_was_deleted_is_made_anew_and_nobody_leads_for_as_long_as_one_lasts() -> None:
    async def story(scene: Scene) -> None:
        scene.lease.put(NOBODY)
        await asyncio.sleep(1)
        scene.lease.record = Record()
        await asyncio.sleep(3)
        assert (scene.candidate.may_write(), scene.lease.record.holder, scene.lease.record.version) == (False, "", "3")
        await asyncio.sleep(10)
        assert scene.candidate.may_write()

    play(story)


def test_an_end_does_not_wait_for_an_api_server_that_is_away() -> None:
    async def story(scene: Scene) -> None:
        scene.lease.put(NOBODY)
        await asyncio.sleep(1)
        scene.lease.hangs = True

    assert play(story).journal == ["lease me", "works", "ended"]


def test_a_bug_in_the_work_ends_the_candidate_and_gives_the_lease_back() -> None:
    async def whole() -> list[str]:
        scene = Scene()
        scene.lease.put(NOBODY)
        scene.fails = ZeroDivisionError()
        with pytest.RaisesGroup(ZeroDivisionError):
            await scene.candidate.run(scene.lead)
        return scene.journal

    assert virtual_time.run(whole()) == ["lease me", "works", "ended", "lease nobody"]


def test_trouble_is_told_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        scene.lease.down = UnreachableError("nobody answers")
        await asyncio.sleep(20)

    play(story)
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "the Lease: nobody answers; trying again"
    ]
