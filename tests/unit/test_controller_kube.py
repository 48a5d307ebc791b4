"""The cluster port over an API server in memory: what is read again and when, and what is watched."""

import asyncio
from typing import Any

import pytest

import virtual_time
from kube_scene import CORE, KEYED, LLAMA, POOLS, QUOTAS, Scene, ours, play, stored_pod
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.kube import RESYNC_SECONDS
from kvquota_operator.adapters.reads import FRESH_SECONDS
from kvquota_operator.ports import ClusterTimeoutError, ForbiddenError, UnreachableError, VanishedError
from kvquota_operator.reconcile.manifests import config_map
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem, Observed, PoolKey
from operator_world import key_secret, pool, quota


def test_what_is_listed_is_observed_and_touched() -> None:
    async def story(scene: Scene) -> None:
        assert scene.touched == [LLAMA]
        seen = await scene.observe()
        assert (seen.key, seen.quotas, seen.invalid, seen.pods, seen.configs) == (LLAMA, (), (), (), {})

    play(story)


def test_a_started_operator_sees_no_pool_before_it_sees_the_pools_quotas() -> None:
    """It would take every tenant's share and key away until the quotas' list has come."""

    async def whole() -> list[int]:
        scene = Scene()
        scene.api.store(f"{QUOTAS}/search", quota("search"))
        scene.api.slow[QUOTAS] = 5.0
        quotas: list[int] = []

        async def looks() -> None:
            quotas.append(len((await scene.observe()).quotas))

        async with asyncio.TaskGroup() as passes:
            running = asyncio.create_task(scene.cluster.run(lambda _: passes.create_task(looks()) and None))
            await asyncio.sleep(30)
        running.cancel()
        await asyncio.wait([running])
        return quotas

    quotas = virtual_time.run(whole())
    assert (len(quotas) > 0, set(quotas)) == (True, {1})


def test_a_pool_that_nobody_knows_is_not_there() -> None:
    async def story(scene: Scene) -> None:
        assert await scene.cluster.observe(PoolKey("inference", "other")) is None

    play(story)


def test_a_quota_without_a_pool_is_an_orphan_and_is_looked_at_again_when_pools_come_and_go() -> None:
    nowhere = PoolKey("inference", "lama")

    async def story(scene: Scene) -> None:
        bad = quota("bad", pool="lama", priority="x")
        for stored in (quota("search", pool="lama"), bad):
            name = stored["metadata"]["name"]
            scene.cluster.inbox.deliver("TenantQuota", "ADDED", scene.api.store(f"{QUOTAS}/{name}", stored))
        await asyncio.sleep(0.1)
        assert nowhere in scene.touched
        assert await scene.cluster.observe(nowhere) is None
        found = await scene.cluster.orphans(nowhere)
        assert [each.quota.metadata.name for each in found.quotas] == ["search"]
        assert ([each.name for each in found.invalid], found.pools) == (["bad"], ("llama",))
        for change in ("ADDED", "DELETED"):
            scene.touched.clear()
            scene.cluster.inbox.deliver("ModelPool", change, scene.api.store(f"{POOLS}/qwen", pool("qwen")))
            await asyncio.sleep(0.1)
            assert set(scene.touched) == {nowhere, PoolKey("inference", "qwen")}

    play(story)


