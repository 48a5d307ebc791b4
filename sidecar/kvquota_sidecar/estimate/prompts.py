"""The prompts of a body: how many bytes of each the tokenizer will read, and what they have in common with others.

Decides the size, the density and the chain of each prompt. Pure, and linear in the length of the body.

Invariants:

1. What may reach the prompt is counted: messages, tools, and what some chat templates render and others ignore
   (`documents`, `chat_template_kwargs`, unknown fields of messages). A schema for the answer is none of it.
2. Tokens are only weighed against what surely reaches the prompt, so what an engine ignores cannot thin a prompt out.
3. A chain begins with every field that is not known to leave the prompt alone, so where two chains agree the prompts
   agree. A prompt with images, audio or videos has none: a part of its bytes is no part of its tokens.

It does not know the tokenizer: that is `ratio`. It does not know either what an engine cuts off a long prompt
(`truncate_prompt_tokens`): a prompt is charged whole until `usage` says less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_api.quoting import quoted
from kvquota_sidecar.estimate.bodies import (
    ABSENT,
    Chat,
    Completion,
    Messages,
    Pooled,
    Responses,
    TemplateArguments,
    Tool,
)
from kvquota_sidecar.estimate.chain import CHUNK_BYTES, chain
from kvquota_sidecar.estimate.density import density
from kvquota_sidecar.estimate.scan import is_token_ids
from kvquota_sidecar.estimate.weighing import (
    PartCount,
    PromptError,
    Terms,
    Weight,
    decoded,
    each,
    elements,
    text_size,
    unsupported,
    within,
)
from kvquota_sidecar.records import LeafValue

TEMPLATE_SIZE: Final = 100  # bytes: begin, system and answer marks of a chat template are 10 to 40 tokens
INSTRUCTIONS_SIZE: Final = 300  # bytes: how to call tools, which templates say where there are any, is 60 to 150 tokens
MAX_PROMPTS: Final = 1024  # in one request: each is a sequence, and an engine runs at most some hundreds at once
_T = TypeVar("_T")
_NO_TOKENS: Final = Tokens(0)
Values = Mapping[str, Any]
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_TOOLS: Final = frozenset({"function", "custom"})
_HOLDS_OBJECTS: Final = re.compile(rb"\[[ \t\r\n]*\{")
_NOTHING: Final = frozenset({b"", b"null", b"[]"})
# Fields that change the answer, or who is asked for it, and never the prompt. All others begin its chain.
_LEAVE_PROMPTS_ALONE: Final = frozenset(
    {
        "bad_words", "best_of", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "length_penalty",
        "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens", "metadata", "min_p",
        "min_tokens", "n", "presence_penalty", "priority", "prompt_cache_key",
        "repetition_penalty", "request_id", "safety_identifier", "seed", "service_tier", "session_id",
        "skip_special_tokens", "stop", "stop_sequences", "stop_token_ids", "store", "stream", "stream_options",
        "temperature", "top_k", "top_logprobs", "top_p", "use_beam_search", "user",
    }
)  # fmt: skip
# These, and texts for the system, which are in the text of a chain.
_NOT_IN_SEED: Final = _LEAVE_PROMPTS_ALONE | {"system", "instructions"}


class PromptSize(LeafValue, frozen=True):
    """`size`: bytes that may reach the tokenizer, with an allowance for the chat template; `sure`: those that do.
    `tokens`: exact, where the client sent token ids; None where it sent text. `media`: tokens of images, audio and
    videos, beside the others. `density`: class of its text, see `density`. `chain`: hashes of its beginnings, see
    `chain`, over `span` bytes in all; empty where it is too short to share anything."""

    size: int
    sure: int
    tokens: Tokens | None = None
    media: Tokens = _NO_TOKENS
    density: int = 0
    chain: tuple[int, ...] = ()
    span: int = 0


def refuse_own_template(raw: msgspec.Raw) -> None:
    """`raw`: the arguments of the template, which every route may have. Raises PromptError."""
    arguments: dict[str, Any] | None = within("chat_template_kwargs", partial(decoded, raw, TemplateArguments))
    if arguments is not None and "chat_template" in arguments:
        raise unsupported("chat_template_kwargs.chat_template", "a template of one's own hides how long a prompt gets")


def chat_prompts(body: Chat, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """The one prompt of a chat. Raises PromptError."""
    weight = Weight(terms)
    if "chat_template_kwargs" in fields or "documents" in fields:
        weight.size += len(bytes(body.documents)) + len(bytes(body.chat_template_kwargs))
    before = b""
    if "tools" in fields or "functions" in fields:
        weight.add(_tools("tools", body.tools) + _instructions(body.functions))
        before = bytes(body.tools) + bytes(body.functions)
    _weigh_items(weight, fields, "messages", body.messages)
    return (_conversation(weight, fields, "messages", before, body.messages),)


def chats_prompts(body: Chat, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """The prompts of a batch of chats: a list of lists of messages. Raises PromptError."""
    prompts: list[PromptSize] = []
    parts = PartCount()

    def weigh(raw: msgspec.Raw) -> None:
        weight = Weight(terms, parts)
        weight.items(decoded(raw, list[dict[str, Any]]))
        weight.size += len(bytes(body.documents)) + len(bytes(body.chat_template_kwargs))
        prompts.append(_conversation(weight, fields, "messages", b"", raw))

    within("messages", lambda: each(weigh, several(elements(body.messages))))
    return tuple(prompts)


def message_prompts(body: Messages, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """The one prompt of Anthropic's messages. Raises PromptError."""
    weight = Weight(terms)
    weight.size += len(bytes(body.chat_template_kwargs))
    weight.add(_tools("tools", body.tools))
    if "system" in fields:
        system = field_value(fields, "system", body.system, str | list[dict[str, Any] | str] | None)
        within("system", partial(weight.content, system))
    _weigh_items(weight, fields, "messages", body.messages)
    return (_conversation(weight, fields, "messages", bytes(body.tools) + bytes(body.system), body.messages),)


