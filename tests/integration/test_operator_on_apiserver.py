"""The whole operator on a real API server: what it writes, what reaches the sidecars, and what it mends."""

import asyncio
import itertools
import json
import time
from functools import partial
from typing import Any

import pytest

from kvquota_api.pod_config import key_digest
from kvquota_operator.reconcile.manifests import MAX_CONFIG_BYTES, config_map, config_map_name
from kvquota_operator.settings import Address
from operator_fakes import config
from operator_world import (
    KEY,
    Object,
    Sidecar,
    World,
    key_secret,
    metrics,
    operator,
    quota,
    until,
    until_true,
)
from testcluster.processes import free_port
from testcluster.programs import ProgramError

pytestmark = pytest.mark.apiserver


async def one_tenant(world: World) -> Sidecar:
    """A pool with one pod and one tenant that has an API key."""
    await world.add_pool()
    await world.apply(
        key_secret("search-key"),
        quota("search", hard=50, identity={"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}),
    )
    return await world.add_pod("llama-0")


async def in_force(sidecar: Sidecar, tenant: str = "search") -> int:
    """The tenant's hard limit in blocks, once the sidecar enforces one."""
    await until_true(lambda: sidecar.hard(tenant) is not None, what=f"the sidecar has a limit for {tenant}")
    hard = sidecar.hard(tenant)
    assert hard is not None
    return hard


async def test_a_tenant_is_enforced_and_seen(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        hard = await in_force(sidecar)
        secret = await world.get("secret", "kvquota-llama")
        seen = await until(
            lambda: world.condition("tenantquota", "search", "Ready"), lambda each: each[0] == "True", what="Ready"
        )
        stored = await until(world.config_maps, lambda each: "llama-0" in each, what="the durable copy")
        columns = await world.kubectl("get", "tq", "search", "--no-headers")

    assert seen[0] == "True"
    assert sidecar.config == stored["llama-0"]
    assert secret["type"] == "kvquota.dev/pool"
    assert set(secret["data"]) == {"token", "pepper", "identity.json"}
    assert len(sidecar.tokens) == 1
    assert list(sidecar.keys.values()) == [f"{world.namespace}/search"]
    assert columns.split()[:2] == ["search", "search"]
    assert str(hard * 16) in columns.split()


async def test_the_sidecar_gets_a_digest_of_the_key_and_nobody_gets_the_key(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await until_true(lambda: bool(sidecar.keys), what="the identity is in force")
        everything = await world.kubectl("get", "configmaps,modelpools,tenantquotas,events", "-o", "yaml")
        pool_secret = await world.kubectl("get", "secret", "kvquota-llama", "-o", "yaml")
    [digest] = sidecar.keys
    assert len(digest) == len(key_digest("p" * 32, KEY))
    assert KEY not in everything + pool_secret
    assert KEY not in str(sidecar.config)


async def test_objects_go_with_their_owners(world: World) -> None:
    await one_tenant(world)
    async with operator(world):
        await until(world.config_maps, bool, what="the durable copy")
    config_map = (await world.list("configmaps", "-l", "kvquota.dev/pool=llama"))[0]
    pod = await world.get("pod", "llama-0")
    secret, pool = await world.get("secret", "kvquota-llama"), await world.get("modelpool", "llama")
    assert config_map["metadata"]["name"] == config_map_name(world.namespace, pod["metadata"]["uid"])
    assert [each["uid"] for each in config_map["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    assert [each["uid"] for each in secret["metadata"]["ownerReferences"]] == [pool["metadata"]["uid"]]


async def test_a_lowered_quota_reaches_the_pod_and_a_raised_one_too(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        before = await in_force(sidecar)

        def is_about(wanted: int) -> bool:
            return abs((sidecar.hard("search") or 0) - wanted) <= 1

        for percent, wanted in ((20, before * 2 // 5), (80, before * 8 // 5)):
            await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": percent}}}})
            await until_true(
                partial(is_about, wanted),
                what=f"hard of {percent} % is in force",
            )
    assert sidecar.config is not None
    assert sidecar.config.generation >= 3


async def test_a_restarted_operator_keeps_generations_and_writes_nothing_that_is_already_so(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        await settled(world)
    before, asked, config = await versions(world), sidecar.asked, sidecar.config
    async with operator(world):
        await until_true(lambda: sidecar.asked > asked + 3, what="the new operator asks the pod")
        assert await settled(world) == before
    assert config is not None
    assert sidecar.config == config


async def test_a_settled_operator_writes_nothing(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        before = await settled(world)
        asked = sidecar.asked
        await until_true(lambda: sidecar.asked > asked + 20, what="twenty more periods")
        assert await versions(world) == before


async def test_a_quota_without_its_pool_says_so_and_heals(world: World) -> None:
    sidecar = await one_tenant(world)
    await world.apply(quota("typo", pool="lama"))

    async def ready(name: str) -> tuple[str, str, str]:
        status = (await world.get("tenantquota", name)).get("status", {})
        found = [each for each in status.get("conditions", []) if each["type"] == "Ready"]
        return (found[0]["reason"], found[0]["message"], status["state"]) if found else ("", "", "")

    async with operator(world):
        await in_force(sidecar)
        typo = await until(lambda: ready("typo"), lambda each: each[0] == "PoolNotFound", what="typo is told")
        await until(lambda: ready("search"), lambda each: each[0] == "InForce", what="search is in force")
        await world.kubectl("delete", "modelpool", "llama")
        gone = await until(lambda: ready("search"), lambda each: each[0] == "PoolNotFound", what="search is told")
        status = (await world.get("tenantquota", "search"))["status"]
        events = await until(lambda: world.list("events", "--field-selector=reason=PoolNotFound"), bool, what="event")
        await world.add_pool()
        healed = await until(lambda: ready("search"), lambda each: each[0] == "InForce", what="search is healed")
    where = f"does not exist in namespace {world.namespace}"
    assert typo[1].startswith(f"ModelPool lama {where} (there are: llama; did you mean llama?): create it")
    assert gone[1].startswith(f"ModelPool llama {where} (there is none): create it")
    assert (typo[2], gone[2]) == ("NotReady", "NotReady")
    assert status.keys() == {"conditions", "observedGeneration", "state"}
    assert {each["type"] for each in events} == {"Warning"}
    assert healed[2] != "NotReady"


async def versions(world: World) -> dict[str, str]:
    """The resourceVersion of everything that the operator writes."""
    found = await world.list("configmaps,secrets,modelpools,tenantquotas,events")
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in found}


async def settled(world: World) -> dict[str, str]:
    """The versions once they have not changed for longer than the operator waits between two writes of a status."""
    seen: list[dict[str, str]] = []

    async def read() -> list[dict[str, str]]:
        seen.append(await versions(world))
        await asyncio.sleep(0.9)
        return seen[-7:]

    last = await until(read, lambda each: len(each) == 7 and all(one == each[0] for one in each), what="no writes")
    return last[-1]


async def test_an_edited_durable_copy_is_mended(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        written = await until(world.config_maps, bool, what="the durable copy")
        [name] = [each["metadata"]["name"] for each in await world.list("configmaps", "-l", "kvquota.dev/pool")]
        await world.patch("configmap", name, {"data": {"config.json": '{"tenants": []}'}})

        async def text() -> str:
            return str((await world.get("configmap", name))["data"]["config.json"])

        await until(text, lambda each: len(each) > 100, what="the edited copy is written again")
        again = await world.config_maps()
    assert (again["llama-0"].digest, again["llama-0"].tenants) == (
        written["llama-0"].digest,
        written["llama-0"].tenants,
    )


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(["delete", "configmap"], id="a deleted durable copy is written again"),
        pytest.param(["label", "configmap", "kvquota.dev/pool-"], id="a durable copy without its label gets it back"),
    ],
)
async def test_a_lost_durable_copy_is_written_again(world: World, edit: list[str]) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        await until(world.config_maps, bool, what="the durable copy")
        [found] = await world.list("configmaps", "-l", "kvquota.dev/pool")
        verb, kind, *rest = edit
        await world.kubectl(verb, kind, found["metadata"]["name"], *rest)

        async def version() -> str:
            listed = await world.list("configmaps", "-l", "kvquota.dev/pool")
            return str(listed[0]["metadata"]["resourceVersion"]) if listed else ""

        await until(
            version, lambda each: each not in ("", found["metadata"]["resourceVersion"]), what="the copy is back"
        )


async def test_an_edited_status_is_mended_and_additions_are_taken_away(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        await settled(world)
        good = (await world.get("tenantquota", "search"))["status"]
        assert "overSoft" not in good or good["overSoft"]["blocks"] != 7777
        edited = {"status": {"state": "Edited", "prefixHitRatePercent": 99, "hard": {"blocks": 1, "tokens": 1}}}
        await world.patch("tenantquota", "search", edited, "--subresource=status")

        async def status() -> Object:
            found: Object = (await world.get("tenantquota", "search"))["status"]
            return found

        await until(status, lambda each: each == good, what="the status is as the operator wrote it")


async def test_a_fight_over_a_status_is_told_and_is_no_hot_loop(world: World) -> None:
    sidecar, listen = await one_tenant(world), Address("127.0.0.1", free_port())
    async with operator(world, listen=listen):
        await in_force(sidecar)
        await settled(world)
        start, edits, told = time.monotonic(), itertools.count(), list[Object]()
        while not told:
            edited = {"status": {"state": f"Edited{next(edits)}"}}
            await world.patch("tenantquota", "search", edited, "--subresource=status")
            told = await world.list("events", "--field-selector=reason=StatusFought")
        seconds, counted = time.monotonic() - start, await metrics(listen)
    assert told[0]["involvedObject"]["name"] == "search"
    mends = counted['kvquota_operator_mends_total{kind="TenantQuota"}']
    assert 3 <= mends <= 1 + seconds / 5, f"{mends} mends in {seconds:.0f} s, after {next(edits)} edits"


@pytest.mark.parametrize(
    ("size", "stored"),
    [
        pytest.param(MAX_CONFIG_BYTES, True, id="as large as a config may be"),
        pytest.param(2**20 + 1, False, id="larger than the API server takes"),
    ],
)
async def test_how_large_a_config_map_may_be(world: World, size: int, stored: bool) -> None:
    body = {**config_map(config()), "data": {"config.json": "x" * size}}
    body["metadata"] = {**body["metadata"], "namespace": world.namespace}
    applied = world.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(body))
    if stored:
        await applied
    else:
        with pytest.raises(ProgramError, match="Too long"):
            await applied


async def test_a_foreign_config_map_is_left_alone_and_the_pod_is_governed_all_the_same(world: World) -> None:
    sidecar = await world.add_pod("llama-0")
    uid = (await world.get("pod", "llama-0"))["metadata"]["uid"]
    name = config_map_name(world.namespace, uid)
    labels = {"kvquota.dev/pool": "llama"}
    await world.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels},
            "data": {"mine": "keep it"},
        }
    )
    async with operator(world):
        await world.add_pool()
        await world.apply(quota("search"))
        await in_force(sidecar)
        events = await until(lambda: world.list("events", "--field-selector=reason=NotOurs"), bool, what="the event")
    assert events[0]["message"] == f"ConfigMap {name} exists and is not owned by pod llama-0: delete it"
    assert (await world.get("configmap", name))["data"] == {"mine": "keep it"}


async def test_a_foreign_secret_is_left_alone_and_told(world: World) -> None:
    await world.apply(key_secret("kvquota-llama", kind="Opaque"))
    before = await world.get("secret", "kvquota-llama")
    sidecar = await one_tenant(world)
    async with operator(world):
        events = await until(lambda: world.list("events", "--field-selector=reason=NotOurs"), bool, what="the event")
    assert events[0]["message"] == (
        "Secret kvquota-llama has type Opaque and is not the operator's: delete or rename it, the pool needs a Secret"
        " of this name"
    )
    assert await world.get("secret", "kvquota-llama") == before
    assert sidecar.asked == 0


async def test_the_later_of_two_quotas_for_one_tenant_is_told_so(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        before = await in_force(sidecar)
        await asyncio.sleep(1.1)  # creation times have whole seconds, and the older quota wins
        await world.apply(quota("search-again", tenant="search", hard=90))
        await until(
            lambda: world.condition("tenantquota", "search-again", "Ready"),
            lambda each: each == ("False", "DuplicateTenant"),
            what="the later quota is refused",
        )
        assert sidecar.hard("search") == before
        events = await until(
            lambda: world.list("events", "--field-selector=reason=DuplicateTenant"), bool, what="the event"
        )
    regarding = events[0]["involvedObject"]
    assert (regarding["kind"], regarding["name"]) == ("TenantQuota", "search-again")


async def test_a_deleted_quota_leaves_the_config_and_its_keys_the_identity(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await world.apply(quota("batch", hard=10))
        await in_force(sidecar, "batch")
        await until_true(lambda: bool(sidecar.keys), what="the key is known")
        await world.kubectl("delete", "tenantquota", "search")
        await until_true(lambda: sidecar.hard("search") is None and not sidecar.keys, what="the tenant is gone")
    assert sidecar.hard("batch") is not None


async def test_a_deleted_pool_stops_the_questions(world: World) -> None:
    sidecar = await one_tenant(world)
    address = Address("127.0.0.1", free_port())
    async with operator(world, listen=address):
        await in_force(sidecar)
        await world.kubectl("delete", "modelpool", "llama")
        await until(lambda: metrics(address), lambda each: each["kvquota_operator_pools"] == 0, what="no pools")
        asked = sidecar.asked
        await world.add_pool("second", selector={"matchLabels": {"app": "nobody"}})
        await until(lambda: world.list("secrets", "--field-selector=metadata.name=kvquota-second"), bool, what="work")
    assert sidecar.asked == asked


async def test_pods_come_and_go(world: World) -> None:
    first = await one_tenant(world)
    async with operator(world):
        await in_force(first)
        second = await world.add_pod("llama-1")
        assert await in_force(second) == first.hard("search")
        await until(world.config_maps, lambda each: set(each) == {"llama-0", "llama-1"}, what="two durable copies")
        await world.kubectl("delete", "pod", "llama-0", "--force", "--grace-period=0")

        async def expected() -> Any:
            return (await world.get("modelpool", "llama"))["status"]["pods"]["expected"]

        await until(expected, lambda each: each == 1, what="the pool expects one pod")


async def test_a_changed_selector_changes_the_pods(world: World) -> None:
    first = await one_tenant(world)
    other = await world.add_pod("canary-0", app="canary")
    async with operator(world):
        await in_force(first)
        assert other.asked == 0
        await world.patch("modelpool", "llama", {"spec": {"selector": {"matchLabels": {"app": "canary"}}}})
        await in_force(other)


async def test_a_pod_without_a_sidecar_is_told_and_not_counted(world: World) -> None:
    await world.add_pool()
    await world.add_pod("llama-0", sidecar=False)
    async with operator(world):
        await until(
            lambda: world.condition("modelpool", "llama", "PodsGoverned"),
            lambda each: each[0] == "False",
            what="PodsGoverned is False",
        )
        assert (await world.get("modelpool", "llama"))["status"]["pods"]["expected"] == 0
    assert world.sidecars["llama-0"].asked == 0


async def test_a_key_in_a_secret_of_another_type_is_not_read_until_it_is_put_right(world: World) -> None:
    sidecar = await world.add_pod("llama-0")
    identity = {"apiKeys": [{"secretRef": {"name": "database", "key": "key"}}]}
    await world.add_pool()
    await world.apply(key_secret("database", kind="Opaque"), quota("search", identity=identity))
    async with operator(world):
        await until(
            lambda: world.condition("tenantquota", "search", "Ready"),
            lambda each: each == ("False", "WrongSecretType"),
            what="the quota says that the Secret is of the wrong type",
        )
        assert not sidecar.keys
        await world.apply(key_secret("search-key"))
        identity["apiKeys"][0]["secretRef"]["name"] = "search-key"
        await world.patch("tenantquota", "search", {"spec": {"identity": identity}})
        await until_true(lambda: bool(sidecar.keys), what="the key of the right Secret is known")


async def test_two_pools_with_one_pod_do_not_fight_over_it(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        await asyncio.sleep(1.1)  # creation times have whole seconds, and the older pool wins
        await world.add_pool("second", selector={"matchLabels": {"app": "llama"}})
        await until(
            lambda: world.condition("modelpool", "second", "PodsGoverned"),
            lambda each: each == ("False", "SelectorConflict"),
            what="the later pool says that the pod is another's",
        )
    assert len(sidecar.tokens) == 1
    assert sidecar.config is not None
    assert sidecar.config.pool.name == "llama"


async def test_an_unreachable_sidecar_is_told_and_found_again(world: World) -> None:
    sidecar = await one_tenant(world)
    async with operator(world):
        await in_force(sidecar)
        await world.close()
        await until(
            lambda: world.condition("modelpool", "llama", "UsageObserved"),
            lambda each: each[0] == "False",
            what="UsageObserved is False",
        )
    assert json.loads(await world.kubectl("get", "modelpool", "llama", "-o", "json"))["status"]["pods"]["stale"] == 1


async def test_a_process_that_has_the_operator_inside_keeps_its_own_tasks(world: World) -> None:
    async with operator(world):
        own = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0.1)
    assert not own.done()
    own.cancel()
