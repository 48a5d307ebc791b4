"""What is decoded of an engine's answer: the few fields that say something of tokens, and no others.

Pure. Not compiled: msgspec reads the types of these classes, which a compiled module does not keep (`hatch_build.py`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

Odd = list[Any] | str | float | bool | None  # what is no object says nothing, and hides nothing else


class Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(msgspec.Struct):
    delta: Delta | Odd = None
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


Told = Counts | Odd


class Carrier(msgspec.Struct):
    usage: Told = None


class Response(Carrier):
    """Of Responses, within a frame or as a whole answer."""

    status: Any = None


class Ending(msgspec.Struct):
    """How Messages, or one choice of the others, came to its end; unset: it does not say."""

    stop_reason: Any = msgspec.UNSET
    finish_reason: Any = None


class Frame(Carrier):
    """The few fields of all dialects' frames that say something of tokens."""

    type: Any = None
    choices: list[Choice] | None = None
    message: Carrier | None = None
    response: Response | None = None
    error: Any = None
    delta: Ending | Odd = None


class Ended(msgspec.Struct):
    """How one choice of an answer came to its end."""

    finish_reason: str | None = None


class Usual(msgspec.Struct):
    """An answer that is one JSON object, as most are: of a chat or a completion. Those of other dialects do not fit."""

    usage: Counts
    choices: list[Ended] | None = None
    type: None = None
    status: None = None


class Plain(Response):
    """An answer that is one JSON object, of any dialect."""

    type: Any = None
    choices: list[Ending | Odd] | Ending | str | float | bool | None = None
    stop_reason: Any = msgspec.UNSET


FRAMES: Final = msgspec.json.Decoder(Frame)
USUALS: Final = msgspec.json.Decoder(Usual)
PLAINS: Final = msgspec.json.Decoder(Plain)
