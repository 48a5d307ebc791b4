"""The cluster port over an API server in memory: what is read again and when, what is made, and what is mended."""

import asyncio
import base64
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

import virtual_time
from kvquota_api.pod_config import PodConfig, sealed
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.events import Events
from kvquota_operator.adapters.kube import RESYNC_SECONDS, KubeCluster
from kvquota_operator.adapters.metrics import OperatorMetrics
from kvquota_operator.adapters.reads import FRESH_SECONDS
from kvquota_operator.ports import (
    ClusterTimeoutError,
    ConflictError,
    ForbiddenError,
    NotOursError,
    RefusedError,
    UnreachableError,
    VanishedError,
)
from kvquota_operator.reconcile.manifests import config_map, config_map_name
from kvquota_operator.reconcile.observed import InvalidSeen, KeyFound, KeyProblem, Observed, PoolKey, QuotaSeen
from kvquota_operator.reconcile.plan import EventWanted, SecretWanted
from operator_fakes import TOKEN, config, identity
from operator_world import key_secret, pool, quota

LLAMA = PoolKey("inference", "llama")
KVQUOTA = "/apis/kvquota.dev/v1alpha1/namespaces/inference"
POOLS, QUOTAS = f"{KVQUOTA}/modelpools", f"{KVQUOTA}/tenantquotas"
CORE = "/api/v1/namespaces/inference"
EVENTS = "/apis/events.k8s.io/v1/namespaces/inference/events"


class FakeApi:
    """Objects by path. `down`: raised by everything, `refused` by path, `slow`: seconds of a list by path.

    A watch tells what `tell` is given, and no other change.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.version = 0
        self.down: Exception | None = None
        self.refused: dict[str, Exception] = {}
        self.slow: dict[str, float] = {}
        self.news: dict[str, asyncio.Queue[Json]] = {}
        self.selectors: list[str] = []

    def store(self, path: str, body: Json, **metadata: Any) -> Json:
        """What a user does: create or change an object."""
        self.version += 1
        name = path.rsplit("/", 1)[1]
        meta = {**body.get("metadata", {}), "name": name, "namespace": "inference", **metadata}
        meta = {"uid": f"uid-{name}", "generation": 1, **meta, "resourceVersion": str(self.version)}
        stored = {**body, "metadata": meta}
        if "stringData" in stored:
            stored["data"] = _encoded(stored.pop("stringData"))
        self.objects[path] = stored
        return copy.deepcopy(stored)

    async def get(self, path: str, *, timeout_seconds: float = 10.0) -> Json:
        return copy.deepcopy(self._found(path))

    async def create(self, path: str, body: Json) -> Json:
        self._answer()
        path = f"{path}/{body['metadata']['name']}"
        if path in self.objects:
            raise ConflictError("exists")
        return self.store(path, body)

    async def apply(self, path: str, body: Json) -> Json:
        self._answer()
        at = body["metadata"].get("resourceVersion")
        if at is not None and at != self.objects.get(path, {"metadata": {}})["metadata"].get("resourceVersion"):
            raise ConflictError("changed")
        return self.store(path, body)

    async def merge(self, path: str, body: Json) -> Json:
        path = path.removesuffix("/status")
        found = self._found(path)
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        status = {**found.get("status", {}), **body["status"]}
        return self.store(path, {**found, "status": {key: each for key, each in status.items() if each is not None}})

    async def list(self, path: str, selector: str = "") -> tuple[list[Json], str]:
        self._answer()
        await asyncio.sleep(self.slow.get(path, 0.0))
        self.selectors.append(selector)
        return [copy.deepcopy(each) for key, each in self.objects.items() if key.startswith(f"{path}/")], str(
            self.version
        )

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncIterator[Json]:
        queue = self.news.setdefault(path, asyncio.Queue())
        while True:
            yield await queue.get()

    def tell(self, kind: str, path: str) -> None:
        """What the API server tells those that watch."""
        self.news[path.rsplit("/", 1)[0]].put_nowait({"type": kind, "object": copy.deepcopy(self.objects[path])})

    def _answer(self) -> None:
        if self.down is not None:
            raise self.down

    def _found(self, path: str) -> Json:
        self._answer()
        if path in self.refused:
            raise self.refused[path]
        if path not in self.objects:
            raise VanishedError("404")
        return self.objects[path]


def _encoded(entries: Json) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}


class Scene:
    """A cluster port that runs over a fake API server with one pool, and what it touched."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.touched: list[PoolKey] = []
        self.registry = CollectorRegistry()
        self.api.store(f"{POOLS}/llama", pool("llama"))
        clock = virtual_time.LoopClock()
        metrics = OperatorMetrics(self.registry)
        events = Events(self.api, clock, instance="test", dropped=metrics.event_dropped)  # type: ignore[arg-type]  # a fake of what is used
        self.cluster = KubeCluster(
            self.api,  # type: ignore[arg-type]  # a fake of what is used
            clock,
            namespaces=("inference",),
            events=events,
            metrics=metrics,
        )

    async def observe(self) -> Observed:
        seen = await self.cluster.observe(LLAMA)
        assert seen is not None
        return seen

    def pool_secret(self) -> Json:
        return self.api.objects[f"{CORE}/secrets/kvquota-llama"]


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        scene = Scene()
        running = asyncio.create_task(scene.cluster.run(scene.touched.append))
        await scene.cluster.listed.wait()
        try:
            await story(scene)
        finally:
            running.cancel()
            await asyncio.wait([running])

    virtual_time.run(whole())


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


