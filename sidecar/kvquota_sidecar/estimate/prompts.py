"""How many bytes of a body the tokenizer will read.

Decides the size of each prompt. Pure, and linear in the length of the body.

Invariants:

1. Whatever a client can put into a message is counted: its text as UTF-8, everything else as it stands in the JSON.
2. What is not text (images, audio, stored items) is refused: its size in tokens does not follow from its bytes.

It does not know the tokenizer: that is `ratio`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.bodies import ABSENT, Chat, Completion, Item, Messages, Responses, TemplateArguments, Tool
from kvquota_sidecar.refusals import Code

TEMPLATE_SIZE: Final = 100  # bytes: begin, system and answer marks of a chat template are 10 to 40 tokens
MAX_PROMPTS: Final = 1024  # in one request: each is a sequence, and an engine runs at most some hundreds at once
_TEXTS: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "summary_text", "reasoning_text"}
)
_CALLS: Final = frozenset({"tool_use", "tool_result"})
_ITEMS: Final = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)
_TOOLS: Final = frozenset({"function", "custom"})
_IDS: Final = re.compile(rb"\[[0-9 \t\r\n,]+\]")


@dataclass(frozen=True, slots=True)
class PromptSize:
    """`size`: bytes that the tokenizer will read, with an allowance for the chat template. `tokens`: exact, where the
    client sent token ids; None where it sent text."""

    size: int
    tokens: Tokens | None = None


class PromptError(ValueError):
    """A body that cannot be taken: `code` and `param` of its refusal, and a sentence that says what to do."""

    def __init__(self, message: str, param: str, code: Code = Code.MALFORMED_REQUEST) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def chat_prompts(body: Chat) -> tuple[PromptSize, ...]:
    """The one prompt of a chat. Raises PromptError."""
    arguments = _typed(body.chat_template_kwargs, TemplateArguments | None, "chat_template_kwargs")
    if arguments is not None and arguments.chat_template != ABSENT:
        raise _unsupported("chat_template_kwargs.chat_template", "a template of one's own hides how long a prompt gets")
    _require_functions(body.tools)
    extra = (body.tools, body.functions, body.documents, body.chat_template_kwargs)
    return (_conversation(body.messages, "messages", extra),)


def message_prompts(body: Messages) -> tuple[PromptSize, ...]:
    """The one prompt of Anthropic's messages. Raises PromptError."""
    _require_functions(body.tools)
    system = _content_size(body.system, "system")
    conversation = _conversation(body.messages, "messages", (body.tools,))
    return (PromptSize(conversation.size + system),)


def response_prompts(body: Responses) -> tuple[PromptSize, ...]:
    """The one prompt of a response. Raises PromptError."""
    _require_functions(body.tools)
    extra = _content_size(body.instructions, "instructions") + len(bytes(body.tools))
    if bytes(body.input).startswith(b'"'):
        return (PromptSize(TEMPLATE_SIZE + _text_size(body.input, "input") + extra),)
    items = _typed(body.input, list[msgspec.Raw], "input")
    return (PromptSize(_conversation(items, "input", ()).size + extra),)


def completion_prompts(body: Completion) -> tuple[PromptSize, ...]:
    """The prompts of a completion: a text, token ids, or a list of either. Raises PromptError."""
    raw, suffix = bytes(body.prompt), _content_size(body.suffix, "suffix")
    if raw.startswith(b'"') or _IDS.fullmatch(raw):
        return (_one_prompt(body.prompt, suffix, "prompt"),)
    prompts = _typed(body.prompt, list[msgspec.Raw], "prompt")
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise PromptError(
            f"'prompt' has {len(prompts)} prompts: send 1 to {MAX_PROMPTS}, split a longer list", "prompt"
        )
    return tuple(_one_prompt(each, suffix, f"prompt[{place}]") for place, each in enumerate(prompts))


def _one_prompt(raw: msgspec.Raw, suffix: int, where: str) -> PromptSize:
    text = bytes(raw)
    if _IDS.fullmatch(text):
        return PromptSize(len(text), Tokens(text.count(b",") + 1 + suffix))
    return PromptSize(_text_size(raw, where) + suffix)


def _conversation(messages: Iterable[msgspec.Raw], where: str, extra: Iterable[msgspec.Raw]) -> PromptSize:
    told = sum(_item_size(each, f"{where}[{place}]") for place, each in enumerate(messages))
    return PromptSize(TEMPLATE_SIZE + told + sum(len(bytes(each)) for each in extra))


def _item_size(raw: msgspec.Raw, where: str) -> int:
    """A message, or an item beside messages; its JSON stands for the marks that a template puts around it."""
    item = _typed(raw, Item, where)
    if item.type is not None and item.type not in _ITEMS:
        raise _unsupported(f"{where}.type", f"{item.type!r} is not text, so its tokens cannot be counted")
    content = _content_size(item.content, f"{where}.content", nested=_CALLS)
    output = _content_size(item.output, f"{where}.output")
    return len(bytes(raw)) - len(bytes(item.content)) - len(bytes(item.output)) + content + output


def _content_size(raw: msgspec.Raw, where: str, nested: frozenset[str] = frozenset()) -> int:
    """A text, a list of parts, or nothing. `nested`: kinds of parts that have a content of their own."""
    text = bytes(raw)
    if text in {b"", b"null"}:
        return 0
    if text.startswith(b'"'):
        return _text_size(raw, where)
    parts = _typed(raw, list[msgspec.Raw], where)
    return sum(_part_size(part, f"{where}[{place}]", nested) for place, part in enumerate(parts))


def _part_size(raw: msgspec.Raw, where: str, nested: frozenset[str]) -> int:
    text = bytes(raw)
    if text.startswith(b'"'):
        return _text_size(raw, where)
    part = _typed(raw, Item, where)
    if part.type in nested:
        return len(text) - len(bytes(part.content)) + _content_size(part.content, f"{where}.content")
    if part.type not in _TEXTS:
        raise _unsupported(f"{where}.type", f"{part.type!r} is not text, so its tokens cannot be counted")
    if not bytes(part.text).startswith(b'"'):
        return len(text)
    return len(text) - len(bytes(part.text)) + _text_size(part.text, f"{where}.text")


def _text_size(raw: msgspec.Raw, where: str) -> int:
    text: str = _typed(raw, str, where)
    return len(text) if text.isascii() else len(text.encode())


def _require_functions(raw: msgspec.Raw) -> None:
    """Tools that the engine runs by itself would go on after the answer."""
    for place, tool in enumerate(_typed(raw, list[Tool] | None, "tools") or ()):
        if tool.type is not None and tool.type not in _TOOLS:
            raise _unsupported(f"tools[{place}].type", f"a tool of type {tool.type!r} runs beside the answer")


def _typed(raw: msgspec.Raw, kind: Any, where: str) -> Any:
    if raw == ABSENT:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        param = where + path.rstrip("`")
        raise PromptError(f"{param!r} is not what this route takes: {reason}. Correct it.", param) from error


def _unsupported(where: str, reason: str) -> PromptError:
    text = f"{where!r} is not supported under a quota: {reason}. Leave it out."
    return PromptError(text, where, Code.NOT_SUPPORTED_UNDER_QUOTA)
