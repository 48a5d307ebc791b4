"""What the engine's own tokenizer is asked, and what it answers.

Decides the requests that have the prompts of a body counted. Pure.

Invariants:

1. A question holds all that shapes the prompt. Where an engine has no route for that, or would count something else
   (tools in another form), there is none.
2. At most MAX_QUESTIONS for one body, and none for one of more than MAX_BYTES.

Sources: vLLM 0.32, `/tokenize` (TokenizeChatRequest, TokenizeCompletionRequest) and `/v1/messages/count_tokens`;
SGLang, `/tokenize`, which takes prompts only (from its documentation). Others have none, or none that is alike.

It does not know whether the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.scan import is_token_ids
from kvquota_sidecar.estimate.shape import Engine

MAX_QUESTIONS: Final = (
    8  # prompts of one body: more are not counted in time, as the engine tokenizes one after the other
)
MAX_BYTES: Final = 1_048_576  # of a body: no engine tokenizes 250,000 tokens in 50 ms, and to ask would take 3 ms here
_CHAT: Final = (
    "model", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
)  # fmt: skip
_COMPLETION: Final = ("model", "add_special_tokens")
# Fields of a chat that vLLM hands to its template as arguments.
_ARGUMENTS: Final = ("documents", "reasoning_effort")
_TOKENIZE: Final = "/tokenize"
_COUNT_TOKENS: Final = "/v1/messages/count_tokens"
_NULL: Final = b"null"
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()

Fields = Mapping[str, msgspec.Raw]


class Question(msgspec.Struct, frozen=True):
    """A POST to the engine's `path`."""

    path: str
    body: bytes


class _Count(msgspec.Struct):
    count: int | None = None
    input_tokens: int | None = None


_COUNTS: Final = msgspec.json.Decoder(_Count)


def is_askable(engine: Engine, route: str) -> bool:
    """Whether an engine has an answer for any body of a route."""
    return (engine, route) in _MAKERS


def questions(engine: Engine, route: str, body: bytes) -> tuple[Question, ...]:
    """One for each text prompt of a body that `read_shape` has accepted, in their order; none where nobody can say."""
    make = _MAKERS.get((engine, route)) if len(body) <= MAX_BYTES else None
    made = () if make is None else make(body, _FIELDS.decode(body))
    return made if len(made) <= MAX_QUESTIONS else ()


def counted(answer: bytes) -> Tokens | None:
    """The tokens that an answer names; None where it names none."""
    try:
        found = _COUNTS.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    count = found.count if found.input_tokens is None else found.input_tokens
    return None if count is None or count < 0 else Tokens(count)


def _of_chat(_: bytes, fields: Fields) -> tuple[Question, ...]:
    return (_chat(fields, fields["messages"]),)


def _of_chats(_: bytes, fields: Fields) -> tuple[Question, ...]:
    return tuple(_chat(fields, each) for each in _LIST.decode(fields["messages"]))


def _of_messages(body: bytes, _: Fields) -> tuple[Question, ...]:
    return (Question(_COUNT_TOKENS, body),)


def _of_response(_: bytes, fields: Fields) -> tuple[Question, ...]:
    """A response is a chat to the engine; only tools stand in another form, and items that are no messages."""
    given = msgspec.json.decode(fields["input"])
    messages = [{"role": "user", "content": given}] if type(given) is str else given
    if bytes(fields.get("tools", _NULL)) not in {_NULL, b"[]"} or any(
        each.get("type", "message") != "message" for each in messages
    ):
        return ()
    instructions = msgspec.json.decode(fields["instructions"]) if "instructions" in fields else None
    system = [{"role": "system", "content": instructions}] if instructions else []
    return (_chat({**fields, "tools": msgspec.Raw(_NULL)}, [*system, *messages]),)


def _of_prompts(name: str) -> Callable[[bytes, Fields], tuple[Question, ...]]:
    def make(_: bytes, fields: Fields) -> tuple[Question, ...]:
        if name not in fields:  # a pooled chat
            return ()
        raw = bytes(fields[name])
        given = [fields[name]] if raw.startswith(b'"') else [] if is_token_ids(bytes(raw)) else _LIST.decode(raw)
        return tuple(_completion(fields, each) for each in given if bytes(each).startswith(b'"'))

    return make


def _chat(fields: Fields, messages: Any) -> Question:
    arguments: dict[str, Any] = {name: fields[name] for name in _ARGUMENTS if name in fields}
    effort = bytes(fields.get("reasoning_effort", _NULL))
    if effort != _NULL:
        arguments["enable_thinking"] = effort != b'"none"'
    if "chat_template_kwargs" in fields:
        arguments |= msgspec.json.decode(fields["chat_template_kwargs"]) or {}
    asked = {name: fields[name] for name in _CHAT if name in fields}
    return Question(_TOKENIZE, _ENCODER.encode({**asked, "messages": messages, "chat_template_kwargs": arguments}))


def _completion(fields: Fields, prompt: msgspec.Raw) -> Question:
    asked = {name: fields[name] for name in _COMPLETION if name in fields}
    return Question(_TOKENIZE, _ENCODER.encode({**asked, "prompt": prompt}))


_Maker = Callable[[bytes, Fields], tuple[Question, ...]]
_MAKERS: Final[Mapping[tuple[str, str], _Maker]] = MappingProxyType(
    {
        ("vLLM", "/v1/chat/completions"): _of_chat,
        ("vLLM", "/v1/chat/completions/batch"): _of_chats,
        ("vLLM", "/v1/messages"): _of_messages,
        ("vLLM", "/v1/responses"): _of_response,
        ("vLLM", "/v1/completions"): _of_prompts("prompt"),
        ("vLLM", "/v1/embeddings"): _of_prompts("input"),
        ("vLLM", "/pooling"): _of_prompts("input"),
        ("vLLM", "/classify"): _of_prompts("input"),
        ("SGLang", "/v1/completions"): _of_prompts("prompt"),
        ("SGLang", "/v1/embeddings"): _of_prompts("input"),
    }
)