def test_the_pools_secret_is_made_once_and_stays() -> None:
    async def story(scene: Scene) -> None:
        first = (await scene.observe()).secret
        assert first is not None
        assert (len(first.token), len(first.pepper)) == (64, 64)
        assert first.token != first.pepper
        for _ in range(5):
            await asyncio.sleep(FRESH_SECONDS)
            assert (await scene.observe()).secret == first
        assert scene.pool_secret()["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"

    play(story)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda body: body["data"].pop("token"), id="a token that is gone"),
        pytest.param(lambda body: body["data"].update(pepper="c2hvcnQ="), id="a pepper that is too short"),
    ],
)
def test_a_damaged_secret_is_made_anew_as_a_whole(damage: Callable[[Json], None]) -> None:
    async def story(scene: Scene) -> None:
        first = (await scene.observe()).secret
        damage(scene.pool_secret())
        await asyncio.sleep(FRESH_SECONDS)
        mended = (await scene.observe()).secret
        assert first is not None
        assert mended is not None
        assert len({first.token, first.pepper, mended.token, mended.pepper}) == 4
        assert set(scene.pool_secret()["data"]) == {"token", "pepper", "identity.json"}

    play(story)


def test_a_deleted_secret_is_made_anew() -> None:
    async def story(scene: Scene) -> None:
        first = (await scene.observe()).secret
        del scene.api.objects[f"{CORE}/secrets/kvquota-llama"]
        await asyncio.sleep(FRESH_SECONDS)
        assert (await scene.observe()).secret != first

    play(story)


def test_a_secret_that_belongs_to_a_pool_of_the_same_name_before_is_taken_over() -> None:
    async def story(scene: Scene) -> None:
        first = (await scene.observe()).secret
        assert first is not None
        assert first.identity is not None
        scene.pool_secret()["metadata"]["ownerReferences"][0]["uid"] = "uid-of-the-pool-before"
        await asyncio.sleep(FRESH_SECONDS)
        seen = (await scene.observe()).secret
        assert seen is not None
        assert (seen.token, seen.pepper, seen.identity) == (first.token, first.pepper, None)
        await scene.cluster.apply_secret(LLAMA, SecretWanted(seen.token, seen.pepper, first.identity))
        assert (await scene.observe()).secret == first

    play(story)


def test_a_secret_that_somebody_makes_at_the_same_time_is_read_at_the_next_try() -> None:
    async def story(scene: Scene) -> None:
        wanted = SecretWanted(TOKEN, "p" * 64, identity())
        path = f"{CORE}/secrets/kvquota-llama"

        async def get(asked: str, *, timeout_seconds: float = 10.0) -> Json:
            await scene.cluster.apply_secret(LLAMA, wanted)
            stored = scene.api.objects.pop(path)
            scene.api.get = FakeApi.get.__get__(scene.api)  # type: ignore[method-assign]  # a fake of what is used
            try:
                return await scene.api.get(asked)
            finally:
                scene.api.objects[path] = stored

        scene.api.get = get  # type: ignore[method-assign]  # a fake of what is used
        with pytest.raises(ConflictError):
            await scene.observe()
        seen = (await scene.observe()).secret
        assert seen is not None
        assert seen.token == TOKEN

    play(story)


def told(scene: Scene) -> list[tuple[str, str, str]]:
    events = [body for path, body in scene.api.objects.items() if path.startswith(EVENTS)]
    return [(each["regarding"]["kind"], each["reason"], each["note"]) for each in events]


def test_a_foreign_secret_stands_in_the_way_and_is_told_once() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CORE}/secrets/kvquota-llama", key_secret("kvquota-llama", kind="Opaque"))
        for _ in range(3):
            with pytest.raises(NotOursError):
                await scene.observe()
        [event] = told(scene)
        assert event[:2] == ("ModelPool", "NotOurs")

    play(story)


