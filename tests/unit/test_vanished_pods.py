"""Pods whose objects are gone while they may still work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from kube_scene import CORE, LLAMA, Scene, ours, play
from kvquota_api.pod_config import PodConfig, sealed
from kvquota_operator.reading.pods import GRACE_SECONDS, read_pod
from kvquota_operator.reading.vanished import EXTENSION_SECONDS
from kvquota_operator.reconcile.manifests import config_map, config_map_name
from kvquota_operator.reconcile.observed import PodSeen

POD, CONFIGS = f"{CORE}/pods/pod-0", f"{CORE}/configmaps"
GONE_SECONDS = GRACE_SECONDS + EXTENSION_SECONDS
ENDED = {"state": {"terminated": {"exitCode": 0}}}
RUNS: dict[str, Any] = {"state": {"running": {}}}


def body(*containers: Any, node: str | None = "node-0", **spec: Any) -> dict[str, Any]:
    """A pod of the pool with these containers' statuses."""
    return {
        "metadata": {"namespace": "inference", "name": "pod-0", "uid": "uid-pod-0", "labels": {"app": "llama"}},
        "spec": {"containers": [{"name": "kvquota"}], **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": list(containers)},
    }


@pytest.mark.parametrize(
    ("stored", "runs"),
    [
        pytest.param(body(RUNS, RUNS), True, id="its containers run"),
        pytest.param(body(RUNS, ENDED), True, id="one of them still runs"),
        pytest.param(body({"state": {"waiting": {}}}), True, id="one waits, and may have been started since"),
        pytest.param(body({}), True, id="nothing is known of its container"),
        pytest.param(body(), True, id="it has a node, and nothing more is known"),
        pytest.param(body(ENDED, ENDED), False, id="all have ended"),
        pytest.param(body(RUNS, node=None), False, id="it never had a node"),
    ],
)
def test_what_may_run_where_the_object_is_gone(stored: dict[str, Any], runs: bool) -> None:
    record = read_pod(stored)
    assert record is not None
    assert record.may_run is runs


@pytest.mark.parametrize(
    ("spec", "deletion", "seconds"),
    [
        pytest.param({}, {}, 30, id="by default"),
        pytest.param({"terminationGracePeriodSeconds": 600}, {}, 600, id="as the pod says"),
        pytest.param({"terminationGracePeriodSeconds": 0}, {}, 0, id="none at all"),
        pytest.param(
            {}, {"deletionGracePeriodSeconds": 0}, 30, id="deleted by force: the node takes what the pod says"
        ),
        pytest.param({}, {"deletionGracePeriodSeconds": 90}, 90, id="deleted with more time than the pod says"),
    ],
)
def test_how_long_a_pod_may_work_on(spec: dict[str, Any], deletion: dict[str, Any], seconds: float) -> None:
    stored = body(RUNS, **spec)
    record = read_pod({**stored, "metadata": {**stored["metadata"], **deletion}})
    assert record is not None
    assert record.grace_seconds == seconds


def governed(story: Callable[[Scene], Awaitable[None]], pod: dict[str, Any] | None = None) -> None:
    """Play `story` where the pool has a pod with a durable copy."""

    async def whole(scene: Scene) -> None:
        stored = body(RUNS) if pod is None else pod
        scene.api.store(POD, stored, labels={"app": "llama"})
        await scene.observe()
        await scene.cluster.apply_config(ours())
        assert (await seen(scene)) == (("10.0.0.1", False), ours())
        await story(scene)

    play(whole)


async def seen(scene: Scene) -> tuple[tuple[str | None, bool] | None, PodConfig | None]:
    """Where the pod is and whether it is being deleted, and its copy."""
    await asyncio.sleep(0.1)
    observed = await scene.observe()
    pods: tuple[PodSeen, ...] = observed.pods
    where = next(((each.ip, each.deleting) for each in pods), None)
    return where, observed.configs.get("uid-pod-0")


def end(scene: Scene, path: str, **changes: Any) -> None:
    """The API server removes an object, as the last word on which it tells it with these changes."""
    scene.api.version += 1
    last = {**scene.api.objects.pop(path), **changes}
    last["metadata"] = {**last["metadata"], "resourceVersion": str(scene.api.version)}
    scene.api.news[path.rsplit("/", 1)[0]].put_nowait({"type": "DELETED", "object": last})


def copy_path(scene: Scene) -> str:
    (path,) = [each for each in scene.api.objects if each.startswith(CONFIGS)]
    return path


@pytest.mark.parametrize("first", ["pod", "copy"])
def test_a_pod_deleted_by_force_is_one_that_leaves_until_its_grace_period_is_over(first: str) -> None:
    async def story(scene: Scene) -> None:
        scene.touched.clear()
        for path in (POD, copy_path(scene)) if first == "pod" else (copy_path(scene), POD):
            end(scene, path)
        assert await seen(scene) == ((None, True), ours())
        assert LLAMA in scene.touched
        await asyncio.sleep(GONE_SECONDS - 1)
        assert await seen(scene) == ((None, True), ours())
        await asyncio.sleep(1)
        assert await seen(scene) == (None, None)

    governed(story)


def test_a_pod_whose_containers_were_seen_to_end_is_gone_with_its_object() -> None:
    async def story(scene: Scene) -> None:
        end(scene, POD, status=body(ENDED)["status"])
        end(scene, copy_path(scene))
        assert await seen(scene) == (None, None)

    governed(story)


def test_a_pod_that_has_finished_is_gone_at_once_whatever_becomes_of_its_object() -> None:
    async def story(scene: Scene) -> None:
        end(scene, POD, status={"phase": "Succeeded"})
        assert (await seen(scene))[0] is None

    governed(story)


def test_a_pod_without_a_node_is_gone_with_its_object() -> None:
    async def story(scene: Scene) -> None:
        end(scene, POD)
        assert (await seen(scene))[0] is None

    governed(story, body(RUNS, node=None))


def test_a_pod_without_the_sidecar_holds_nothing() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(POD, body(RUNS) | {"spec": {"nodeName": "node-0", "containers": [{"name": "vllm"}]}})
        await scene.observe()
        end(scene, POD)
        assert (await seen(scene))[0] is None

    play(story)


def test_a_copy_that_was_still_stored_when_the_pod_had_gone_is_what_the_pod_may_have() -> None:
    later = sealed(msgspec.structs.replace(ours(), generation=ours().generation + 1))

    async def story(scene: Scene) -> None:
        end(scene, POD)
        assert await seen(scene) == ((None, True), ours())
        await scene.cluster.apply_config(later)
        end(scene, copy_path(scene))
        assert await seen(scene) == ((None, True), later)

    governed(story)


def test_a_pod_that_lost_its_labels_holds_for_as_long_as_its_copy_is_stored() -> None:
    async def story(scene: Scene) -> None:
        end(scene, POD)
        assert (await seen(scene), await left(scene)) == (((None, True), ours()), False)
        await asyncio.sleep(10 * GONE_SECONDS)
        assert (await seen(scene), await left(scene)) == (((None, True), ours()), True)
        end(scene, copy_path(scene))
        assert (await seen(scene), await left(scene)) == (((None, True), ours()), False)
        await asyncio.sleep(GONE_SECONDS)
        assert await seen(scene) == (None, None)

    governed(story)


@pytest.mark.parametrize("why", ["its containers have ended", "it is finished", "it never had a node"])
def test_a_pod_that_is_over_holds_nothing_though_its_copy_is_not_collected_yet(why: str) -> None:
    last: dict[str, Any] = {
        "its containers have ended": body(ENDED)["status"],
        "it is finished": {"phase": "Succeeded"},
        "it never had a node": body()["status"],
    }

    async def story(scene: Scene) -> None:
        end(scene, POD, status=last[why])
        assert (await seen(scene))[0] is None
        end(scene, copy_path(scene))
        assert await seen(scene) == (None, None)

    governed(story, body(node=None) if why == "it never had a node" else None)


def test_a_copy_of_a_pod_that_nobody_sees_holds_in_an_operator_that_starts() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CONFIGS}/{config_map_name('inference', 'uid-pod-0')}", config_map(ours()))
        assert (await seen(scene), await left(scene)) == (((None, True), ours()), False)
        await asyncio.sleep(GONE_SECONDS)
        assert (await seen(scene), await left(scene)) == (((None, True), ours()), True)

    play(story)


