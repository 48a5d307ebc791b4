"""The cluster port over an API server in memory: the pool's secret, and the keys of its tenants."""

import asyncio
from collections.abc import Callable

import pytest

from kube_scene import CORE, KEYED, LLAMA, QUOTAS, FakeApi, Scene, play, told
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.reads import FRESH_SECONDS
from kvquota_operator.ports import ClusterError, ConflictError, ForbiddenError, NotOursError, RefusedError
from kvquota_operator.reconcile.observed import KeyFound, KeyProblem, PoolKey
from kvquota_operator.reconcile.plan import SecretWanted
from operator_fakes import TOKEN, identity
from operator_world import key_secret, quota


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
        assert mends(scene) == 1
        assert set(scene.pool_secret()["data"]) == {"token", "pepper", "identity.json"}

    play(story)


def test_a_deleted_secret_is_made_anew() -> None:
    async def story(scene: Scene) -> None:
        first = (await scene.observe()).secret
        del scene.api.objects[f"{CORE}/secrets/kvquota-llama"]
        await asyncio.sleep(FRESH_SECONDS)
        assert (await scene.observe()).secret != first
        assert mends(scene) == 1

    play(story)


def mends(scene: Scene) -> float | None:
    return scene.registry.get_sample_value("kvquota_operator_mends_total", {"kind": "Secret"})


def test_an_identity_that_somebody_edited_is_put_back_and_counted_and_own_changes_are_not() -> None:
    async def story(scene: Scene) -> None:
        first = (await scene.observe()).secret
        assert first is not None
        for turn in range(2):
            wanted = SecretWanted(first.token, first.pepper, identity(**{"ab"[turn]: "inference/search"}))
            await scene.cluster.apply_secret(LLAMA, wanted)
            await asyncio.sleep(FRESH_SECONDS)
            await scene.observe()
        assert mends(scene) is None
        scene.pool_secret()["data"]["identity.json"] = "e30="
        await asyncio.sleep(FRESH_SECONDS)
        await scene.observe()
        await scene.cluster.apply_secret(LLAMA, wanted)
        assert mends(scene) == 1

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


def test_a_foreign_secret_stands_in_the_way_and_is_told_once() -> None:
    async def story(scene: Scene) -> None:
        scene.api.store(f"{CORE}/secrets/kvquota-llama", key_secret("kvquota-llama", kind="Opaque"))
        for _ in range(3):
            with pytest.raises(NotOursError):
                await scene.observe()
        [event] = told(scene)
        assert event[:2] == ("ModelPool", "NotOurs")

    play(story)


@pytest.mark.parametrize("kind", [RefusedError, ForbiddenError])
def test_a_secret_that_may_not_be_made_is_told_once_on_the_pool(kind: type[ClusterError]) -> None:
    async def story(scene: Scene) -> None:
        create = scene.api.create

        async def refusing(path: str, body: Json) -> Json:
            if path.endswith("/secrets"):
                raise kind("422: no Secrets here")
            return await create(path, body)

        scene.api.create = refusing  # type: ignore[method-assign]  # a fake of what is used
        for _ in range(3):
            with pytest.raises(kind):
                await scene.observe()
        [event] = told(scene)
        assert event[:2] == ("ModelPool", "SecretRefused")

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


def test_a_secret_of_a_pool_that_is_gone_is_not_written() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.apply_secret(PoolKey("inference", "gone"), SecretWanted(TOKEN, "p" * 64, identity()))
        assert [path for path in scene.api.objects if "/secrets/" in path] == []

    play(story)