def test_an_event_that_cannot_be_written_does_not_hide_what_stands_in_the_way() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CORE}/secrets/kvquota-llama", key_secret("kvquota-llama", kind="Opaque"))
        scene.api.create = refusing  # type: ignore[method-assign]  # a fake of what is used
        with pytest.raises(NotOursError):
            await scene.observe()

    async def refusing(path: str, body: Json) -> Json:
        raise RefusedError("no events here")

    play(story)


KEYED = {"identity": {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}}


def test_a_key_is_read_when_its_quota_is_edited_and_otherwise_after_a_while() -> None:
    async def key(scene: Scene) -> KeyFound | KeyProblem:
        return (await scene.observe()).keys["search-key", "key"]

    async def story(scene: Scene) -> None:
        scene.cluster.inbox.deliver(
            "TenantQuota", "ADDED", scene.api.store(f"{QUOTAS}/search", quota("search", **KEYED))
        )
        await asyncio.sleep(0.1)
        assert isinstance(await key(scene), KeyProblem)
        scene.api.store(f"{CORE}/secrets/search-key", key_secret("search-key", key="kvq-one"))
        assert isinstance(await key(scene), KeyProblem)
        edited = scene.api.store(f"{QUOTAS}/search", quota("search", hard=9, **KEYED), generation=2)
        scene.cluster.inbox.deliver("TenantQuota", "MODIFIED", edited)
        await asyncio.sleep(0.1)
        assert await key(scene) == KeyFound("kvq-one")
        scene.api.store(f"{CORE}/secrets/search-key", key_secret("search-key", key="kvq-two"))
        assert await key(scene) == KeyFound("kvq-one")
        await asyncio.sleep(FRESH_SECONDS)
        assert await key(scene) == KeyFound("kvq-two")

    play(story)


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


def stored_pod(scene: Scene, name: str = "pod-0") -> None:
    labels = {"app": "llama"}
    scene.api.store(f"{CORE}/pods/{name}", {"spec": {"containers": [{"name": "kvquota"}]}}, labels=labels)


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


def ours(name: str = "pod-0") -> PodConfig:
    found = config(name)
    return sealed(msgspec.structs.replace(found, pool=msgspec.structs.replace(found.pool, name="llama")))


def test_a_durable_copy_is_created_observed_and_written_over() -> None:
    async def story(scene: Scene) -> None:
        stored_pod(scene)
        await scene.observe()
        for generation in (1, 2):
            wanted = msgspec.structs.replace(ours(), generation=generation)
            await scene.cluster.apply_config(wanted)
            assert (await scene.observe()).configs == {"uid-pod-0": wanted}

    play(story)


@pytest.mark.parametrize("deleted", [pytest.param(False, id="changed"), pytest.param(True, id="deleted")])
def test_a_copy_that_is_not_as_it_was_seen_is_written_over_only_once_that_is_seen(deleted: bool) -> None:
    async def story(scene: Scene) -> None:
        stored_pod(scene)
        await scene.observe()
        await scene.cluster.apply_config(ours())
        path = f"{CORE}/configmaps/{config_map_name('inference', 'uid-pod-0')}"
        wanted = msgspec.structs.replace(ours(), generation=2)
        newer = config_map(msgspec.structs.replace(ours(), generation=7))
        uid = scene.api.objects[path]["metadata"]["uid"]
        scene.api.store(path, newer, uid=uid)
        kept = scene.api.objects.pop(path) if deleted else scene.api.objects[path]
        with pytest.raises(ConflictError):
            await scene.cluster.apply_config(wanted)
        scene.api.news[f"{CORE}/configmaps"].put_nowait({"type": "DELETED" if deleted else "MODIFIED", "object": kept})
        await asyncio.sleep(0.1)
        await scene.cluster.apply_config(wanted)
        assert (await scene.observe()).configs == {"uid-pod-0": wanted}

    play(story)


def test_the_copy_is_the_config_map_that_the_pod_mounts() -> None:
    mounted = "kvq-" + "0123456789abcdef" * 2

    async def story(scene: Scene) -> None:
        volume = {"name": "kvquota-config", "configMap": {"name": mounted}}
        spec = {"containers": [{"name": "kvquota"}], "volumes": [volume]}
        scene.api.store(f"{CORE}/pods/pod-0", {"spec": spec}, labels={"app": "llama"})
        older = config_map(msgspec.structs.replace(ours(), generation=9))
        scene.api.store(f"{CORE}/configmaps/{older['metadata']['name']}", older)
        await scene.observe()
        for generation in (1, 2):
            wanted = msgspec.structs.replace(ours(), generation=generation)
            await scene.cluster.apply_config(wanted)
            assert (await scene.observe()).configs == {"uid-pod-0": wanted}
        assert f"{CORE}/configmaps/{mounted}" in scene.api.objects

    play(story)