def test_a_pod_that_has_finished_is_seen_by_an_operator_that_starts_though_its_copy_is_there() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CONFIGS}/{config_map_name('inference', 'uid-pod-0')}", config_map(ours()))
        scene.api.store(POD, body(ENDED) | {"status": {"phase": "Succeeded"}}, labels={"app": "llama"})
        assert (await seen(scene))[0] is None

    play(story)


async def left(scene: Scene) -> bool:
    return any(each.left for each in (await scene.observe()).pods)


def test_a_pod_that_is_selected_again_is_there_as_before() -> None:
    async def story(scene: Scene) -> None:
        stored = scene.api.objects[POD]
        end(scene, POD)
        assert (await seen(scene))[0] == (None, True)
        scene.api.store(POD, stored)
        scene.api.tell("ADDED", POD)
        assert (await seen(scene))[0] == ("10.0.0.1", False)

    governed(story)


def test_a_pod_that_a_new_list_does_not_have_may_work_on_too() -> None:
    async def story(scene: Scene) -> None:
        del scene.api.objects[POD]
        scene.api.version += 1
        scene.api.news[f"{CORE}/pods"].put_nowait({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
        await asyncio.sleep(2)
        assert await seen(scene) == ((None, True), ours())

    governed(story)


def test_who_never_makes_a_pass_remembers_none_of_the_pods_that_came_and_went() -> None:
    """As a replica that stands by does."""

    async def story(scene: Scene) -> None:
        around = scene.cluster._around[LLAMA]
        copy = copy_path(scene)
        for path in (copy, POD):
            end(scene, path)
            await asyncio.sleep(0.1)
        for number in range(3):
            name = f"pod-{number + 1}"
            stored = body(RUNS)
            stored["metadata"] |= {"name": name, "uid": f"uid-{name}"}
            scene.api.store(f"{CORE}/pods/{name}", stored, labels={"app": "llama"})
            scene.api.tell("ADDED", f"{CORE}/pods/{name}")
            await asyncio.sleep(0.1)
            end(scene, f"{CORE}/pods/{name}")
            await asyncio.sleep(GONE_SECONDS)
        assert (around._collected, list(around._vanished.records)) == ({}, ["uid-pod-3"])

    governed(story)
