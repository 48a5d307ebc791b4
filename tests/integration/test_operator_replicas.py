"""Two replicas of the operator over a real API server: who leads, who follows, and what is written meanwhile."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import knobs
from operator_replicas import Asked, Audit, Replica, account, leader, replica
from operator_world import Sidecar, World, quota, until, until_true
from testcluster.apiserver import ApiServer

pytestmark = pytest.mark.apiserver

QUOTAS = 12
PODS = 3
LEASE_S = 10.0  # of kvquota_operator.leading.Timing
AWAY_S = knobs.seconds("KVQUOTA_AWAY_SECONDS", 60.0)
MOST_WRITES = 4 * (QUOTAS + PODS + 1)
"""For one edit of all quotas: each status, each config, and as much again for what comes late, twice."""


@pytest.fixture(scope="module")
def server(audited: ApiServer) -> ApiServer:
    return audited


@pytest.fixture(scope="module")
def accounts(server: ApiServer, audit: Audit) -> dict[str, Path]:
    return {name: account(server, name, audit.folder) for name in ("a", "b")}


@dataclass(frozen=True)
class Pair:
    """Two replicas, and when they were started, in Unix seconds."""

    leader: Replica
    other: Replica
    since: float

    @property
    def both(self) -> list[Replica]:
        return [self.leader, self.other]


@pytest.fixture
async def pair(world: World, accounts: dict[str, Path]) -> AsyncIterator[Pair]:
    """Two replicas of which one leads. A Lease of their own."""
    since = time.time()
    lease = f"--lease-name={world.namespace}"
    with ExitStack() as stack:
        both = [stack.enter_context(replica(name, path, world.namespace, lease)) for name, path in accounts.items()]
        first = await leader(both)
        [second] = [each for each in both if each is not first]
        await until(second.ready, lambda each: each == 200, what="the other one is ready too")
        yield Pair(first, second, since)


async def governed(world: World) -> list[Sidecar]:
    await world.add_pool()
    await world.apply(*(quota(f"tenant-{n}", hard=50) for n in range(QUOTAS)))
    sidecars = [await world.add_pod(f"llama-{n}") for n in range(PODS)]
    await in_force(sidecars, 50)
    return sidecars


async def edit_all(world: World, percent: int) -> None:
    await world.apply(*(quota(f"tenant-{n}", hard=percent) for n in range(QUOTAS)))


def hards(sidecars: list[Sidecar]) -> list[int]:
    return [each.hard(f"tenant-{n}") or 0 for each in sidecars for n in range(QUOTAS)]


async def in_force(sidecars: list[Sidecar], percent: int) -> None:
    """All quotas have `percent` of what each pod has."""

    def holds() -> bool:
        return all(
            each.config is not None
            and len(each.config.tenants) == QUOTAS
            and all(t.hard_blocks == (each.config.kv.cap_blocks - 1) * percent // 100 for t in each.config.tenants)
            for each in sidecars
        )

    await until_true(holds, what=f"{percent} % are in force")


async def told(world: World, sidecars: list[Sidecar]) -> None:
    """Every status says what is in force."""

    async def said() -> set[int]:
        return {each.get("status", {}).get("hard", {}).get("blocks", -1) for each in await world.list("tenantquotas")}

    wanted = {sum(hards([each])[0] for each in sidecars)}, {hards(sidecars)[0]}
    await until(said, lambda each: each in wanted, what="every status says what is in force")


async def quiet(audit: Audit, *, seconds: float = 7.0) -> None:
    """Nothing is written for longer than the operator waits between two writes of a status."""

    async def count() -> tuple[int, int]:
        before = len(audit.writes())
        await asyncio.sleep(seconds)
        return before, len(audit.writes())

    await until(count, lambda each: each[0] == each[1], what="nothing is written any more")


def summary(written: list[Asked]) -> str:
    counted = Counter((each.verb, each.resource) for each in written)
    return ", ".join(f"{number} x {verb} {resource}" for (verb, resource), number in counted.items())


async def _event(replica: Replica, name: str) -> bool:
    return any(each["event"] == name for each in replica.events())


async def test_a_killed_leader_is_followed_in_the_middle_of_a_wave_of_edits(
    world: World, pair: Pair, audit: Audit
) -> None:
    sidecars = await governed(world)
    await quiet(audit)
    other = pair.other.name
    assert audit.writes(other, since=pair.since) == [], "who stands by writes nothing"
    for percent in (40, 30):
        await edit_all(world, percent)
    pair.leader.send(signal.SIGKILL)
    killed = time.time()
    await edit_all(world, 20)
    await until(pair.other.leads, bool, what="the other one leads")
    followed = time.time() - killed
    await in_force(sidecars, 20)
    effective = time.time() - killed
    await told(world, sidecars)
    await quiet(audit)
    written = audit.writes(other, since=killed)
    listed = {each.resource for each in audit.asked(other, since=killed) if each.verb == "list"}
    print(f"followed after {followed:.1f} s, the last edit in force after {effective:.1f} s: {summary(written)}")  # noqa: T201
    assert followed < 60
    assert listed <= {"modelpools", "tenantquotas"}, "pods and configs are not listed anew"
    assert len(written) <= MOST_WRITES, summary(written)


async def test_a_leader_that_is_told_to_end_is_followed_at_once(world: World, pair: Pair) -> None:
    pair.leader.send(signal.SIGTERM)
    start = time.monotonic()
    await until(pair.other.leads, bool, what="the other one leads")
    followed = time.monotonic() - start
    print(f"followed after {followed:.1f} s")  # noqa: T201
    assert await asyncio.to_thread(pair.leader.process.wait, 60) == 0
    assert followed < LEASE_S, "the Lease was given back"
    assert [each["event"] for each in pair.leader.events()][-3:] == ["leading", "resigned", "stopped"]


async def test_a_leader_that_wakes_after_its_time_writes_nothing(world: World, pair: Pair, audit: Audit) -> None:
    sidecars = await governed(world)
    await edit_all(world, 40)
    pair.leader.send(signal.SIGSTOP)
    await until(pair.other.leads, bool, what="the other one leads")
    await edit_all(world, 30)
    await in_force(sidecars, 30)
    woken = time.time()
    pair.leader.send(signal.SIGCONT)
    await until(lambda: _event(pair.leader, "resigned"), bool, what="it notices")
    await asyncio.sleep(3)
    assert audit.writes(pair.leader.name, since=woken) == []
    assert [await each.leads() for each in pair.both] == [False, True]
    assert await pair.leader.ready() == 200
    await in_force(sidecars, 30)
    await told(world, sidecars)


async def test_nobody_writes_while_the_api_server_is_away_and_nothing_is_written_twice_afterwards(
    world: World, pair: Pair, audit: Audit, server: ApiServer
) -> None:
    sidecars = await governed(world)
    await quiet(audit)
    before = len(audit.writes())
    [api] = [each for each in server.servers if each.name == "kube-apiserver"]
    api.process.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: _event(pair.leader, "resigned"), bool, what="the leader notices that it cannot renew")
        asked = [each.asked for each in sidecars]
        await asyncio.sleep(AWAY_S - LEASE_S)
        assert [each.asked for each in sidecars] == asked, "nobody leads, so nobody asks"
    finally:
        api.process.send_signal(signal.SIGCONT)
    back = time.monotonic()
    await leader(pair.both)
    led = time.monotonic() - back
    await edit_all(world, 30)
    await in_force(sidecars, 30)
    await told(world, sidecars)
    await quiet(audit)
    written = audit.writes()[before:]
    print(  # noqa: T201
        f"away for {AWAY_S:.0f} s: led {led:.1f} s after it was back, {len(written)} writes for {QUOTAS} edits"
    )
    assert len(written) <= MOST_WRITES, summary(written)
    assert await asyncio.gather(*(each.ready() for each in pair.both)) == [200, 200]


async def test_all_can_be_deleted_when_the_operator_is_gone(world: World, pair: Pair, audit: Audit) -> None:
    """Nothing has a finalizer that only the operator could take away."""
    sidecars = await governed(world)
    await quiet(audit)
    configs = [each.config for each in sidecars]
    for each in pair.both:
        each.send(signal.SIGTERM)
        assert await asyncio.to_thread(each.process.wait, 60) == 0
    everything = await world.list("modelpools,tenantquotas,configmaps,secrets,pods")
    assert [each["kind"] for each in everything if "finalizers" in each["metadata"]] == []
    await world.kubectl("delete", "modelpools,tenantquotas", "--all", "--timeout=20s")
    await world.kubectl("delete", "configmaps,secrets", "--all", "--timeout=20s")
    left = await world.list("modelpools,tenantquotas,configmaps,secrets")
    assert left == []
    assert [each["metadata"]["name"] for each in await world.list("pods")] == [f"llama-{n}" for n in range(PODS)]
    assert [each.config for each in sidecars] == configs, "pods go on with what they have"
