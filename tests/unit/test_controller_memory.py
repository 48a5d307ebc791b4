"""What the operator keeps of the API server's objects: in which order things may come, and how little may go wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import virtual_time
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.events import AGAIN_SECONDS, BURST, REMEMBERED, Events
from kvquota_operator.adapters.inbox import Inbox
from kvquota_operator.adapters.objects import Objects
from kvquota_operator.adapters.reads import FRESH_SECONDS, RETRY_SECONDS, UNUSED_SECONDS, Reads
from kvquota_operator.adapters.shelf import Shelf
from kvquota_operator.adapters.statuses import difference
from kvquota_operator.adapters.watch import Collection, Mirror
from kvquota_operator.ports import (
    ClusterError,
    ClusterTimeoutError,
    ExpiredError,
    NotServedError,
    ThrottledError,
    UnreachableError,
    VanishedError,
)
from kvquota_operator.reconcile.observed import PoolKey
from kvquota_operator.reconcile.plan import EventWanted
from operator_world import pool, quota


def body(uid: str, version: int, **more: Any) -> Json:
    return {"metadata": {"uid": uid, "name": uid, "namespace": "inference", "resourceVersion": str(version)}, **more}


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


def test_an_older_list_changes_nothing_that_is_newer() -> None:
    kept = Kept()
    kept.shelf.replace([body("a", 8, value="eight")], "10")
    kept.shelf.replace([body("a", 2, value="two")], "5")
    assert kept.shelf.items == {"a": "eight"}


def test_a_removed_object_is_gone() -> None:
    kept = Kept()
    kept.shelf.put(body("a", 1, value="a"))
    kept.shelf.remove("a")
    kept.shelf.remove("a")
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
    told.objects.remove("TenantQuota", "q")
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
    told.objects.remove(kind, "u")
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
    told.objects.remove("TenantQuota", "old")
    assert [each.uid for each in told.objects.quotas(PoolKey("inference", "other"))] == ["new"]
    assert told.objects.quota("inference", "search") is not None


def test_a_pool_that_is_created_again_before_its_end_is_told_stays() -> None:
    told = Told()
    told.objects.put("ModelPool", stored(pool("llama"), "old", 1))
    told.objects.put("ModelPool", stored(pool("llama"), "new", 3))
    told.objects.remove("ModelPool", "old")
    found = told.objects.pool(LLAMA)
    assert found is not None
    assert found.uid == "new"
    assert [each.uid for each in told.objects.pools("inference")] == ["new"]
    assert list(told.objects.pools("other")) == []


def test_a_quota_without_a_readable_pool_touches_nobody() -> None:
    told = Told()
    told.objects.put("TenantQuota", stored(quota("search", modelPoolRef=None), "q", 1))
    told.objects.remove("TenantQuota", "q")
    assert told.taken() == ([], ["inference", "inference"])


class ScriptedApi:
    """An API server that answers what it is told to, in order; what is no answer is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.created: list[Json] = []

    def _next(self, asked: str) -> Any:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, path: str, *, timeout_seconds: float = 10.0) -> Json:
        answer: Json = self._next(f"get within {timeout_seconds:g} s")
        return answer

    async def create(self, path: str, body: Json) -> Json:
        self.created.append(body)
        return body

    async def list(self, path: str, selector: str = "") -> tuple[list[Json], str]:
        answer: tuple[list[Json], str] = self._next("list")
        return answer

    async def watch(self, path: str, version: str, selector: str = "") -> AsyncIterator[Json]:
        for each in self._next(f"watch from {version}"):
            if isinstance(each, Exception):
                raise each
            yield each


def reads(api: ScriptedApi) -> Reads[Any]:
    return Reads(api, virtual_time.LoopClock(), lambda each: each["value"])  # type: ignore[arg-type]  # a fake of what is used


def in_time(scene: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await scene()

    return virtual_time.run(whole())


def test_a_read_object_is_read_again_when_it_is_old_and_not_before() -> None:
    async def scene() -> list[Any]:
        kept = reads(ScriptedApi({"value": 1}, {"value": 2}))
        first = [await kept.get("/a")]
        await asyncio.sleep(FRESH_SECONDS * 0.7)
        first.append(await kept.get("/a"))
        await asyncio.sleep(FRESH_SECONDS * 0.4)
        return [*first, await kept.get("/a")]

    assert in_time(scene) == [1, 1, 2]


def test_an_expired_object_is_read_at_once_and_others_are_not() -> None:
    async def scene() -> list[Any]:
        kept = reads(ScriptedApi({"value": 1}, {"value": 2}, {"value": 3}))
        values = [await kept.get("/a/x"), await kept.get("/b/y")]
        kept.expire("/a/")
        return [*values, await kept.get("/a/x"), await kept.get("/b/y")]

    assert in_time(scene) == [1, 2, 3, 2]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(NotServedError("404: <html>"), id="a page of something in between"),
        pytest.param(ExpiredError("410"), id="an answer that is about no object"),
    ],
)
def test_an_answer_that_does_not_say_that_the_object_is_gone_takes_nothing_away(error: ClusterError) -> None:
    async def scene() -> list[Any]:
        kept = reads(ScriptedApi({"value": 1}, error))
        first = await kept.get("/a")
        await asyncio.sleep(FRESH_SECONDS + 1)
        return [first, await kept.get("/a")]

    assert in_time(scene) == [1, 1]


