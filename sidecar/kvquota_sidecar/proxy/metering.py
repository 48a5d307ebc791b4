"""How many tokens an answer shows: read from what passes by, never asked for.

Decides what a stream's frames and a JSON answer say of tokens, and which bytes may be passed on at once. Pure.

Invariants:

1. What goes out is what came in, byte for byte, except a frame that was asked for here and holds nothing but `usage`,
   and a mark of a good end where the engine has given the answer up: nobody may take a part for the whole.
2. Bytes go out in whole frames, so an answer can be ended after any of them with one more frame. A frame over
   MAX_FRAME_BYTES goes out in pieces and is not counted, and in the middle of it nothing can be added.
3. `usage` is the engine's own count and beats what the frames show; downwards only what `tokens_per_frame` has added.
4. A stream has ended when its mark or an error has come; it has failed when the engine says so in a frame. It was given
   up where it failed and no error tells its client so: by its reason to finish, its status, or none where there is one.
5. No frame is too empty to count: engines send one without text for a token that has none, or whose text is held back.
   Only what a stream begins with, a role and nothing else, is no token; nor is what an output ends with where the
   engine counts each alone (`usage_scope`) and has said all before.

It does not know the tokens of a prompt unless `usage` says so, nor those of an output that has no frame. A frame counts
as one token for each of its choices, or as many as earlier streams had (`pace`); `usage` puts that right at the end.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.proxy.frames import FRAMES, PLAINS, USUALS, Choice, Counts, Delta, Ending, Frame, Told
from kvquota_sidecar.proxy.likeness import Likeness
from kvquota_sidecar.proxy.usage_scope import Scope
from kvquota_sidecar.records import LeafValue

Dialect = Literal["OpenAI", "Responses", "Anthropic"]

MAX_FRAME_BYTES: Final = 256 * 1024  # a frame of one token with 20 log-probabilities is under 8 KiB
MAX_JSON_BYTES: Final = 4 * 1024 * 1024  # an answer of 128 sequences of 8,000 tokens; longer ones settle by estimate
MAX_COUNT: Final = 2**31 - 1  # tokens: engines keep lengths in 32 bits, so a larger number says nothing
_RETURN: Final = 0x0D
_LINE_FEED: Final = 0x0A
_FRAME_END: Final = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")


class Usage(LeafValue, frozen=True):
    """What the engine counted: tokens of the prompt, of all outputs together, and of the prompt those that its prefix
    cache held already. None: it did not say.
    """

    prompt: Tokens | None
    output: Tokens | None
    cached: Tokens | None = None


class PlainAnswer(LeafValue, frozen=True):
    """What an answer that is one JSON object says. `is_given_up`: it is not whole, and no error says so."""

    usage: Usage | None = None
    is_given_up: bool = False


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_WHOLE: Final = msgspec.json.Decoder(msgspec.Raw)
_DONE: Final = b"[DONE]"
_ENDS: Final = ("message_stop", "response.completed", "response.incomplete")
_FAILURES: Final = ("error", "response.failed")
_BAD_REASONS: Final = ("abort", "error")  # to finish: the engine gave the request up, or failed
_BAD_STATUSES: Final = ("cancelled", "failed")  # of Responses: only the engine can have cancelled what is answered
_MESSAGE: Final = "message"  # of Messages: a whole answer
_MESSAGE_DELTA: Final = "message_delta"  # of Messages: the last but one, with the reason to stop
_BLOCK_DELTA: Final = "content_block_delta"  # of Messages: text, thinking, the input of a tool
_RESPONSE_DELTAS: Final = ("response.", ".delta")  # of Responses: how all begin and end that show what is made


class StreamMeter:
    """The tokens of one stream of server-sent events.

    `withholds_usage`: the frame that holds only `usage` was asked for by this program, so the client must not see it.
    `tokens_per_frame`: that its frames stand for, 1 or more. `scope`: of each `usage`; those of single outputs are
    added up. `produced`: tokens so far, over all choices. `shown`: what the frames show of them, one each. `has_ended`:
    its last frame has come. `has_failed`: the engine said that it ends badly. `is_given_up`: no frame with an error has
    told the client of it. `is_cut`: it stopped within a frame; known once `rest` was asked for.
    """

    __slots__ = (
        "_beyond",
        "_counts_each",
        "_guessed",
        "_held",
        "_like",
        "_more",
        "_oversized",
        "_withholds_usage",
        "has_ended",
        "has_failed",
        "is_cut",
        "is_given_up",
        "produced",
        "shown",
        "usage",
    )

    def __init__(self, *, withholds_usage: bool, tokens_per_frame: float = 1.0, scope: Scope = "Answer") -> None:
        self._withholds_usage = withholds_usage
        self._counts_each = scope != "Answer"
        self._more = tokens_per_frame - 1
        self._guessed = 0.0  # tokens beyond those shown, since the engine has counted last
        self._beyond = 0  # tokens beyond those shown, by the engine's own count
        self.shown = 0
        self._held = b""
        self._like = Likeness()
        self._oversized = False
        self.has_ended = self.has_failed = self.is_given_up = self.is_cut = False
        self.produced = Tokens(0)
        self.usage: Usage | None = None

    @property
    def is_between_frames(self) -> bool:
        """Whether what has gone out ends with a whole frame."""
        return not self._oversized

    def feed(self, data: bytes) -> bytes:
        """Take what the engine sent; gives what may be passed on now."""
        if not (self._held or self._oversized):
            if self._like.matches(data):  # the usual case: one whole frame, like the last one
                self._show(1)
                return data
            if _is_frame(data):
                return b"" if self._count(data[5:]) else data
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
        payload = _payload(held)
        self._count(payload)  # engines may leave out the empty line after the last frame
        self.is_cut = self._oversized or not _is_whole(payload)
        return held

    def _hold(self, data: bytes) -> bytes:
        if len(data) <= MAX_FRAME_BYTES:
            self._held = data
            return b""
        self._held, self._oversized = b"", True
        return data

    def _read(self, whole: bytes) -> bytes:
        return b"".join([self._pass(frame) for frame in _frames(whole)])

    def _pass(self, frame: bytes) -> bytes:
        """Count a frame; what of it is for the client."""
        if self._like.matches(frame):
            self._show(1)
            return frame
        return _blank(frame) if self._count(_payload(frame)) else frame

    def _count(self, payload: bytes) -> bool:
        """Count the data of one frame; whether it is not for the client."""
        try:
            frame = FRAMES.decode(payload)
        except _UNREADABLE:
            is_done = payload.strip() == _DONE
            self.has_ended = self.has_ended or (is_done and not self.is_given_up)
            return is_done and self.is_given_up
        shown, choices = 0, frame.choices
        if choices is None or frame.error is not None:
            shown = self._take_end(frame)
        for choice in choices or ():
            delta = choice.delta
            has_content = isinstance(delta, Delta) and delta.content  # nearly every frame has some
            if has_content or _is_token(choice, ends_bare=self._counts_each):
                shown += 1
            if choice.finish_reason is not None and choice.finish_reason in _BAD_REASONS:
                self.has_failed = self.is_given_up = True
        self._show(shown)
        if frame.usage is None and frame.message is None and frame.response is None:
            self._learn(payload, frame)
            only_usage = False
        else:
            only_usage = self._take_usage(frame)
        return (only_usage and self._withholds_usage) or (self.is_given_up and frame.type in _ENDS)

    def _show(self, shown: int) -> None:
        """So many more tokens are in the frames."""
        self.shown = known = self.shown + shown
        if self._more:
            self._guessed += shown * self._more
            known += int(self._guessed)
        self.produced = Tokens(known + self._beyond)

    def _learn(self, payload: bytes, frame: Frame) -> None:
        """Those that follow are mostly like this one."""
        choices = frame.choices
        if choices is None or len(choices) != 1 or frame.error is not None or choices[0].finish_reason is not None:
            return
        choice = choices[0]
        text = choice.delta.content if isinstance(choice.delta, Delta) else choice.text
        if isinstance(text, str) and text:
            self._like.learn(payload, text)

    def _take_end(self, frame: Frame) -> int:
        """A frame without choices, or with an error; the tokens that its kind shows."""
        kind = frame.type
        if frame.error is not None or kind in _FAILURES:
            self.has_ended = self.has_failed = True
            self.is_given_up = False
        elif kind in _ENDS or kind == _MESSAGE_DELTA:
            if _is_given_up(frame):
                self.has_failed = self.is_given_up = True
            self.has_ended = self.has_ended or (kind != _MESSAGE_DELTA and not self.is_given_up)
        return 1 if frame.choices is None and isinstance(kind, str) and _is_delta(kind) else 0

    def _take_usage(self, frame: Frame) -> bool:
        usage = _usage_of(frame)
        if usage is None:
            return False
        if self._counts_each and self.usage is not None and frame.choices is not None:
            usage = _added(self.usage, usage)
        self.usage = _merged(self.usage, usage)
        if usage.output is not None:
            self._guessed = 0.0
            self._beyond = max(self._beyond, usage.output - self.shown)
            self.produced = Tokens(self.shown + self._beyond)
        return frame.choices == []


def _end_of_frames(data: bytes) -> int:
    """Where the last whole frame ends; 0 where there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    return max([at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := data.rfind(mark)) >= 0], default=0)


