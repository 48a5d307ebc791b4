"""The cluster port over an API server in memory: durable copies, statuses and events."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from kube_scene import CORE, LLAMA, QUOTAS, Scene, ours, play, stored_pod, told
from kvquota_operator.adapters.api import Json
from kvquota_operator.ports import ClusterTimeoutError, ConflictError, NotOursError
from kvquota_operator.reconcile.manifests import config_map, config_map_name
from kvquota_operator.reconcile.observed import PoolKey, QuotaSeen
from kvquota_operator.reconcile.plan import EventWanted
from operator_world import quota


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
        assert mends(scene, "ConfigMap") is None
        await scene.cluster.apply_config(wanted)
        assert (await scene.observe()).configs == {"uid-pod-0": wanted}
        assert mends(scene, "ConfigMap") == 1

    play(story)


def mends(scene: Scene, kind: str) -> float | None:
    return scene.registry.get_sample_value("kvquota_operator_mends_total", {"kind": kind})


def test_a_copy_that_is_as_a_lost_answer_would_have_said_was_changed_by_nobody() -> None:
    async def story(scene: Scene) -> None:
        stored_pod(scene)
        await scene.observe()
        first, second, third = (msgspec.structs.replace(ours(), generation=each) for each in (1, 2, 3))
        await scene.cluster.apply_config(first)
        path = f"{CORE}/configmaps/{config_map_name('inference', 'uid-pod-0')}"
        scene.api.down = ClusterTimeoutError("late")
        with pytest.raises(ClusterTimeoutError):
            await scene.cluster.apply_config(second)
        scene.api.down = None
        scene.api.store(path, config_map(second), uid=scene.api.objects[path]["metadata"]["uid"])
        scene.api.tell("MODIFIED", path)
        await asyncio.sleep(0.1)
        await scene.cluster.apply_config(third)
        assert (await scene.observe()).configs == {"uid-pod-0": third}
        assert mends(scene, "ConfigMap") is None

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
    ("owner", "todo"),
    [
        pytest.param("pod-9", "leave the ConfigMap, and make pod pod-0 anew without the volume", id="of another pod"),
        pytest.param("pod-0", "is not owned by pod pod-0: delete it", id="of an earlier pod of the same name"),
    ],
)
def test_what_to_do_about_a_config_map_that_is_anothers(owner: str, todo: str) -> None:
    """To delete the config of a pod that runs would do harm: its manifest was copied, and the copy is to be mended."""

    async def story(scene: Scene) -> None:
        await scene.observe()
        owners = [{"kind": "Pod", "name": owner, "uid": "another"}]
        name = config_map_name("inference", "uid-pod-0")
        scene.api.store(f"{CORE}/configmaps/{name}", {"metadata": {"ownerReferences": owners}})
        with pytest.raises(NotOursError, match=todo):
            await scene.cluster.apply_config(ours())

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


FOUGHT = (
    "TenantQuota",
    "StatusFought",
    "somebody else writes the status of this object again and again, and what they write is written over: take the"
    " right to patch tenantquotas/status from them. kubectl get tenantquotas search --show-managed-fields -o yaml says"
    " who it is",
)


@pytest.mark.parametrize(
    ("edits", "pause", "events"),
    [
        pytest.param(2, 5.0, [], id="two edits are no fight"),
        pytest.param(3, 5.0, [FOUGHT], id="three within a minute are"),
        pytest.param(9, 5.0, [FOUGHT], id="a fight is told once"),
        pytest.param(9, 31.0, [], id="one in half a minute is none"),
    ],
)
def test_who_writes_a_status_again_and_again_is_told(
    edits: int, pause: float, events: list[tuple[str, str, str]]
) -> None:
    async def story(scene: Scene) -> None:
        path = f"{QUOTAS}/search"
        scene.cluster.inbox.deliver("TenantQuota", "ADDED", scene.api.store(path, quota("search")))
        await asyncio.sleep(0.1)
        for number in range(edits):
            await scene.cluster.write_quota_status("inference", "search", {"state": "Ready"})
            edited = {**scene.api.objects[path], "status": {"state": f"Edited {number}"}}
            scene.cluster.inbox.deliver("TenantQuota", "MODIFIED", scene.api.store(path, edited))
            await asyncio.sleep(pause)
        await scene.cluster.write_quota_status("inference", "search", {"state": "Over"})
        assert told(scene) == events
        assert scene.registry.get_sample_value("kvquota_operator_mends_total", {"kind": "TenantQuota"}) == edits

    play(story)


def test_what_the_operator_writes_after_itself_is_no_mend() -> None:
    async def story(scene: Scene) -> None:
        path = f"{QUOTAS}/search"
        scene.cluster.inbox.deliver("TenantQuota", "ADDED", scene.api.store(path, quota("search")))
        await asyncio.sleep(0.1)
        scene.api.refused[path] = ConflictError("changed")
        for state in ("Refused", "Shadow", "Ready", "Shed"):
            with suppress(ConflictError):
                await scene.cluster.write_quota_status("inference", "search", {"state": state})
            scene.api.refused.clear()
        assert scene.api.objects[path]["status"] == {"state": "Shed"}
        assert scene.registry.get_sample_value("kvquota_operator_mends_total", {"kind": "TenantQuota"}) is None

    play(story)


def test_an_event_is_recorded() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.record("inference", EventWanted("TenantQuota", "search", "u", "Normal", "Accepted", "Fine"))
        assert told(scene) == [("TenantQuota", "Accepted", "Fine")]

    play(story)