def test_a_durable_copy_of_a_pool_that_is_gone_is_not_written() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.apply_config(ours())
        assert [path for path in scene.api.objects if "/configmaps/" in path] == []

    play(story)


def test_a_copy_that_is_ours_and_was_not_seen_yet_is_written_over() -> None:
    async def story(scene: Scene) -> None:
        await scene.observe()
        manifest = config_map(ours())
        scene.api.store(
            f"{CORE}/configmaps/{manifest['metadata']['name']}", {**manifest, "data": {"config.json": "{}"}}
        )
        await scene.cluster.apply_config(ours())
        assert (await scene.observe()).configs == {"uid-pod-0": ours()}

    play(story)


def test_a_foreign_config_map_is_left_alone_and_told() -> None:
    async def story(scene: Scene) -> None:
        await scene.observe()
        path = f"{CORE}/configmaps/{config_map_name('inference', 'uid-pod-0')}"
        before = scene.api.store(path, {"data": {"mine": "1"}})
        with pytest.raises(NotOursError):
            await scene.cluster.apply_config(ours())
        assert scene.api.objects[path] == before
        assert [each[:2] for each in told(scene)] == [("ModelPool", "NotOurs")]

    play(story)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({**config_map(ours()), "data": {"config.json": "{"}}, id="a copy that cannot be read"),
        pytest.param({"data": {"config.json": "{}"}}, id="a copy without an owner"),
        pytest.param(
            {**config_map(ours()), "metadata": {"ownerReferences": [{"kind": "Pod", "name": "x", "uid": "x"}]}},
            id="a copy that another pod owns",
        ),
    ],
)
def test_a_copy_that_cannot_be_believed_is_none(body: Json) -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CORE}/configmaps/{config_map_name('inference', 'uid-pod-0')}", body)
        assert (await scene.observe()).configs == {}

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


def test_a_status_is_written_as_a_whole_and_only_if_it_differs() -> None:
    async def story(scene: Scene) -> None:
        stored = scene.api.store(f"{QUOTAS}/search", {**quota("search"), "status": {"state": "Edited", "inFlight": 3}})
        scene.cluster.inbox.deliver("TenantQuota", "ADDED", stored)
        await asyncio.sleep(0.1)
        await scene.cluster.write_quota_status("inference", "search", {"state": "Ready"})
        assert scene.api.objects[f"{QUOTAS}/search"]["status"] == {"state": "Ready"}
        [seen] = (await scene.observe()).quotas
        assert seen.status == {"state": "Ready"}
        version = scene.api.version
        await scene.cluster.write_quota_status("inference", "search", {"state": "Ready"})
        await scene.cluster.write_quota_status("inference", "nobody", {"state": "Ready"})
        await scene.cluster.write_pool_status(PoolKey("inference", "nobody"), {"state": "Ready"})
        assert scene.api.version == version
        await scene.cluster.write_pool_status(LLAMA, {"state": "Ready"})
        assert (await scene.observe()).pool_status == {"state": "Ready"}

    play(story)


def test_a_status_of_an_object_that_changed_meanwhile_is_written_at_the_next_try() -> None:
    async def story(scene: Scene) -> None:
        scene.cluster.inbox.deliver("TenantQuota", "ADDED", scene.api.store(f"{QUOTAS}/search", quota("search")))
        await asyncio.sleep(0.1)
        scene.api.store(f"{QUOTAS}/search", quota("search", hard=9), generation=2)
        with pytest.raises(ConflictError):
            await scene.cluster.write_quota_status("inference", "search", {"state": "Ready"})
        [seen] = (await scene.observe()).quotas
        assert isinstance(seen, QuotaSeen)
        assert seen.quota.metadata.generation == 2
        await scene.cluster.write_quota_status("inference", "search", {"state": "Ready"})
        assert scene.api.objects[f"{QUOTAS}/search"]["status"] == {"state": "Ready"}

    play(story)


def test_an_event_is_recorded() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.record("inference", EventWanted("TenantQuota", "search", "u", "Normal", "Accepted", "Fine"))
        assert told(scene) == [("TenantQuota", "Accepted", "Fine")]

    play(story)


def test_a_secret_of_a_pool_that_is_gone_is_not_written() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.apply_secret(PoolKey("inference", "gone"), SecretWanted(TOKEN, "p" * 64, identity()))
        assert [path for path in scene.api.objects if "/secrets/" in path] == []

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