def test_an_object_that_is_not_there_is_remembered_as_such() -> None:
    async def scene() -> list[Any]:
        kept = reads(ScriptedApi(VanishedError("404")))
        return [await kept.get("/a"), await kept.get("/a")]

    assert in_time(scene) == [None, None]


def test_a_failed_read_keeps_what_is_known_and_is_soon_repeated() -> None:
    async def scene() -> tuple[list[Any], list[str]]:
        api = ScriptedApi({"value": 1}, UnreachableError("away"), {"value": 2})
        kept = reads(api)
        values = [await kept.get("/a")]
        kept.expire("/a")
        values += [await kept.get("/a"), await kept.get("/a")]
        await asyncio.sleep(RETRY_SECONDS + 0.1)
        return [*values, await kept.get("/a")], api.asked

    assert in_time(scene) == ([1, 1, 1, 2], ["get within 10 s", "get within 2 s", "get within 2 s"])


def test_a_first_read_that_fails_is_a_failure() -> None:
    with pytest.raises(UnreachableError):
        in_time(lambda: reads(ScriptedApi(UnreachableError("away"))).get("/a"))


def test_an_answer_to_a_write_is_what_is_read() -> None:
    async def scene() -> Any:
        kept = reads(ScriptedApi())
        kept.put("/a", {"value": 5})
        return await kept.get("/a")

    assert in_time(scene) == 5


def test_what_nobody_asks_for_is_forgotten_and_then_not_known_any_more() -> None:
    async def scene() -> None:
        kept = reads(ScriptedApi({"value": 1}, UnreachableError("away")))
        values = [await kept.get("/a")]
        kept.sweep()
        values.append(await kept.get("/a"))
        assert values == [1, 1]
        await asyncio.sleep(UNUSED_SECONDS + 1)
        kept.sweep()
        with pytest.raises(UnreachableError):
            await kept.get("/a")

    in_time(scene)


def telling(api: ScriptedApi, dropped: list[int]) -> Events:
    clock = virtual_time.LoopClock()
    return Events(api, clock, instance="test", dropped=lambda: dropped.append(1))  # type: ignore[arg-type]  # a fake of what is used


def wanted(name: str = "search", message: str = "too late") -> EventWanted:
    return EventWanted("TenantQuota", name, f"uid-{name}", "Warning", "DuplicateTenant", message)


def test_an_event_says_whom_it_is_about() -> None:
    async def scene() -> list[Json]:
        api = ScriptedApi()
        await telling(api, []).record("inference", wanted(message="x" * 2000))
        return api.created

    [event] = in_time(scene)
    assert event["metadata"]["name"].startswith("search.")
    assert {key: event[key] for key in ("type", "reason", "reportingInstance", "action")} == {
        "type": "Warning",
        "reason": "DuplicateTenant",
        "reportingInstance": "test",
        "action": "Reconcile",
    }
    assert event["regarding"] == {
        "apiVersion": "kvquota.dev/v1alpha1",
        "kind": "TenantQuota",
        "namespace": "inference",
        "name": "search",
        "uid": "uid-search",
    }
    assert event["note"] == "x" * 1024


def test_the_same_sentence_is_told_again_only_after_a_while() -> None:
    async def scene() -> list[int]:
        api, dropped = ScriptedApi(), [0]
        events = telling(api, dropped)
        counts = []
        for pause in (0.0, AGAIN_SECONDS - 1.0, 2.0):
            await asyncio.sleep(pause)
            await events.record("inference", wanted())
            counts.append(len(api.created))
        await events.record("inference", wanted(message="another sentence"))
        return [*counts, len(api.created), len(dropped) - 1]

    assert in_time(scene) == [1, 1, 2, 3, 1]


def test_a_flood_is_cut_and_counted_however_long_it_was_quiet_before() -> None:
    async def scene() -> list[tuple[int, int]]:
        api = ScriptedApi()
        dropped: list[int] = []
        events = telling(api, dropped)
        counts = []
        for flood, pause in enumerate((0.0, 3.0, 100_000.0)):
            await asyncio.sleep(pause)
            api.created.clear()
            dropped.clear()
            for number in range(100):
                await events.record("inference", wanted(name=f"{flood}-{number}"))
            counts.append((len(api.created), len(dropped)))
        return counts

    assert in_time(scene) == [(BURST, 100 - BURST), (3, 97), (BURST, 100 - BURST)]


