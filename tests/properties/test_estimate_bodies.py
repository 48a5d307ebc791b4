"""Whatever a body holds, it gets a shape or a refusal, and what follows from a shape can be done."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import MediaCost
from kvquota_sidecar.estimate.chain import CHUNK_BYTES
from kvquota_sidecar.estimate.edit import edited
from kvquota_sidecar.estimate.questions import questions
from kvquota_sidecar.estimate.ratio import Ratios
from kvquota_sidecar.estimate.shape import ROUTES, Shape, read_shape
from kvquota_sidecar.refusals import Refusal

TEXT = st.text(alphabet='ab "\\{[é日', max_size=6) | st.just("long text " * 80)
KINDS = st.sampled_from(
    ["text", "image_url", "tool_use", "tool_result", "thinking", "message", "function_call", "file"]
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "content", "x"]), inner),
    max_leaves=4,
)
PART = TEXT | st.fixed_dictionaries(
    {"type": KINDS}, optional={"text": TEXT | ANY, "content": TEXT | ANY, "image_url": ANY, "x": ANY}
)
CONTENT = TEXT | st.lists(PART | ANY, max_size=3) | ANY
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("user") | ANY, "content": CONTENT}, optional={"type": KINDS | ANY, "output": CONTENT, "name": ANY}
)
CHAT = st.lists(MESSAGE, max_size=3)
IDS = st.lists(st.integers(0, 9), min_size=1, max_size=4)
PROMPTS = TEXT | IDS | st.lists(TEXT | IDS, max_size=3) | ANY
DOCUMENTS = TEXT | st.lists(TEXT | st.fixed_dictionaries({"content": CONTENT}), max_size=3) | ANY
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "messages": CHAT | st.lists(CHAT, max_size=2) | ANY,
    "prompt": PROMPTS,
    "input": PROMPTS | CHAT,
    "query": DOCUMENTS,
    "documents": DOCUMENTS,
    "text_1": DOCUMENTS,
    "text_2": DOCUMENTS,
    "system": CONTENT,
    "instructions": TEXT | ANY,
    "tools": st.lists(st.fixed_dictionaries({"type": st.sampled_from(["function", "web_search"])}), max_size=2) | ANY,
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["think", "chat_template"]), ANY) | ANY,
    "reasoning_effort": st.sampled_from(["none", "low", None]),
    "max_tokens": st.integers(0, 9) | ANY,
    "max_completion_tokens": st.integers(0, 9) | ANY,
    "n": st.integers(1, 3) | ANY,
    "stream": st.booleans() | ANY,
    "cache_salt": TEXT | ANY,
    "suffix": TEXT | ANY,
    "priority": ANY,
}
NEEDED = {
    "/v1/completions": ("prompt",), "/v1/messages": ("messages", "max_tokens"), "/v1/responses": ("input",),
    "/rerank": ("query", "documents"), "/v1/rerank": ("query", "documents"), "/v2/rerank": ("query", "documents"),
    "/score": ("text_1", "text_2"), "/v1/score": ("text_1", "text_2"), "/v1/embeddings": ("input",),
    "/pooling": ("input",), "/classify": ("messages",),
}  # fmt: skip
MEDIA = MediaCost(image_tokens=Tokens(100))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    route = draw(st.sampled_from(sorted(ROUTES)))
    names = {*NEEDED.get(route, ("messages",)), *draw(st.sets(st.sampled_from([*FIELDS]), max_size=3))}
    body = {name: draw(FIELDS[name]) for name in sorted(names)}
    return route, json.dumps(body, ensure_ascii=draw(st.booleans())).encode()


@given(bodies(), st.sampled_from(["vLLM", "SGLang", "LlamaCpp"]))
def test_a_body_gets_a_shape_or_a_refusal(given_body: tuple[str, bytes], engine: Any) -> None:
    route, body = given_body
    read = read_shape(route, body, MEDIA, engine)
    if isinstance(read, Refusal):
        assert (read.status, read.retryable) == (400, False)
        assert read.param
        return
    ratios = Ratios()
    assert read.fields == tuple(json.loads(body))
    assert read.prompts
    for prompt in read.prompts:
        assert 0 <= prompt.sure <= prompt.size
        assert len(prompt.chain) == prompt.span // CHUNK_BYTES
        assert 1 <= ratios.estimate("a/t", prompt) <= ratios.most(prompt)
        assert 1 <= ratios.worst(prompt) <= ratios.most(prompt)
    ratios.learn("a/t", read.prompts, Tokens(50))
    asked = questions(engine, route, body)
    assert len(asked) in {0, sum(each.tokens is None for each in read.prompts)}
    for question in asked:
        json.loads(question.body)


@given(bodies())
def test_what_the_engine_gets_has_the_shape_that_was_read(given_body: tuple[str, bytes]) -> None:
    route, body = given_body
    read = read_shape(route, body, MEDIA)
    if not isinstance(read, Shape):
        return
    sent = edited(body, read.fields, {"priority": None, "cache_salt": b'"s"', "stream_options": b"null"})
    again = read_shape(route, sent, MEDIA)
    assert isinstance(again, Shape)
    assert [(each.size, each.sure, each.tokens, each.media) for each in again.prompts] == [
        (each.size, each.sure, each.tokens, each.media) for each in read.prompts
    ]
    assert (again.copies, again.output_limit, again.stream) == (read.copies, read.output_limit, read.stream)
    assert (again.cache_salt, again.priority) == ("s", b"")