def _frames(whole: bytes) -> list[bytes]:
    """The frames, each with the empty line that ends it."""
    if _RETURN in whole or whole.endswith(b"\n\n\n"):
        return [frame for frame in _FRAME_END.split(whole) if frame]
    frames, at = [], 0
    while at < len(whole):
        end = whole.find(b"\n", at) + 1  # mostly the only line: to look for one byte is faster by far
        if whole[end] != _LINE_FEED:
            end = whole.find(b"\n\n", at) + 1
        frames.append(whole[at : end + 1])
        at = end + 1
    return frames


def read_plain(body: bytes, scope: Scope = "Answer") -> PlainAnswer:
    """An answer that is one JSON object, as far as it can be read. `scope`: of its usage; where that is one output's,
    the others are taken to be as long."""
    if scope != "Answer":
        return _read_unusual(body, scope)
    try:
        usual = USUALS.decode(body)
        choices = usual.choices
        if choices is not None:
            given_up = [each for each in choices if each.finish_reason in _BAD_REASONS]
            return PlainAnswer(_usage(usual.usage), bool(given_up))
    except msgspec.ValidationError:
        pass
    except _UNREADABLE:
        return PlainAnswer()
    return _read_unusual(body, scope)


def _read_unusual(body: bytes, scope: Scope) -> PlainAnswer:
    try:
        plain = PLAINS.decode(body)
    except _UNREADABLE:
        return PlainAnswer()
    choices = plain.choices if isinstance(plain.choices, list) else []
    bad = [each for each in choices if isinstance(each, Ending) and each.finish_reason in _BAD_REASONS]
    is_bad = (plain.type == _MESSAGE and plain.stop_reason is None) or plain.status in _BAD_STATUSES
    usage = _usage(plain.usage)
    if scope != "Answer" and choices and usage is not None and usage.output is not None:
        usage = Usage(usage.prompt, Tokens(usage.output * len(choices)), usage.cached)
    return PlainAnswer(usage, is_bad or bool(bad))


