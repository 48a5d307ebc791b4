"""How many bytes of a body the tokenizer will read.

Decides the size of each prompt. Pure, and linear in the length of the body.

Invariants:

1. What may reach the prompt is counted: messages, tools, and what some chat templates render and others ignore
   (`documents`, `chat_template_kwargs`, unknown fields of messages). A schema for the answer is none of it.
2. Tokens are only weighed against what surely reaches the prompt, so what an engine ignores cannot thin a prompt out.

It does not know the tokenizer: that is `ratio`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.bodies import ABSENT, Chat, Completion, Messages, Responses, TemplateArguments, Tool
from kvquota_sidecar.estimate.scan import TOKEN_IDS
from kvquota_sidecar.estimate.weighing import PromptError, Weight, decoded, elements, text_size, unsupported, within

TEMPLATE_SIZE: Final = 100  # bytes: begin, system and answer marks of a chat template are 10 to 40 tokens
INSTRUCTIONS_SIZE: Final = 300  # bytes: how to call tools, which templates say where there are any, is 60 to 150 tokens
MAX_PROMPTS: Final = 1024  # in one request: each is a sequence, and an engine runs at most some hundreds at once
_TOOLS: Final = frozenset({"function", "custom"})
_NOTHING: Final = frozenset({b"", b"null", b"[]"})
_ARGUMENTS: Final = msgspec.json.Decoder(TemplateArguments | None)
_LISTED: Final = msgspec.json.Decoder(list[Tool] | None)


@dataclass(frozen=True, slots=True)
class PromptSize:
    """`size`: bytes that may reach the tokenizer, with an allowance for the chat template; `sure`: those that do.
    `tokens`: exact, where the client sent token ids; None where it sent text."""

    size: int
    sure: int
    tokens: Tokens | None = None


def chat_prompts(body: Chat) -> tuple[PromptSize, ...]:
    """The one prompt of a chat. Raises PromptError."""
    _refuse_own_template(body.chat_template_kwargs)
    weight = _with_tools(body.tools, body.functions)
    within("messages", weight.items, body.messages)
    weight.size += len(bytes(body.documents)) + len(bytes(body.chat_template_kwargs))
    return (_conversation(weight),)


def message_prompts(body: Messages) -> tuple[PromptSize, ...]:
    """The one prompt of Anthropic's messages. Raises PromptError."""
    weight = _with_tools(body.tools)
    within("system", weight.content, body.system)
    within("messages", weight.items, body.messages)
    return (_conversation(weight),)


def response_prompts(body: Responses) -> tuple[PromptSize, ...]:
    """The one prompt of a response. Raises PromptError."""
    weight = _with_tools(body.tools)
    within("instructions", weight.content, body.instructions)
    if bytes(body.input).startswith(b'"'):
        weight.add(text_size(body.input))
    else:
        within("input", weight.items, body.input)
    return (_conversation(weight),)


def completion_prompts(body: Completion) -> tuple[PromptSize, ...]:
    """The prompts of a completion: a text, token ids, or a list of either. Raises PromptError."""
    suffix = Weight()
    within("suffix", suffix.content, body.suffix)
    ids = _token_ids(body.prompt, suffix.size)
    if ids is not None or bytes(body.prompt).startswith(b'"'):
        return (ids or _text("prompt", body.prompt, suffix.size),)
    prompts = within("prompt", elements, body.prompt)
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise PromptError(f"has {len(prompts)} prompts: send 1 to {MAX_PROMPTS}, split a longer list", "prompt")
    return tuple(
        _token_ids(each, suffix.size) or _text(f"prompt[{place}]", each, suffix.size)
        for place, each in enumerate(prompts)
    )


def _token_ids(raw: msgspec.Raw, suffix: int) -> PromptSize | None:
    if not TOKEN_IDS.fullmatch(raw):
        return None
    text = bytes(raw)
    return PromptSize(len(text), len(text), Tokens(text.count(b",") + 1 + suffix))


def _text(param: str, raw: msgspec.Raw, suffix: int) -> PromptSize:
    size = within(param, text_size, raw) + suffix
    return PromptSize(size, size)


def _refuse_own_template(raw: msgspec.Raw) -> None:
    if raw == ABSENT:
        return
    arguments = within("chat_template_kwargs", partial(decoded, _ARGUMENTS), raw)
    if arguments is not None and arguments.chat_template != ABSENT:
        raise unsupported("chat_template_kwargs.chat_template", "a template of one's own hides how long a prompt gets")


def _with_tools(tools: msgspec.Raw, functions: msgspec.Raw = ABSENT) -> Weight:
    """Tools that the engine runs by itself would go on after the answer. Raises PromptError."""
    listed = None if tools == ABSENT else within("tools", partial(decoded, _LISTED), tools)
    for place, tool in enumerate(listed or ()):
        if tool.type is not None and tool.type not in _TOOLS:
            raise unsupported(f"tools[{place}].type", f"a tool of type {tool.type!r} runs beside the answer")
    given = [bytes(each) for each in (tools, functions) if bytes(each) not in _NOTHING]
    weight = Weight()
    weight.add(sum(map(len, given)) + INSTRUCTIONS_SIZE * bool(given))
    return weight


def _conversation(weight: Weight) -> PromptSize:
    weight.add(TEMPLATE_SIZE)
    return PromptSize(weight.size, min(weight.size, weight.sure))