def response_prompts(body: Responses, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """The one prompt of a response. Raises PromptError."""
    weight = Weight(terms)
    weight.size += len(bytes(body.chat_template_kwargs))
    instructions = body.instructions or ""
    weight.add(_tools("tools", body.tools))
    weight.text(instructions)
    if bytes(body.input).startswith(b'"'):
        weight.text(decoded(body.input, str))
    else:
        _weigh_items(weight, fields, "input", body.input)
    return (_conversation(weight, fields, "input", bytes(body.tools) + instructions.encode(), body.input),)


def completion_prompts(body: Completion, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """The prompts of a completion: a text, token ids, or a list of either. Raises PromptError."""
    return _texts(fields, "prompt", body.prompt, terms, body.suffix or "")


def pooled_prompts(body: Pooled, fields: Values, terms: Terms) -> tuple[PromptSize, ...]:
    """The prompts of an embedding: a text, token ids, a list of either, or a chat. Raises PromptError."""
    name, raw = ("input", body.input) if body.messages == ABSENT else ("messages", body.messages)
    if (body.input == ABSENT) is (body.messages == ABSENT):
        raise PromptError(
            "or `messages` must be there, and not both: send a text, token ids, or a list of either", name
        )
    if name == "input" and not _HOLDS_OBJECTS.match(raw):
        return _texts(fields, name, raw, terms)
    weight = Weight(terms)
    weight.size += len(bytes(body.chat_template_kwargs))
    _weigh_items(weight, fields, name, raw)
    return (_conversation(weight, fields, name, b"", raw),)


def _texts(fields: Values, name: str, raw: msgspec.Raw, terms: Terms, suffix: str = "") -> tuple[PromptSize, ...]:
    """The prompts that a field holds: a text, token ids, or a list of either."""

    def prompt(one: msgspec.Raw) -> PromptSize:
        text = bytes(one)
        if is_token_ids(text):
            return PromptSize(len(text), len(text), Tokens(text.count(b",") + 1 + text_size(suffix)))
        weight = Weight(terms)
        weight.text(decoded(one, str))
        weight.add(text_size(suffix))
        return _prompt(weight, fields, name, text)

    def prompts() -> list[PromptSize]:
        if bytes(raw).startswith(b'"') or is_token_ids(bytes(raw)):
            return [prompt(raw)]
        found: list[PromptSize] = []
        each(lambda one: found.append(prompt(one)), several(elements(raw)))
        return found

    return tuple(within(name, prompts))


def several(given: list[_T]) -> list[_T]:
    """The same list, of which each is a prompt. Raises PromptError where there are none or too many."""
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise PromptError(f"has {len(given)} prompts: send 1 to {MAX_PROMPTS}, split a longer list")
    return given


def field_value(fields: Values, name: str, raw: msgspec.Raw, kind: Any) -> Any:
    """The value of a field, of type `kind` unless it holds an object. Raises PromptError."""
    value = fields[name]
    if type(value) is dict or (type(value) is list and value and type(value[0]) is dict):
        return value
    return within(name, partial(decoded, raw, kind))


def _weigh_items(weight: Weight, fields: Values, name: str, raw: msgspec.Raw) -> None:
    items = fields[name]
    if type(items) is not list or not items or type(items[0]) is not dict:
        items = field_value(fields, name, raw, list[dict[str, Any]])
    try:
        weight.items(items)
    except PromptError as error:
        raise error.within(name) from error


def _tools(name: str, raw: msgspec.Raw) -> int:
    """Bytes of the tools. Those that the engine runs by itself would go on after the answer. Raises PromptError."""
    if raw == ABSENT:
        return 0
    listed: list[Tool] | None = within(name, partial(decoded, raw, list[Tool] | None))
    for place, tool in enumerate(listed or ()):
        if tool.type is not None and tool.type not in _TOOLS:
            raise unsupported(f"{name}[{place}].type", f"a tool of type {quoted(tool.type)} runs beside the answer")
    return _instructions(raw)


def _instructions(raw: msgspec.Raw) -> int:
    text = bytes(raw)
    return 0 if text in _NOTHING else len(text) + INSTRUCTIONS_SIZE


def _conversation(weight: Weight, fields: Values, name: str, before: bytes, raw: msgspec.Raw) -> PromptSize:
    """`before`: what stands before the messages `raw` in the prompt."""
    weight.size += TEMPLATE_SIZE
    weight.sure += TEMPLATE_SIZE
    return _prompt(weight, fields, name, before + bytes(raw) if before else bytes(raw))


def _prompt(weight: Weight, fields: Values, name: str, text: bytes) -> PromptSize:
    """`text`: what its chain runs over; of it the field `name`, and a text for the system, are not in the seed."""
    kind, span = density(weight.longest), len(text)
    if span < CHUNK_BYTES or weight.media or not weight.terms.shares:
        return PromptSize(weight.size, weight.sure, None, Tokens(weight.media), kind)
    return PromptSize(weight.size, weight.sure, None, _NO_TOKENS, kind, chain(_seed(fields, name), text), span)


def _seed(fields: Values, name: str) -> bytes:
    """All that may shape the prompt before its text. Tools are in both, as one that differs at its end may differ from
    the beginning of the prompt on."""
    return _ENCODER.encode({key: fields[key] for key in fields if key != name and key not in _NOT_IN_SEED})
