"""How many tokens an answer shows: read from what passes by, never asked for.

Decides what a stream's frames and a JSON answer say of tokens, and which bytes may be passed on at once. Pure.

Invariants:

1. What goes out is what came in, byte for byte, except a frame that was asked for here and holds nothing but `usage`.
2. Bytes go out in whole frames, so an answer can be ended after any of them with one more frame. A frame over
   MAX_FRAME_BYTES goes out in pieces and is not counted.
3. `produced` never falls. `usage` is the engine's own count and beats it.

It does not know the tokens of a prompt unless `usage` says so. A frame counts as one token for each of its choices that
holds text: an engine that puts several tokens into one frame is counted right only where it sends `usage` along.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec

from kvquota_api.amounts import Tokens

Dialect = Literal["OpenAI", "Responses", "Anthropic"]

MAX_FRAME_BYTES: Final = 256 * 1024  # a frame of one token with 20 log-probabilities is under 8 KiB
MAX_JSON_BYTES: Final = 4 * 1024 * 1024  # an answer of 128 sequences of 8,000 tokens; longer ones settle by estimate
_FRAME_END: Final = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine counted: tokens of the prompt, and of all outputs together. None: it did not say."""

    prompt: Tokens | None
    output: Tokens | None


class _Choice(msgspec.Struct):
    delta: Any = None
    text: Any = None


class _Carrier(msgspec.Struct):
    usage: Any = None


class _Frame(msgspec.Struct):
    """The few fields of all dialects' frames that say something of tokens."""

    type: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    message: _Carrier | None = None
    response: _Carrier | None = None


_T = TypeVar("_T")
_FRAMES: Final = msgspec.json.Decoder(_Frame)
_CARRIERS: Final = msgspec.json.Decoder(_Carrier)
_DELTAS: Final = frozenset({"content_block_delta", "response.output_text.delta", "response.reasoning_text.delta"})
_SPOKEN: Final = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call")


class StreamMeter:
    """The tokens of one stream of server-sent events.

    `withholds_usage`: the frame that holds only `usage` was asked for by this program, so the client must not see it.
    """

    def __init__(self, *, withholds_usage: bool) -> None:
        self._withholds_usage = withholds_usage
        self._held = b""
        self._oversized = False
        self.produced = Tokens(0)
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        """Take what the engine sent; gives what may be passed on now."""
        data = self._held + data if self._held else data
        end = _end_of_frames(data)
        if end == 0:
            return self._hold(data)
        self._held = data[end:]
        whole = data if end == len(data) else data[:end]
        if self._oversized:
            self._oversized = False
            return whole
        return self._read(whole)

    def rest(self) -> bytes:
        """What is still held back when the engine's answer has ended."""
        held, self._held = self._held, b""
        return held

    def _hold(self, data: bytes) -> bytes:
        if len(data) <= MAX_FRAME_BYTES:
            self._held = data
            return b""
        self._held, self._oversized = b"", True
        return data

    def _read(self, whole: bytes) -> bytes:
        if not self._withholds_usage:
            for frame in _frames(whole):
                self._count(frame)
            return whole
        kept = [frame for frame in _frames(whole) if not self._count(frame)]
        return b"".join(kept)

    def _count(self, frame: bytes) -> bool:
        """Count one frame; whether it holds nothing but the usage."""
        decoded = _decoded(_FRAMES, _payload(frame))
        if decoded is None:
            return False
        self.produced = Tokens(self.produced + _tokens_of(decoded))
        usage = _usage_of(decoded)
        if usage is None:
            return False
        self.usage = _merged(self.usage, usage)
        self.produced = Tokens(max(self.produced, usage.output or 0))
        return decoded.choices == []


def _end_of_frames(data: bytes) -> int:
    """Where the last whole frame ends; 0 where there is none."""
    return max((at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := data.rfind(mark)) >= 0), default=0)


def _frames(whole: bytes) -> list[bytes]:
    """The frames, each with the empty line that ends it."""
    if b"\r" in whole:
        return [frame for frame in _FRAME_END.split(whole) if frame]
    if whole.find(b"\n\n") == len(whole) - 2:  # the usual case: one
        return [whole]
    return [frame + b"\n\n" for frame in whole.split(b"\n\n")[:-1]]


def usage_of_json(body: bytes) -> Usage | None:
    """The usage of an answer that is one JSON object; None where it has none or cannot be read."""
    decoded = _decoded(_CARRIERS, body)
    return None if decoded is None else _usage(decoded.usage)


def _payload(frame: bytes) -> bytes:
    """The data of one frame; of a frame with several data lines they are joined, as the format says."""
    if frame.startswith(b"data:") and frame.find(b"\n") == len(frame) - 2:
        return frame[5:]
    lines = frame.splitlines()
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))


def _decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T | None:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _tokens_of(frame: _Frame) -> int:
    if frame.choices is not None:
        return sum(map(_speaks, frame.choices))
    return int(frame.type in _DELTAS) if isinstance(frame.type, str) else 0


def _speaks(choice: _Choice) -> bool:
    if isinstance(choice.delta, dict):
        return any(choice.delta.get(name) for name in _SPOKEN)
    return bool(choice.text)


def _usage_of(frame: _Frame) -> Usage | None:
    for carrier in (frame.response, frame.message):
        if carrier is not None and carrier.usage is not None:
            return _usage(carrier.usage)
    return _usage(frame.usage)


def _usage(found: Any) -> Usage | None:
    if not isinstance(found, dict):
        return None
    prompt = _count_in(found, "prompt_tokens", "input_tokens")
    output = _count_in(found, "completion_tokens", "output_tokens")
    return None if prompt is None and output is None else Usage(prompt, output)


def _count_in(found: dict[str, Any], *names: str) -> Tokens | None:
    counts = [found[name] for name in names if type(found.get(name)) is int and found[name] >= 0]
    return Tokens(counts[0]) if counts else None


def _merged(old: Usage | None, new: Usage) -> Usage:
    if old is None:
        return new
    return Usage(
        prompt=old.prompt if new.prompt is None else new.prompt,
        output=old.output if new.output is None else new.output,
    )
