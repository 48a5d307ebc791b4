"""Objects that are read one by one: how old they may be, and what a failure takes away."""

import asyncio
from typing import Any

import pytest

import virtual_time
from kvquota_operator.adapters.reads import FRESH_SECONDS, RETRY_SECONDS, UNUSED_SECONDS, Reads
from kvquota_operator.ports import ClusterError, ExpiredError, NotServedError, UnreachableError, VanishedError
from scripted_api import ScriptedApi, in_time


def reads(api: ScriptedApi) -> Reads[Any]:
    return Reads(api, virtual_time.LoopClock(), lambda each: each["value"])  # type: ignore[arg-type]  # a fake of what is used


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