@pytest.mark.parametrize(
    ("setting", "warned"),
    [
        pytest.param({}, True, id="a namespace that is not there is named"),
        pytest.param({"there": True}, False, id="an empty namespace is fine"),
        pytest.param({"refused": ForbiddenError("403")}, False, id="without the right to ask nothing is said"),
        pytest.param({"used": True}, False, id="a namespace with a pool is there"),
    ],
)
def test_a_namespace_that_does_not_exist_is_named_once(
    setting: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        scene = Scene()
        if not setting.get("used"):
            del scene.api.objects[f"{POOLS}/llama"]
        if setting.get("there"):
            scene.api.store(CORE, {"kind": "Namespace"})
        if setting.get("refused"):
            scene.api.refused[CORE] = setting["refused"]
        running = asyncio.create_task(scene.cluster.run(scene.touched.append))
        await asyncio.sleep(3 * RESYNC_SECONDS)
        running.cancel()
        await asyncio.wait([running])

    virtual_time.run(whole())
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    sentence = "namespace inference does not exist (yet): create it or correct --namespace; waiting for it"
    assert told == ([sentence] if warned else [])


def test_events_are_taken_as_they_come() -> None:
    async def story(scene: Scene) -> None:
        stored = scene.api.store(f"{QUOTAS}/search", quota("search"))
        scene.cluster.inbox.deliver("TenantQuota", "ADDED", stored)
        await asyncio.sleep(0.1)
        assert [each.quota.metadata.name for each in (await scene.observe()).quotas] == ["search"]
        scene.cluster.inbox.deliver("TenantQuota", "DELETED", stored)
        await asyncio.sleep(0.1)
        assert (await scene.observe()).quotas == ()

    play(story)


def test_a_change_whose_event_was_lost_is_found_and_counted_by_the_next_list() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{QUOTAS}/search", quota("search"))
        await asyncio.sleep(RESYNC_SECONDS + 1)
        assert [each.quota.metadata.name for each in (await scene.observe()).quotas] == ["search"]
        del scene.api.objects[f"{POOLS}/llama"]
        scene.api.version += 1
        await asyncio.sleep(RESYNC_SECONDS)
        assert await scene.cluster.observe(LLAMA) is None
        assert scene.registry.get_sample_value("kvquota_operator_resync_changes_total") == 2
        await asyncio.sleep(5 * RESYNC_SECONDS)
        assert scene.registry.get_sample_value("kvquota_operator_resync_changes_total") == 2

    play(story)


def test_a_store_that_was_put_back_is_taken_as_it_is_by_the_next_list(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    async def whole() -> list[int]:
        scene = Scene()
        earlier, at = scene.api.store(f"{QUOTAS}/search", quota("search")), scene.api.version
        running = asyncio.create_task(scene.cluster.run(scene.touched.append, lambda: calls.append("put back")))
        await scene.cluster.listed.wait()
        edited = scene.api.store(f"{QUOTAS}/search", quota("search", hard=20), generation=2)
        scene.cluster.inbox.deliver("TenantQuota", "MODIFIED", edited)
        await asyncio.sleep(1)
        scene.api.objects[f"{QUOTAS}/search"], scene.api.version = earlier, at
        await asyncio.sleep(2 * RESYNC_SECONDS)
        generations = [each.quota.metadata.generation for each in (await scene.observe()).quotas]
        running.cancel()
        await asyncio.wait([running])
        return generations

    assert (virtual_time.run(whole()), calls) == ([1], ["put back"])
    assert [each.levelname for each in caplog.records if "put back" in each.getMessage()] == ["WARNING"]


def test_a_watch_that_finds_the_store_put_back_has_pools_and_quotas_listed_at_once_and_once() -> None:
    calls: list[str] = []

    async def whole() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.cluster.run(scene.touched.append, lambda: calls.append("put back")))
        await scene.cluster.listed.wait()
        at = scene.api.version
        scene.api.store(f"{CORE}/secrets/other", {})
        await scene.observe()
        await asyncio.sleep(0.1)
        scene.api.version = at
        for what in ("pods", "configmaps"):
            scene.api.news[f"{CORE}/{what}"].put_nowait(UnreachableError("cut"))
            await asyncio.sleep(2)
            assert calls == ["put back"]
        running.cancel()
        await asyncio.wait([running])

    virtual_time.run(whole())


def test_lists_that_fail_are_repeated_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        scene.api.down = VanishedError("404: not found")
        await asyncio.sleep(RESYNC_SECONDS + 30)
        scene.api.down = None
        scene.api.store(f"{QUOTAS}/search", quota("search"))
        await asyncio.sleep(20)
        assert len((await scene.observe()).quotas) == 1

    play(story)
    assert [each.getMessage() for each in caplog.records if "listed" in each.getMessage()] == [
        "pools and quotas cannot be listed: 404: not found: the resources of kvquota.dev are not installed;"
        " run `kubectl apply -f crds/`"
    ]


def test_an_api_server_that_is_away_takes_nothing_away() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CORE}/secrets/search-key", key_secret("search-key", key="kvq-one"))
        scene.cluster.inbox.deliver(
            "TenantQuota", "ADDED", scene.api.store(f"{QUOTAS}/search", quota("search", **KEYED))
        )
        await asyncio.sleep(0.1)
        before = await scene.observe()
        scene.api.down = UnreachableError("away")
        for _ in range(20):
            await asyncio.sleep(FRESH_SECONDS)
            assert await scene.observe() == before

    play(story)


def test_a_models_config_is_read_from_its_config_map_and_again_when_the_pool_is_edited() -> None:
    def own(generation: int) -> Json:
        model = {"name": "own", "config": {"configMapRef": {"name": "model", "key": "config.json"}}}
        return pool("llama", model=model) | {"metadata": {"name": "llama", "generation": generation}}

    async def story(scene: Scene) -> None:
        for generation, text in ((2, '{"a": 1}'), (3, '{"a": 2}')):
            scene.api.store(f"{CORE}/configmaps/model", {"data": {"config.json": text}})
            scene.cluster.inbox.deliver("ModelPool", "MODIFIED", scene.api.store(f"{POOLS}/llama", own(generation)))
            await asyncio.sleep(0.1)
            assert (await scene.observe()).model_config == {"a": generation - 1}

    play(story)


