"""The events that the operator tells: about whom, how often, and how many."""

import asyncio

import pytest

import virtual_time
from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.events import AGAIN_SECONDS, BURST, REMEMBERED, Events
from kvquota_operator.ports import UnreachableError
from kvquota_operator.reconcile.plan import EventWanted
from scripted_api import ScriptedApi, in_time


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


def test_a_sentence_that_could_not_be_told_may_come_again_at_once() -> None:
    async def scene() -> list[int]:
        api, dropped = ScriptedApi(), [0]
        events, create = telling(api, dropped), api.create

        async def away(path: str, body: Json) -> Json:
            raise UnreachableError("away")

        api.create = away  # type: ignore[method-assign]  # the server of this test is away for a moment
        with pytest.raises(UnreachableError):
            await events.record("inference", wanted())
        api.create = create  # type: ignore[method-assign]  # and is back
        await events.record("inference", wanted())
        await events.record("inference", wanted())
        return [len(api.created), len(dropped) - 1]

    assert in_time(scene) == [1, 1]


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
