"""The unchanged clients of OpenAI and Anthropic: how each is called, what it raises, and what an engine answers it."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai

from sidecar_rig import KEYS, SEARCH

RETRIES = 2
Answers = list[httpx2.Response]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `limit` is its output's, in tokens; `body` and `headers` come on top."""

    limit: int = 32
    text: str = "hello"
    stream: bool = False
    key: str = KEYS[SEARCH]
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def extra(self) -> dict[str, Any]:
        return {"stream": self.stream, "extra_body": self.body, "extra_headers": self.headers}


@dataclass(frozen=True, slots=True)
class Sdk:
    """A client and the API that it calls.

    `errors`: what it raises for a status; any other is a `base`. `shown`: code and type of an error, where its users
    find them. Of an engine: `good`, a whole answer; `token`, an event of one token; `mark`, what a whole stream ends
    with, which the client shows where it is an event (`shows_mark`).
    """

    path: str
    ask: Callable[[str, Call, int, httpx2.AsyncClient], Any]
    base: type[Exception]
    errors: Mapping[int, type[Exception]]
    shown: Callable[[Any], tuple[str | None, str | None]]
    good: Mapping[str, Any]
    token: bytes
    mark: bytes = b"data: [DONE]\n\n"

    @property
    def is_anthropic(self) -> bool:
        return self.base is anthropic.APIStatusError

    @property
    def shows_mark(self) -> bool:
        return b"[DONE]" not in self.mark


def _openai(url: str, call: Call, retries: int, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=call.key, max_retries=retries, http_client=http)


def _chat(url: str, call: Call, retries: int, http: httpx2.AsyncClient) -> Any:
    messages: Any = [{"role": "user", "content": call.text}]
    create: Any = _openai(url, call, retries, http).chat.completions.create
    return create(model="tiny", messages=messages, max_tokens=call.limit, **call.extra)


def _completion(url: str, call: Call, retries: int, http: httpx2.AsyncClient) -> Any:
    create: Any = _openai(url, call, retries, http).completions.create
    return create(model="tiny", prompt=call.text, max_tokens=call.limit, **call.extra)


def _responses(url: str, call: Call, retries: int, http: httpx2.AsyncClient) -> Any:
    create: Any = _openai(url, call, retries, http).responses.create
    return create(model="tiny", input=call.text, max_output_tokens=call.limit, **call.extra)


def _messages(url: str, call: Call, retries: int, http: httpx2.AsyncClient) -> Any:
    client = anthropic.AsyncAnthropic(base_url=url, api_key=call.key, max_retries=retries, http_client=http)
    messages: Any = [{"role": "user", "content": call.text}]
    create: Any = client.messages.create
    return create(model="tiny", messages=messages, max_tokens=call.limit, **call.extra)


OPENAI_ERRORS: Mapping[int, type[Exception]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    502: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}
ANTHROPIC_ERRORS: Mapping[int, type[Exception]] = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    404: anthropic.NotFoundError,
    429: anthropic.RateLimitError,
    502: anthropic.InternalServerError,
}


def _of_openai(error: openai.APIError) -> tuple[str | None, str | None]:
    return error.code, error.type


def _of_anthropic(error: anthropic.APIStatusError) -> tuple[str | None, str | None]:
    body: Any = error.body
    return body["error"]["code"], error.type


def _event(name: str, **more: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **more})}\n\n".encode()


CHAT = Sdk(
    "/v1/chat/completions",
    _chat,
    openai.APIStatusError,
    OPENAI_ERRORS,
    _of_openai,
    {"id": "c", "object": "chat.completion", "created": 1, "model": "tiny", "choices": []},
    b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
)
COMPLETION = Sdk(
    "/v1/completions",
    _completion,
    openai.APIStatusError,
    OPENAI_ERRORS,
    _of_openai,
    {"id": "t", "object": "text_completion", "created": 1, "model": "tiny", "choices": []},
    b'data: {"choices":[{"index":0,"text":"x"}]}\n\n',
)
RESPONSES = Sdk(
    "/v1/responses",
    _responses,
    openai.APIStatusError,
    OPENAI_ERRORS,
    _of_openai,
    {"id": "r", "object": "response", "created_at": 1, "model": "tiny", "output": []},
    _event("response.output_text.delta", delta="x"),
    _event("response.completed", response={"id": "r"}),
)
MESSAGES = Sdk(
    "/v1/messages",
    _messages,
    anthropic.APIStatusError,
    ANTHROPIC_ERRORS,
    _of_anthropic,
    {"id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": []},
    _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}),
    _event("message_stop"),
)
SDKS = {
    "chat of OpenAI": CHAT,
    "completions of OpenAI": COMPLETION,
    "responses of OpenAI": RESPONSES,
    "messages of Anthropic": MESSAGES,
}


@asynccontextmanager
async def seen_by(**more: Any) -> AsyncIterator[tuple[httpx2.AsyncClient, Answers]]:
    """The client's own connections, and the answers that came over them."""
    answers: Answers = []

    async def keep(response: httpx2.Response) -> None:
        answers.append(response)

    async with httpx2.AsyncClient(event_hooks={"response": [keep]}, timeout=20.0, **more) as http:
        yield http, answers
