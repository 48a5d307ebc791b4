"""The engine's tokenizer is asked in time, once for the same text, and let alone when nobody wants to know any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import MediaCost
from kvquota_sidecar.estimate.shape import Engine, Shape, read_shape
from kvquota_sidecar.proxy.counting import DEADLINE_SECONDS, MAX_ANSWER_BYTES, MAX_REMEMBERED, Counting, Tokenizer
from kvquota_sidecar.proxy.engine_answer import AnswerHead
from kvquota_sidecar.proxy.engine_side import EngineAddress, EngineFailure, Listener
from virtual_time import run

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Call:
    """One request of the tokenizer, which the test answers."""

    request: bytes
    listener: Listener
    is_cancelled: bool = False

    def cancel(self) -> None:
        assert not self.is_cancelled
        self.is_cancelled = True

    def answer(self, body: bytes, status: int = 200) -> None:
        self.listener.answer_head(AnswerHead(status, (), len(body)))
        for part in (body[:3], body[3:]):
            self.listener.answer_data(part)
        self.listener.answer_end()

    def count(self, tokens: int) -> None:
        self.answer(json.dumps({"count": tokens, "tokens": [1] * 10}).encode())


@dataclass
class Pool:
    address: EngineAddress = field(default_factory=lambda: EngineAddress("127.0.0.1", 8000))
    calls: list[Call] = field(default_factory=list)

    def call(self, request: bytes, listener: Listener) -> Call:
        self.calls.append(Call(request, listener))
        return self.calls[-1]


class Rig:
    """A tokenizer in front of a pool that does nothing by itself, and what its callers were told."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.tokenizer = Tokenizer(self.pool)
        self.told: list[tuple[int, ...] | None] = []

    def count(
        self, prompt: Any = "ab", tenant: str = "a/t", engine: Engine = "vLLM", route: str = COMPLETION
    ) -> Counting:
        name = "prompt" if route == COMPLETION else "messages"
        body = json.dumps({name: prompt}).encode()
        shape = read_shape(route, body, MediaCost(image_tokens=Tokens(5)))
        assert isinstance(shape, Shape), shape
        return self.tokenizer.count(tenant, engine, route, body, shape=shape, done=self.told.append)


def timed(story: Callable[[Rig], Coroutine[Any, Any, None]]) -> Rig:
    rig = Rig()
    run(story(rig))
    return rig


def test_the_engine_is_asked_and_its_count_told() -> None:
    async def story(rig: Rig) -> None:
        rig.count("hé")
        rig.pool.calls[0].count(7)

    rig = timed(story)
    body = b'{"prompt":"h\\u00e9"}'
    head = "POST /tokenize HTTP/1.1|host: 127.0.0.1:8000|content-type: application/json|content-length: 20||"
    assert [each.request for each in rig.pool.calls] == [head.replace("|", "\r\n").encode() + body]
    assert rig.told == [(7,)]
    assert not rig.pool.calls[0].is_cancelled  # its connection may carry the next call


def test_of_several_prompts_each_is_asked_and_token_ids_stay_what_they_are() -> None:
    async def story(rig: Rig) -> None:
        rig.count(["ab", [1, 2], "c"])
        rig.pool.calls[1].count(5)
        assert rig.told == []
        rig.pool.calls[0].count(9)

    assert timed(story).told == [(9, 2, 5)]


def test_what_is_not_counted_in_time_is_let_go() -> None:
    async def story(rig: Rig) -> None:
        counting = rig.count(["ab", "c"])
        rig.pool.calls[0].count(3)
        await asyncio.sleep(DEADLINE_SECONDS - 0.001)
        assert rig.told == []
        await asyncio.sleep(0.002)
        counting.cancel()

    rig = timed(story)
    assert rig.told == [None]
    assert [each.is_cancelled for each in rig.pool.calls] == [False, True]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda call: call.answer(b'{"count":3}', status=404), id="it has no such route"),
        pytest.param(lambda call: call.answer(b"{}"), id="it names no count"),
        pytest.param(lambda call: call.answer(b'{"count":3' + b" " * MAX_ANSWER_BYTES + b"}"), id="it never ends"),
        pytest.param(lambda call: call.listener.answer_broken(EngineFailure("Broken", "x")), id="it breaks off"),
    ],
)
def test_where_the_engine_does_not_say_the_others_are_not_waited_for(end: Callable[[Call], None]) -> None:
    async def story(rig: Rig) -> None:
        rig.count(["ab", "c"])
        end(rig.pool.calls[0])

    rig = timed(story)
    assert rig.told == [None]
    assert [each.is_cancelled for each in rig.pool.calls] == [False, True]


@pytest.mark.parametrize(
    ("engine", "route", "prompt"),
    [
        pytest.param("LlamaCpp", COMPLETION, "ab", id="an engine without a tokenizer"),
        pytest.param("SGLang", CHAT, [{"role": "user", "content": "x"}], id="one that counts no chats"),
        pytest.param(
            "vLLM", CHAT, [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}], id="an image"
        ),
    ],
)
def test_where_nobody_can_say_it_is_told_at_once(engine: Engine, route: str, prompt: Any) -> None:
    async def story(rig: Rig) -> None:
        rig.count(prompt, engine=engine, route=route)
        assert rig.told == [None]

    assert timed(story).pool.calls == []


def test_the_same_text_of_the_same_tenant_is_asked_once() -> None:
    async def story(rig: Rig) -> None:
        rig.count("ab")
        rig.pool.calls[0].count(7)
        rig.count("ab")
        rig.count(["ab", "new"])
        rig.pool.calls[1].count(8)
        await asyncio.sleep(1)

    rig = timed(story)
    assert rig.told == [(7,), (7,), (7, 8)]
    assert [b"new" in each.request for each in rig.pool.calls] == [False, True]


def test_another_tenant_learns_nothing_of_it() -> None:
    async def story(rig: Rig) -> None:
        rig.count("ab")
        rig.pool.calls[0].count(7)
        rig.count("ab", tenant="a/other").cancel()

    rig = timed(story)
    assert [len(rig.pool.calls), rig.told] == [2, [(7,)]]


def test_the_count_that_was_not_wanted_longest_is_forgotten_first() -> None:
    others = [f"other {number}" for number in range(MAX_REMEMBERED - 2)]

    async def story(rig: Rig) -> None:
        for prompt in ("first", "second", *others, "first", "third", "first", "second"):
            before = len(rig.pool.calls)
            rig.count(prompt)
            for call in rig.pool.calls[before:]:
                call.count(len(prompt))

    rig = timed(story)
    asked = [json.loads(each.request.split(b"\r\n\r\n")[1])["prompt"] for each in rig.pool.calls]
    assert asked == ["first", "second", *others, "third", "second"]


def test_when_the_client_is_gone_the_engine_is_let_alone_and_nothing_told() -> None:
    async def story(rig: Rig) -> None:
        rig.count("ab").cancel()
        await asyncio.sleep(1)

    rig = timed(story)
    assert [each.is_cancelled for each in rig.pool.calls] == [True]
    assert rig.told == []
