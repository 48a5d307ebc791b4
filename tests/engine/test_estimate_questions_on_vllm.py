"""The questions to vLLM's tokenizer, asked of the real vLLM: it counts what it then finds in the prompt."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from kvquota_sidecar.estimate.questions import counted, questions
from kvquota_sidecar.estimate.shape import Shape, read_shape
from testengine.port import EngineUnderTest

pytestmark = pytest.mark.engine

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
USER = {"role": "user", "content": "What is a KV cache? Say it in five words, é and 日本."}
SYSTEM = {"role": "system", "content": "Be brief. " * 20}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d" * 40, "parameters": {"type": "object"}}}]
BODIES = [
    pytest.param(CHAT, {"messages": [SYSTEM, USER]}, id="a chat"),
    pytest.param(CHAT, {"messages": [USER], "tools": TOOLS, "tool_choice": "none"}, id="a chat with tools"),
    pytest.param(
        CHAT,
        {"messages": [USER, {"role": "assistant", "content": "It"}], "add_generation_prompt": False,
         "continue_final_message": True},
        id="a chat that goes on with its last message",
    ),
    pytest.param(CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x y z"}]}]}, id="parts"),
    pytest.param(COMPLETION, {"prompt": "Once upon a time"}, id="a prompt"),
    pytest.param(COMPLETION, {"prompt": "Once", "add_special_tokens": False}, id="a prompt without special tokens"),
    pytest.param(COMPLETION, {"prompt": ["Once upon", "a time"]}, id="several prompts"),
    pytest.param(MESSAGES, {"messages": [USER], "system": "Be brief."}, id="Anthropic's messages"),
    pytest.param(RESPONSES, {"input": "Once upon a time"}, id="a response to a text"),
    pytest.param(RESPONSES, {"input": [USER], "instructions": "Be brief."}, id="a response with instructions"),
]  # fmt: skip


def post(engine: EngineUnderTest, path: str, body: bytes) -> bytes:
    head = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(engine.base_url + path, body, head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        read: bytes = answer.read()
    return read


def used(route: str, answer: bytes) -> int:
    usage: dict[str, Any] = json.loads(answer)["usage"]
    if route == MESSAGES:
        return sum(usage.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_creation_", "cache_read_"))
    return int(usage["input_tokens" if route == RESPONSES else "prompt_tokens"])


@pytest.mark.parametrize(("route", "fields"), BODIES)
def test_what_it_counts_is_what_it_uses(vllm: EngineUnderTest, route: str, fields: dict[str, Any]) -> None:
    limit = "max_output_tokens" if route == RESPONSES else "max_tokens"
    body = json.dumps({"model": vllm.model, limit: 1, **fields}).encode()
    shape = read_shape(route, body, engine="vLLM")
    assert isinstance(shape, Shape), shape
    asked = [counted(post(vllm, each.path, each.body)) for each in questions("vLLM", route, body)]
    assert len(asked) == len(shape.prompts)
    assert None not in asked
    assert sum(each or 0 for each in asked) == used(route, post(vllm, route, body))