def test_what_the_pool_says_of_its_clients_is_read_and_read_again() -> None:
    def trusting(keys: Json) -> Json:
        jwt = {"issuer": "https://issuer.example", "audience": "kvquota", "keysRef": keys}
        header = {"name": "x-tenant", "sharedSecretRef": {"name": "gateway", "key": "key"}}
        return pool("llama", sidecar={"identity": {"jwt": jwt, "trustedHeader": header}})

    async def observed(scene: Scene, keys: Json) -> Observed:
        scene.cluster.inbox.deliver("ModelPool", "MODIFIED", scene.api.store(f"{POOLS}/llama", trusting(keys)))
        await asyncio.sleep(0.1)
        return await scene.observe()

    async def story(scene: Scene) -> None:
        in_config_map = {"configMap": {"name": "jwks", "key": "set"}}
        seen = await observed(scene, in_config_map)
        assert isinstance(seen.jwks, KeyProblem)
        assert isinstance(seen.keys["gateway", "key"], KeyProblem)
        scene.api.store(f"{CORE}/secrets/gateway", key_secret("gateway", key="kvq-one"))
        scene.api.store(f"{CORE}/configmaps/jwks", {"data": {"set": "one"}})
        await asyncio.sleep(FRESH_SECONDS)
        seen = await scene.observe()
        assert (seen.jwks, seen.keys["gateway", "key"]) == (KeyFound("one"), KeyFound("kvq-one"))
        scene.api.store(f"{CORE}/configmaps/jwks", {"data": {"set": "two"}})
        await asyncio.sleep(FRESH_SECONDS)
        assert (await scene.observe()).jwks == KeyFound("two")
        scene.api.store(f"{CORE}/secrets/jwks", key_secret("jwks", key="three"))
        seen = await observed(scene, {"secret": {"name": "jwks", "key": "key"}})
        assert seen.jwks == seen.keys["jwks", "key"] == KeyFound("three")
        assert (await observed(scene, in_config_map)).jwks == KeyFound("two")

    play(story)


def test_an_object_that_does_not_parse_is_observed_as_such() -> None:
    async def story(scene: Scene) -> None:
        broken = scene.api.store(f"{QUOTAS}/broken", quota("broken", priority=-1))
        scene.cluster.inbox.deliver("TenantQuota", "ADDED", broken)
        await asyncio.sleep(0.1)
        seen = await scene.observe()
        assert [(each.kind, each.name) for each in seen.invalid] == [("TenantQuota", "broken")]
        worse = scene.api.store(f"{POOLS}/llama", pool("llama", engine={"type": "Abacus"}))
        scene.cluster.inbox.deliver("ModelPool", "MODIFIED", worse)
        await asyncio.sleep(0.1)
        assert isinstance((await scene.observe()).pool, InvalidSeen)
        assert scene.api.selectors.count("app=llama") == 1

    play(story)


def test_an_edited_selector_is_watched_instead_of_the_old_one() -> None:
    async def story(scene: Scene) -> None:
        await scene.observe()
        other = pool("llama", selector={"matchLabels": {"app": "other"}})
        scene.cluster.inbox.deliver("ModelPool", "MODIFIED", scene.api.store(f"{POOLS}/llama", other))
        await asyncio.sleep(0.1)
        await scene.observe()
        await scene.observe()
        assert [each for each in scene.api.selectors if each.startswith("app=")] == ["app=llama", "app=other"]
        assert [task.get_name() for task in asyncio.all_tasks()].count(f"watch {CORE}/pods") == 1

    play(story)


def test_a_pool_that_is_gone_is_watched_no_more() -> None:
    async def story(scene: Scene) -> None:
        await scene.observe()
        scene.cluster.inbox.deliver("ModelPool", "DELETED", scene.api.objects[f"{POOLS}/llama"])
        await asyncio.sleep(0.1)
        assert await scene.cluster.observe(LLAMA) is None
        await asyncio.sleep(0.1)
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("watch")] == []

    play(story)


def test_pods_that_cannot_be_listed_yet_are_waited_for_a_bounded_time() -> None:
    async def story(scene: Scene) -> None:
        scene.api.down = UnreachableError("away")
        before = asyncio.get_running_loop().time()
        with pytest.raises(ClusterTimeoutError):
            await scene.observe()
        assert asyncio.get_running_loop().time() - before == pytest.approx(10.0)

    play(story)


