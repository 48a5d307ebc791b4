"""What two prompts have in common: hashes over chunks of their text, and over all that comes before."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

import pytest

from kvquota_sidecar.estimate.chain import CHUNK_BYTES, MAX_CHUNKS, chain
from kvquota_sidecar.estimate.prompts import PromptSize
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.records import replace

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
LONG = "The quick brown fox jumps over the lazy dog. " * 100


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(0, 0, id="nothing"),
        pytest.param(CHUNK_BYTES - 1, 0, id="less than a chunk"),
        pytest.param(CHUNK_BYTES, 1, id="one chunk"),
        pytest.param(3 * CHUNK_BYTES + 5, 3, id="what does not fill one has none"),
        pytest.param((MAX_CHUNKS + 2) * CHUNK_BYTES, MAX_CHUNKS, id="nor has what is beyond the last"),
    ],
)
def test_each_whole_chunk_has_a_hash(size: int, expected: int) -> None:
    assert len(chain(b"", b"x" * size)) == expected


def test_two_texts_share_what_comes_before_their_first_difference() -> None:
    text = bytes(range(256)) * 16
    for at in (0, CHUNK_BYTES - 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 7):
        other = text[:at] + b"?" + text[at + 1 :]
        assert shared(chain(b"s", text), chain(b"s", other)) == at // CHUNK_BYTES


def test_a_chunk_that_stands_elsewhere_is_another() -> None:
    hashes = chain(b"", b"x" * (8 * CHUNK_BYTES))
    assert len({*hashes}) == len(hashes)


def test_another_seed_shares_nothing() -> None:
    assert shared(chain(b"a", b"x" * 4096), chain(b"b", b"x" * 4096)) == 0


def prompt(route: str, fields: dict[str, Any]) -> PromptSize:
    read = read_shape(route, json.dumps(fields, separators=(",", ":")).encode())
    assert isinstance(read, Shape), read
    return read.prompts[0]


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents], **fields}


def both(route: str, one: dict[str, Any], other: dict[str, Any]) -> int:
    """Bytes that two bodies share."""
    return shared(prompt(route, one).chain, prompt(route, other).chain) * CHUNK_BYTES


@pytest.mark.parametrize(
    ("route", "one", "other"),
    [
        pytest.param(CHAT, chat(LONG, "a"), chat(LONG, "b"), id="chats that begin alike"),
        pytest.param(CHAT, chat(LONG), chat(LONG, "b", "c"), id="one that goes on"),
        pytest.param(
            CHAT,
            chat(LONG, "a", temperature=0, max_tokens=5, stream=True, user="u", seed=1),
            chat(LONG, "b", temperature=1, max_tokens=6, priority=2),
            id="with other settings of the answer",
        ),
        pytest.param(COMPLETION, {"prompt": LONG + "a"}, {"prompt": LONG + "b"}, id="prompts"),
        pytest.param(COMPLETION, {"prompt": [LONG + "a"]}, {"prompt": LONG + "b"}, id="one of a list"),
        pytest.param(
            MESSAGES,
            {"system": LONG, "max_tokens": 5, **chat("a")},
            {"system": LONG, "max_tokens": 6, **chat("b")},
            id="Anthropic's system",
        ),
        pytest.param(
            RESPONSES, {"instructions": LONG, "input": "a"}, {"instructions": LONG, "input": "b"}, id="instructions"
        ),
        pytest.param(RESPONSES, {"input": LONG + "a"}, {"input": LONG + "b"}, id="inputs"),
        pytest.param(
            CHAT, chat("a", tools=[{"description": LONG}]), chat("b", tools=[{"description": LONG}]), id="tools"
        ),
    ],
)
def test_bodies_that_begin_alike_share_their_beginning(route: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert len(LONG) - CHUNK_BYTES <= both(route, one, other) < len(LONG) + CHUNK_BYTES


@pytest.mark.parametrize(
    ("route", "one", "other"),
    [
        pytest.param(CHAT, chat(LONG), chat(LONG, tools=[{"name": "t"}]), id="tools"),
        pytest.param(
            CHAT,
            chat(LONG, tools=[{"description": LONG, "name": "a"}]),
            chat(LONG, tools=[{"description": LONG, "name": "b"}]),
            id="tools that differ at their end",
        ),
        pytest.param(CHAT, chat(LONG), chat(LONG, documents=[{"text": "d"}]), id="documents"),
        pytest.param(CHAT, chat(LONG), chat(LONG, chat_template_kwargs={"a": 1}), id="arguments of the template"),
        pytest.param(CHAT, chat(LONG), chat(LONG, reasoning_effort="low"), id="what a template may say"),
        pytest.param(CHAT, chat(LONG), chat(LONG, some_new_field=1), id="a field that nobody knows yet"),
        pytest.param(CHAT, chat(LONG), chat(LONG, model="adapter"), id="a model"),
        pytest.param(CHAT, chat(LONG), chat(LONG, cache_salt="s"), id="a cache of its own"),
        pytest.param(COMPLETION, {"prompt": LONG}, {"prompt": LONG, "suffix": "s"}, id="a suffix"),
        pytest.param(CHAT, chat(LONG), chat("x" + LONG), id="its first letter"),
    ],
)
def test_what_may_shape_the_whole_prompt_leaves_nothing_shared(
    route: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert prompt(route, one).chain != ()
    assert both(route, one, other) == 0


def test_the_order_of_the_fields_makes_no_difference() -> None:
    one = chat(LONG, model="m", cache_salt="s", tools=[])
    assert prompt(CHAT, one).chain == prompt(CHAT, dict(reversed(one.items()))).chain


def test_a_chain_says_over_how_many_bytes_it_runs() -> None:
    found = prompt(CHAT, chat(LONG))
    assert found.span == len(json.dumps(chat(LONG)["messages"], separators=(",", ":")))
    assert len(found.chain) == found.span // CHUNK_BYTES


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_where_no_beginning_can_be_shared_no_prompt_has_one(route: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": LONG}], "prompt": LONG}).encode()
    alone, sharing = read_shape(route, body, shares=False), read_shape(route, body)
    assert isinstance(alone, Shape)
    assert isinstance(sharing, Shape)
    assert sharing.prompts[0].chain
    assert alone.prompts == (replace(sharing.prompts[0], chain=(), span=0),)


def test_a_short_prompt_and_token_ids_have_none() -> None:
    for found in (prompt(CHAT, chat("x" * 300)), prompt(COMPLETION, {"prompt": [7] * 5000})):
        assert (found.chain, found.span) == ((), 0)
