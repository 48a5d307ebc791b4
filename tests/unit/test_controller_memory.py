"""What the operator keeps of the API server's objects: in which order things may come, and how little may go wrong."""

import asyncio
from typing import Any

import pytest

from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.inbox import Inbox
from kvquota_operator.adapters.objects import Objects
from kvquota_operator.adapters.shelf import Shelf
from kvquota_operator.adapters.statuses import difference
from kvquota_operator.reconcile.observed import PoolKey
from operator_world import pool, quota
from scripted_api import body, in_time


def end_of(uid: str) -> dict[str, Any]:
    """What an event says of an object that is gone."""
    return {"metadata": {"uid": uid, "resourceVersion": "1"}}


class Kept:
    """A shelf of the `value` of objects, and the changes that it told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, Any]] = []
        self.shelf: Shelf[Any] = Shelf(lambda each: each.get("value"), lambda *change: self.told.append(change))


def test_a_newer_version_replaces_an_older_and_never_the_other_way_round() -> None:
    kept = Kept()
    for version, value in ((5, "five"), (7, "seven"), (6, "six")):
        kept.shelf.put(body("a", version, value=value))
    assert kept.shelf.items == {"a": "seven"}
    assert kept.told == [(None, "five"), ("five", "seven")]


def test_versions_compare_as_numbers() -> None:
    kept = Kept()
    kept.shelf.put(body("a", 9, value="nine"))
    kept.shelf.put(body("a", 10, value="ten"))
    assert kept.shelf.items == {"a": "ten"}


def test_a_new_version_is_told_even_if_it_is_equal_and_nothing_is_told_of_what_is_of_no_interest() -> None:
    kept = Kept()
    kept.shelf.put(body("a", 1, value="same"))
    kept.shelf.put(body("a", 2, value="same"))
    kept.shelf.put(body("b", 3))
    assert kept.told == [(None, "same"), ("same", "same")]


def test_an_object_that_is_of_no_interest_any_more_goes() -> None:
    kept = Kept()
    kept.shelf.put(body("a", 1, value="here"))
    kept.shelf.put(body("a", 2))
    assert (kept.shelf.items, kept.told) == ({}, [(None, "here"), ("here", None)])


def test_a_list_takes_away_what_it_does_not_have_but_not_what_is_newer() -> None:
    kept = Kept()
    kept.shelf.put(body("gone", 3, value="gone"))
    kept.shelf.ask()
    kept.shelf.put(body("new", 12, value="new"))
    kept.shelf.replace([body("a", 4, value="a")], "10")
    assert kept.shelf.items == {"new": "new", "a": "a"}


def test_an_older_event_does_not_bring_back_what_a_list_took_away() -> None:
    kept = Kept()
    kept.shelf.put(body("gone", 3, value="gone"))
    kept.shelf.replace([], "10")
    kept.shelf.put(body("gone", 5, value="late"))
    assert kept.shelf.items == {}
    kept.shelf.put(body("born", 11, value="born"))
    assert kept.shelf.items == {"born": "born"}


def test_a_removed_object_is_gone() -> None:
    kept = Kept()
    kept.shelf.put(body("a", 1, value="a"))
    kept.shelf.remove(end_of("a"))
    kept.shelf.remove(end_of("a"))
    assert (kept.shelf.items, kept.told) == ({}, [(None, "a"), ("a", None)])


@pytest.mark.parametrize(
    ("stored", "wanted", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1}, {}, id="nothing to do"),
        pytest.param({}, {"a": {"b": 1}}, {"a": {"b": 1}}, id="a first status is sent whole"),
        pytest.param({"a": 1, "b": 2}, {"a": 1}, {"b": None}, id="an addition is taken away"),
        pytest.param(
            {"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "z": 3}}, {"a": {"y": None, "z": 3}}, id="only what differs below"
        ),
        pytest.param(
            {"a": {"x": 1}, "b": 1}, {"a": {"x": 1}, "b": 2}, {"b": 2}, id="nothing of what is the same below"
        ),
        pytest.param({"a": [1, 2]}, {"a": [1]}, {"a": [1]}, id="a list is sent whole"),
        pytest.param({"a": {"x": 1}}, {"a": 5}, {"a": 5}, id="another kind of value is sent whole"),
        pytest.param({"a": 5}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="an object where there was none"),
        pytest.param({"a": {"x": 1}}, {"a": {}}, {"a": {"x": None}}, id="an emptied object"),
    ],
)
def test_the_difference_of_two_statuses(stored: Json, wanted: Json, patch: Json) -> None:
    assert difference(stored, wanted) == patch
    assert merged(stored, patch) == wanted


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386 as it is written there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Told:
    """Objects, and what they told."""

    def __init__(self) -> None:
        self.touched: list[str] = []
        self.edited: list[str] = []
        self.objects = Objects(
            lambda key: self.touched.append(key.name),
            lambda namespace: self.edited.append(namespace),  # noqa: PLW0108 - `taken` replaces the list
        )

    def taken(self) -> tuple[list[str], list[str]]:
        touched, self.touched = self.touched, []
        edited, self.edited = self.edited, []
        return touched, edited


def stored(raw: Json, uid: str, version: int, generation: int = 1, **status: Any) -> Json:
    metadata = {
        "uid": uid,
        "namespace": "inference",
        "resourceVersion": str(version),
        "generation": generation,
    }
    return {**raw, "metadata": {**raw["metadata"], **metadata}, "status": status}


LLAMA = PoolKey("inference", "llama")


def test_a_quota_touches_its_pool_and_says_when_its_spec_changed() -> None:
    told = Told()
    told.objects.put("TenantQuota", stored(quota("search"), "q", 1))
    assert told.taken() == (["llama"], ["inference"])
    told.objects.put("TenantQuota", stored(quota("search"), "q", 2, state="Ready"))
    assert told.taken() == (["llama"], [])
    told.objects.put("TenantQuota", stored(quota("search", hard=9), "q", 3, generation=2, state="Ready"))
    assert told.taken() == (["llama"], ["inference"])
    told.objects.put("TenantQuota", stored(quota("search", hard=9), "q", 4, generation=2, state="Ready"))
    assert told.taken() == ([], [])
    told.objects.remove("TenantQuota", end_of("q"))
    assert told.taken() == (["llama"], ["inference"])
    assert list(told.objects.quotas(LLAMA)) == []


@pytest.mark.parametrize(("kind", "raw"), [("ModelPool", pool("llama")), ("TenantQuota", quota("search"))])
def test_the_version_for_the_next_write_is_the_newest_though_nothing_else_changed(kind: Any, raw: Json) -> None:
    told = Told()
    for version in (1, 2, 3):
        told.objects.put(kind, stored(raw, "u", version))
    found = told.objects.pool(LLAMA) if kind == "ModelPool" else told.objects.quota("inference", "search")
    assert found is not None
    assert found.version == "3"
    assert told.taken()[0] == ["llama"]


INVALID = {**pool("llama"), "spec": {**pool("llama")["spec"], "gpu": 3}}


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        pytest.param("ModelPool", pool("llama"), id="a pool"),
        pytest.param("ModelPool", INVALID, id="a pool that does not parse"),
        pytest.param("TenantQuota", quota("search"), id="a quota"),
    ],
)
def test_a_status_that_the_operator_wrote_touches_nobody_and_any_other_change_does(kind: Any, raw: Json) -> None:
    told = Told()
    told.objects.put(kind, stored(raw, "u", 1))
    told.taken()
    told.objects.expect(kind, "u", {"state": "Ready"})
    told.objects.put(kind, stored(raw, "u", 2, state="Ready"))
    assert told.taken() == ([], [])
    told.objects.put(kind, stored(raw, "u", 3, state="Edited"))
    assert told.taken() == (["llama"], [])
    told.objects.put(kind, stored(raw, "u", 4, generation=2, state="Ready"))
    assert told.taken() == (["llama"], ["inference"])
    told.objects.remove(kind, end_of("u"))
    told.objects.put(kind, stored(raw, "u", 5, state="Ready"))
    assert told.taken()[0] == ["llama", "llama"]


def test_quotas_of_a_pool_come_by_name() -> None:
    told = Told()
    for number, name in enumerate(("b", "a", "c")):
        told.objects.put("TenantQuota", stored(quota(name), name, number + 1))
    told.objects.put("TenantQuota", stored(quota("other", pool="other"), "other", 9))
    assert [each.name for each in told.objects.quotas(LLAMA)] == ["a", "b", "c"]
    found = told.objects.quota("inference", "b")
    assert found is not None
    assert found.uid == "b"


def test_a_quota_that_is_created_again_before_its_end_is_told_stays() -> None:
    told = Told()
    told.objects.put("TenantQuota", stored(quota("search"), "old", 1))
    told.objects.put("TenantQuota", stored(quota("search", pool="other"), "new", 3))
    assert list(told.objects.quotas(LLAMA)) == []
    told.objects.remove("TenantQuota", end_of("old"))
    assert [each.uid for each in told.objects.quotas(PoolKey("inference", "other"))] == ["new"]
    assert told.objects.quota("inference", "search") is not None


def test_a_pool_that_is_created_again_before_its_end_is_told_stays() -> None:
    told = Told()
    told.objects.put("ModelPool", stored(pool("llama"), "old", 1))
    told.objects.put("ModelPool", stored(pool("llama"), "new", 3))
    told.objects.remove("ModelPool", end_of("old"))
    found = told.objects.pool(LLAMA)
    assert found is not None
    assert found.uid == "new"
    assert [each.uid for each in told.objects.pools("inference")] == ["new"]
    assert list(told.objects.pools("other")) == []


def test_a_quota_without_a_readable_pool_touches_nobody() -> None:
    told = Told()
    told.objects.put("TenantQuota", stored(quota("search", modelPoolRef=None), "q", 1))
    told.objects.remove("TenantQuota", end_of("q"))
    assert told.taken() == ([], ["inference", "inference"])


def test_the_inbox_hands_over_the_newest_event_of_each_object() -> None:
    async def scene() -> list[tuple[str, str | None, str]]:
        taken: list[tuple[str, str | None, str]] = []
        inbox = Inbox()
        for event, version in (("ADDED", 1), ("MODIFIED", 2), ("DELETED", 3)):
            inbox.deliver("ModelPool", event, body("a", version))
        inbox.deliver("TenantQuota", None, body("b", 4))
        running = asyncio.create_task(
            inbox.run(lambda kind, event, each: taken.append((kind, event, each["metadata"]["resourceVersion"])))
        )
        await asyncio.sleep(0.1)
        inbox.deliver("TenantQuota", "MODIFIED", body("b", 5))
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        return taken

    assert in_time(scene) == [
        ("ModelPool", "DELETED", "3"),
        ("TenantQuota", None, "4"),
        ("TenantQuota", "MODIFIED", "5"),
    ]
