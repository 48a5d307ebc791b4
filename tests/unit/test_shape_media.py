"""Images, audio and videos: counted by what the administrator has set, never by their bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvquota_api.pod_config import MediaCost
from kvquota_sidecar.estimate.prompts import PromptSize
from kvquota_sidecar.estimate.shape import Shape, read_shape
from kvquota_sidecar.refusals import Code, Refusal

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COST = MediaCost(image_tokens=1000, audio_tokens=200, video_tokens=30_000)
DATA = "data:image/png;base64," + "A" * 100_000
TEXT = {"type": "text", "text": "what is this?"}
IMAGE = {"type": "image_url", "image_url": {"url": DATA}}
AUDIO = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": {"url": DATA}}
SOURCE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}]}


def read(route: str, fields: dict[str, Any], cost: MediaCost = COST) -> Shape | Refusal:
    whole = {MESSAGES: {"max_tokens": 5}, CHAT: {}, RESPONSES: {}}[route] | fields
    return read_shape(route, json.dumps(whole).encode(), cost)


def prompt(route: str, fields: dict[str, Any]) -> PromptSize:
    shape = read(route, fields)
    assert isinstance(shape, Shape), shape
    (found,) = shape.prompts
    return found


@pytest.mark.parametrize(
    ("route", "fields", "tokens"),
    [
        pytest.param(CHAT, chat(TEXT, IMAGE), 1000, id="an image"),
        pytest.param(CHAT, chat(TEXT, IMAGE, IMAGE), 2000, id="two images"),
        pytest.param(CHAT, chat(TEXT, AUDIO), 200, id="audio"),
        pytest.param(CHAT, chat(TEXT, {"type": "audio_url", "audio_url": {"url": DATA}}), 200, id="audio by its URL"),
        pytest.param(CHAT, chat(TEXT, VIDEO), 30_000, id="a video"),
        pytest.param(CHAT, chat(TEXT, IMAGE, AUDIO, VIDEO), 31_200, id="all of them"),
        pytest.param(MESSAGES, chat(TEXT, SOURCE), 1000, id="an image in Anthropic's form"),
        pytest.param(
            MESSAGES, chat({"type": "tool_result", "content": [TEXT, SOURCE]}), 1000, id="an image that a tool gave"
        ),
        pytest.param(
            RESPONSES,
            {"input": chat(TEXT, {"type": "input_image", "image_url": DATA})["messages"]},
            1000,
            id="an image in a response's form",
        ),
    ],
)
def test_each_counts_as_the_tokens_that_are_set_and_its_data_for_nothing(
    route: str, fields: dict[str, Any], tokens: int
) -> None:
    found = prompt(route, fields)
    assert found.media == tokens
    assert found.size < 400
    assert (found.chain, found.span) == ((), 0)


def test_what_stands_beside_the_data_is_counted() -> None:
    junk = {**IMAGE, "uuid": "x" * 500}
    assert prompt(CHAT, chat(TEXT, junk)).size - prompt(CHAT, chat(TEXT, IMAGE)).size == len("uuid") + 502
    assert prompt(CHAT, chat(TEXT, junk)).sure == prompt(CHAT, chat(TEXT, IMAGE)).sure


@pytest.mark.parametrize(
    ("part", "setting"),
    [
        pytest.param(IMAGE, "imageTokens", id="an image"),
        pytest.param(AUDIO, "audioTokens", id="audio"),
        pytest.param(VIDEO, "videoTokens", id="a video"),
    ],
)
def test_where_nothing_is_set_it_is_refused_and_the_setting_named(part: dict[str, Any], setting: str) -> None:
    told = read(CHAT, chat(TEXT, part), MediaCost())
    assert isinstance(told, Refusal)
    assert (told.status, told.code, told.param) == (
        400,
        Code.NOT_SUPPORTED_UNDER_QUOTA,
        "messages[0].content[1].type",
    )
    assert f"spec.model.media.{setting}" in told.message


@pytest.mark.parametrize("kind", ["file", "input_file", "image_embeds", "audio_embeds", "prompt_embeds", "image_pil"])
def test_what_cannot_be_priced_is_refused_whatever_is_set(kind: str) -> None:
    told = read(CHAT, chat(TEXT, {"type": kind, kind: "x"}))
    assert isinstance(told, Refusal)
    assert (told.code, told.param) == (Code.NOT_SUPPORTED_UNDER_QUOTA, "messages[0].content[1].type")