def test_pods_have_the_port_of_their_pool_and_the_claims_of_others() -> None:
    async def story(scene: Scene) -> None:
        stored_pod(scene)
        port = scene.api.store(f"{POOLS}/llama", pool("llama", port=9700))
        second = pool("second", selector={"matchLabels": {"app": "llama"}})
        created = "2026-11-01T12:00:00Z"
        other = scene.api.store(f"{POOLS}/second", second, creationTimestamp=created)
        third = scene.api.store(f"{POOLS}/third", pool("third"))
        for body in (port, other, third):
            scene.cluster.inbox.deliver("ModelPool", "MODIFIED", body)
        await asyncio.sleep(0.1)
        [seen] = (await scene.observe()).pods
        assert (seen.name, seen.governed, seen.admin_port) == ("pod-0", True, 9700)
        assert [(claim.name, claim.created) for claim in seen.other_pools] == [("second", created)]

    play(story)


def test_pods_and_copies_that_come_and_go_touch_the_pool() -> None:
    async def story(scene: Scene) -> None:
        await scene.observe()
        scene.touched.clear()
        stored_pod(scene)
        manifest = config_map(ours())
        copy_path = f"{CORE}/configmaps/{manifest['metadata']['name']}"
        scene.api.store(copy_path, manifest)
        for path in (f"{CORE}/pods/pod-0", copy_path):
            scene.api.tell("ADDED", path)
            await asyncio.sleep(0.1)
        assert scene.touched == [LLAMA, LLAMA]
        seen = await scene.observe()
        assert ([each.name for each in seen.pods], list(seen.configs)) == (["pod-0"], ["uid-pod-0"])
        for path in (f"{CORE}/pods/pod-0", copy_path):
            scene.api.tell("DELETED", path)
            await asyncio.sleep(0.1)
        assert scene.touched == [LLAMA] * 4
        seen = await scene.observe()
        assert (seen.pods, seen.configs) == ((), {})

    play(story)


def test_a_pod_that_stays_as_it_is_touches_nobody() -> None:
    async def story(scene: Scene) -> None:
        stored_pod(scene)
        await scene.observe()
        scene.touched.clear()
        scene.api.store(f"{CORE}/pods/pod-0", scene.api.objects[f"{CORE}/pods/pod-0"])
        scene.api.tell("MODIFIED", f"{CORE}/pods/pod-0")
        await asyncio.sleep(0.1)
        assert scene.touched == []

    play(story)


def test_what_is_followed_is_watched_without_a_pass_and_nothing_is_written() -> None:
    async def story(scene: Scene) -> None:
        before = dict(scene.api.objects)
        scene.cluster.follow(LLAMA)
        scene.cluster.follow(PoolKey("inference", "nowhere"))
        await asyncio.sleep(1)
        assert sorted(scene.api.news) == [f"{CORE}/configmaps", f"{CORE}/pods"]
        assert scene.api.objects == before
        assert set(scene.cluster.keys()) == {LLAMA}
        lists = len(scene.api.selectors)
        await scene.observe()
        assert len(scene.api.selectors) == lists, "a pass finds everything there"

    play(story)


def test_a_pool_that_is_gone_is_not_followed_any_more() -> None:
    async def story(scene: Scene) -> None:
        scene.cluster.follow(LLAMA)
        await asyncio.sleep(1)
        assert "pods" in scene.cluster.watch_ages()
        pool_body = scene.api.objects.pop(f"{POOLS}/llama")
        scene.cluster.inbox.deliver("ModelPool", "DELETED", pool_body)
        await asyncio.sleep(1)
        scene.cluster.follow(LLAMA)
        assert "pods" not in scene.cluster.watch_ages()

    play(story)


def test_how_long_every_watch_has_heard_nothing() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CORE}/pods/llama-0", {"metadata": {"labels": {"app": "llama"}}})
        scene.cluster.follow(LLAMA)
        await asyncio.sleep(20)
        scene.api.tell("BOOKMARK", f"{CORE}/pods/llama-0")
        await asyncio.sleep(10)
        assert {what: round(age) for what, age in scene.cluster.watch_ages().items()} == {
            "modelpools": 30,
            "tenantquotas": 30,
            "pods": 10,
            "configmaps": 30,
        }
        await asyncio.sleep(35)
        assert round(scene.cluster.watch_ages()["modelpools"]) == 5, "pools are listed once a minute"
        scene.api.down = UnreachableError("down")
        await asyncio.sleep(120)
        assert round(scene.cluster.watch_ages()["modelpools"]) > 100
        assert scene.cluster.longest_stillness() > 120, "of the watch of ConfigMaps, which hangs"

    play(story)
