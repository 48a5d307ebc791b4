"""The bodies of the accounted routes, as far as they decide what a request takes.

Decides which fields are read and which values they may have. Pure. Every other field is left to the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

ABSENT: Final = msgspec.Raw()
# 2^31 - 1: the engines keep lengths in 32 bits; what is larger fits no pool, and the engine would refuse it.
Length = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What the routes share. `model` may be missing: an engine that serves one takes that."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT


class Chat(Body, frozen=True, kw_only=True):
    """POST /v1/chat/completions"""

    messages: msgspec.Raw
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    n: Count | None = None
    best_of: Count | None = None
    tools: msgspec.Raw = ABSENT
    functions: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT


class Completion(Body, frozen=True, kw_only=True):
    """POST /v1/completions"""

    prompt: msgspec.Raw
    suffix: str | None = None
    max_tokens: Length | msgspec.UnsetType | None = msgspec.UNSET
    n: Count | None = None
    best_of: Count | None = None


class Messages(Body, frozen=True, kw_only=True):
    """POST /v1/messages"""

    messages: msgspec.Raw
    max_tokens: Length
    system: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT


class Responses(Body, frozen=True, kw_only=True):
    """POST /v1/responses"""

    input: msgspec.Raw
    instructions: str | None = None
    max_output_tokens: Length | None = None
    tools: msgspec.Raw = ABSENT


class Pooled(Body, frozen=True, kw_only=True):
    """POST /v1/embeddings, /pooling and /classify: an `input`, or the `messages` of a chat."""

    input: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT


class Rerank(Body, frozen=True, kw_only=True):
    """POST /rerank"""

    query: msgspec.Raw
    documents: msgspec.Raw
    instruction: str | None = None


class Score(Body, frozen=True, kw_only=True):
    """POST /score: two sides, under one of four pairs of names."""

    text_1: msgspec.Raw = ABSENT
    text_2: msgspec.Raw = ABSENT
    data_1: msgspec.Raw = ABSENT
    data_2: msgspec.Raw = ABSENT
    queries: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    items: msgspec.Raw = ABSENT
    instruction: str | None = None


class Tool(msgspec.Struct, frozen=True):
    type: str | None = None


# The template's own arguments may hold anything but a template.
TemplateArguments = dict[str, Any] | None