def test_the_memory_of_sentences_is_bounded() -> None:
    async def scene() -> int:
        events = telling(ScriptedApi(), [])
        for number in range(REMEMBERED + 10):
            await events.record("inference", wanted(name=str(number)))
            await asyncio.sleep(1.0)
        return len(events._told)

    assert in_time(scene) <= REMEMBERED


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


def event(kind: str, uid: str = "a", version: int = 1, **more: Any) -> Json:
    return {"type": kind, "object": body(uid, version, **more)}


GONE = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}


class Watched:
    """A mirror over a scripted API, until the script is over."""

    def __init__(self, *answers: Any) -> None:
        self.api = ScriptedApi(*answers)
        self.restarts: list[str] = []
        self.changes = 0
        self.mirror: Mirror[Any] | None = None

    def play(self) -> list[str]:
        async def scene() -> None:
            self.mirror = Mirror(
                self.api,  # type: ignore[arg-type]  # a fake of what is used
                virtual_time.LoopClock(),
                Collection("/pods"),
                parse=lambda each: each.get("value"),
                replaced=self._count,
                restarted=self.restarts.append,
            )
            running = asyncio.create_task(self.mirror.run())
            await asyncio.wait([running])
            assert isinstance(running.exception(), IndexError)

        virtual_time.run(scene())
        return self.api.asked[:-1]

    def _count(self, *_: Any) -> None:
        self.changes += 1

    @property
    def items(self) -> dict[str, Any]:
        assert self.mirror is not None
        return dict(self.mirror.items)


def test_a_watch_goes_on_from_the_last_version_that_it_saw_bookmarks_included() -> None:
    watched = Watched(
        ([body("a", 3, value="a")], "5"),
        [event("MODIFIED", "a", 7, value="b"), event("BOOKMARK", "-", 20)],
        [event("ADDED", "c", 21, value="c"), event("DELETED", "a", 22, value="b")],
        [],
    )
    assert watched.play() == ["list", "watch from 5", "watch from 20", "watch from 22"]
    assert (watched.items, watched.restarts) == ({"c": "c"}, [])


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([GONE], id="410 within a watch"),
        pytest.param(ExpiredError("410"), id="410 instead of a watch"),
        pytest.param([{"type": "NOVEL", "object": {}}], id="an event that nobody knows"),
    ],
)
def test_a_watch_that_cannot_go_on_begins_with_a_list_and_keeps_what_it_knows_meanwhile(end: Any) -> None:
    watched = Watched(
        ([body("a", 3, value="a"), body("b", 3, value="b")], "5"),
        end,
        UnreachableError("away for a moment"),
        ([body("a", 3, value="a")], "9"),
        [],
    )
    assert watched.play() == ["list", "watch from 5", "list", "list", "watch from 9"]
    assert (watched.items, watched.restarts) == ({"a": "a"}, ["Expired", "Unreachable"])


@pytest.mark.parametrize("error", [UnreachableError("broken"), ClusterTimeoutError("silent"), ThrottledError("slow")])
def test_a_watch_that_breaks_goes_on_where_it_was(error: ClusterError) -> None:
    watched = Watched(([body("a", 3, value="a")], "5"), [event("MODIFIED", "a", 8, value="b"), error], [])
    assert watched.play() == ["list", "watch from 5", "watch from 8"]
    assert (watched.items, watched.restarts) == ({"a": "b"}, [error.reason])


def test_a_first_list_is_told_even_if_it_is_empty_and_later_only_news() -> None:
    watched = Watched(([], "5"), [event("ADDED", "a", 6, value=1)], [GONE], ([body("a", 6, value=1)], "9"), [])
    watched.play()
    assert watched.changes == 2


def test_a_watch_that_breaks_again_and_again_waits_longer_and_longer() -> None:
    watched = Watched(([], "5"), *[UnreachableError("away")] * 12)
    assert elapsed(watched) == pytest.approx(0.2 * (2**7 - 1) + 15 * 5, rel=0.3)


def test_a_watch_that_is_asked_to_wait_waits() -> None:
    watched = Watched(([], "5"), ThrottledError("slow down", retry_after=40.0))
    assert elapsed(watched) >= 40.0


def elapsed(watched: Watched) -> float:
    times: list[float] = []

    class Timed(ScriptedApi):
        def _next(self, asked: str) -> Any:
            times.append(asyncio.get_running_loop().time())
            return super()._next(asked)

    watched.api = Timed(*watched.api.answers)
    watched.play()
    return times[-1] - times[0]
