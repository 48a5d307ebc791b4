"""What is decoded of an engine's answer: the few fields that say something of tokens, and no others.

Pure. Not compiled: msgspec reads the types of these classes, which a compiled module does not keep (`hatch_build.py`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(msgspec.Struct):
    delta: Delta | list[Any] | str | float | bool | None = None
    text: Any = None
    finish_reason: Any = None


class Counts(msgspec.Struct):
    """The usage in the words of all APIs: chat and completions, Responses, Messages."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    prompt_tokens_details: Any = None
    input_tokens_details: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None


# What is no object says nothing, and hides nothing else.
Told = Counts | list[Any] | str | float | bool | None


class Carrier(msgspec.Struct):
    usage: Told = None


class Frame(Carrier):
    """The few fields of all dialects' frames that say something of tokens."""

    type: Any = None
    choices: list[Choice] | None = None
    message: Carrier | None = None
    response: Carrier | None = None
    error: Any = None


FRAMES: Final = msgspec.json.Decoder(Frame)
CARRIERS: Final = msgspec.json.Decoder(Carrier)