def _is_given_up(frame: Frame) -> bool:
    """Whether the last words of Responses or Messages say that there was no good end. vLLM has no reason to stop for
    what it gave up."""
    if frame.response is not None:
        return frame.response.status in _BAD_STATUSES
    return isinstance(frame.delta, Ending) and frame.delta.stop_reason is None


def _blank(frame: bytes) -> bytes:
    """The empty lines before a frame, which are no part of it."""
    return frame[: len(frame) - len(frame.lstrip(b"\r\n"))]


def _is_frame(data: bytes) -> bool:
    """Whether it is one line of data, and the empty one that ends a frame."""
    return data.startswith(b"data:") and data.find(b"\n") == len(data) - 2 and data.endswith(b"\n")


def _payload(frame: bytes) -> bytes:
    """The data of one frame; of a frame with several data lines they are joined, as the format says."""
    if _is_frame(frame):
        return frame[5:]
    lines = frame.splitlines()
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))


def _is_whole(payload: bytes) -> bool:
    """Whether a frame's data is all there; what has none is."""
    if not payload.strip() or payload.strip() == _DONE:
        return True
    try:
        _WHOLE.decode(payload)
    except _UNREADABLE:
        return False
    return True


def _is_delta(kind: str) -> bool:
    begin, end = _RESPONSE_DELTAS
    return kind == _BLOCK_DELTA or (kind.startswith(begin) and kind.endswith(end))


def _is_token(choice: Choice, *, ends_bare: bool) -> bool:
    """`ends_bare`: the last frame of an output has none."""
    delta, may_be_empty = choice.delta, choice.finish_reason is None or not ends_bare
    if not isinstance(delta, Delta):
        return bool(choice.text) or (may_be_empty and (choice.text is not None or delta is not None))
    said = delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.function_call
    return bool(said) or (may_be_empty and delta.role is None)


def _usage_of(frame: Frame) -> Usage | None:
    for carrier in (frame.response, frame.message, frame):
        if carrier is not None and carrier.usage is not None:
            return _usage(carrier.usage)
    return None


def _usage(told: Told) -> Usage | None:
    if not isinstance(told, Counts):
        return None
    of_prompt, of_output = told.prompt_tokens, told.completion_tokens
    prompt = _count(told.input_tokens if of_prompt is None else of_prompt)
    output = _count(told.output_tokens if of_output is None else of_output)
    if prompt is None and output is None:
        return None
    of_read, of_written = told.cache_read_input_tokens, told.cache_creation_input_tokens
    if not (of_read is None and of_written is None):
        read, written = _count(of_read), _count(of_written)
        if prompt is not None and not (read is None and written is None):  # Messages leaves these out of its input
            return Usage(Tokens(prompt + (read or 0) + (written or 0)), output, read)
    details = told.prompt_tokens_details
    if details is None:
        details = told.input_tokens_details
    return Usage(prompt, output, _count(details.get("cached_tokens")) if isinstance(details, dict) else None)


def _count(found: Any) -> Tokens | None:
    return Tokens(found) if type(found) is int and 0 <= found <= MAX_COUNT else None


def _added(old: Usage, new: Usage) -> Usage:
    """The new one, with the output of both."""
    output = new.output if old.output is None or new.output is None else Tokens(old.output + new.output)
    return Usage(new.prompt, output, new.cached)


def _merged(old: Usage | None, new: Usage) -> Usage:
    if old is None:
        return new
    return Usage(
        prompt=old.prompt if new.prompt is None else new.prompt,
        output=old.output if new.output is None else new.output,
        cached=old.cached if new.cached is None else new.cached,
    )
