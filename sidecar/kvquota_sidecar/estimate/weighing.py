"""How much text the messages of a body hold, and which images, audio and videos.

Decides the bytes of messages and of their parts. Pure, and linear in the length of the body.

Invariants:

1. Whatever a client can put into a message is counted: its text as UTF-8, everything else as it stands in the JSON.
2. An image, an audio or a video counts as the tokens that the pool's administrator has set for one of its kind, its own
   bytes for nothing. Where none is set it is refused, and so is all else that is not text (files, stored items,
   vectors): its tokens do not follow from its bytes.
3. Of each body at most MAX_ITEMS messages and MAX_PARTS parts are looked at; more are refused.

It does not know routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec

from kvquota_api.pod_config import MediaCost
from kvquota_api.quoting import quoted
from kvquota_sidecar.estimate.scan import is_token_ids
from kvquota_sidecar.records import LeafValue, MutableLeaf
from kvquota_sidecar.refusals import Code

MAX_ITEMS: Final = 4096  # messages of one body: each is four tokens at least, and agents of a day have some hundreds
MAX_PARTS: Final = 4096  # of all messages of one body: clients send one to ten in a message
_MARKS: Final = 20  # bytes: what a template puts around a message is 3 to 6 tokens, with the message's role
_TEXTS: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "summary_text", "reasoning_text"}
)
# Type of a part -> its kind, and where the JSON of that kind holds the data, which is no text.
_MEDIA: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "image_url": ("image", ("image_url",)),
    "input_image": ("image", ("image_url",)),
    "image": ("image", ("source",)),
    "input_audio": ("audio", ("input_audio",)),
    "audio_url": ("audio", ("audio_url",)),
    "video_url": ("video", ("video_url",)),
}
_CALLS: Final = frozenset({"tool_use", "tool_result"})
_ITEMS: Final = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)
# Beside content, output and text: what engines take from a message or a part into the prompt.
_KNOWN: Final = frozenset(
    {
        "arguments", "call_id", "function_call", "id", "input", "name", "reasoning", "reasoning_content", "refusal",
        "role", "summary", "thinking", "tool_call_id", "tool_calls", "tool_use_id",
    }
)  # fmt: skip
_PLAIN_MESSAGE: Final = frozenset({"role", "content"})
_PLAIN_PART: Final = frozenset({"type", "text"})

Nesting = Literal["Never", "Once"]
_CONTENTS: Final[tuple[tuple[str, Nesting], ...]] = (("content", "Once"), ("output", "Never"))
_T = TypeVar("_T")
_ENCODER: Final = msgspec.json.Encoder()


class PromptError(ValueError):
    """A body that cannot be taken. `param`: the field; `said`: what is wrong with it, and what to do; `code`: of its
    refusal."""

    def __init__(self, said: str, param: str = "", code: Code = Code.MALFORMED_REQUEST) -> None:
        super().__init__(said, param, code)
        self.said = said
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return f"{self.param!r} {self.said}"

    def within(self, outer: str) -> PromptError:
        """The same of a field that stands in `outer`."""
        return PromptError(self.said, outer + self.param, self.code)


class Terms(LeafValue, frozen=True):
    """What the prompts of a pool are weighed by. `media`: what images, audio and videos cost. `shares`: whether prompts
    with the same beginning can share its blocks; where they cannot, no prompt has a chain."""

    media: MediaCost
    shares: bool = True


class PartCount:
    """How many parts were seen of one body."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0


class Weight(MutableLeaf):
    """What was counted so far of one prompt.

    `size`: bytes that may reach the tokenizer. `sure`: those that do. `media`: tokens of images, audio and videos.
    `longest`: the longest single text. The methods raise PromptError; its `param` begins at what they were given.
    """

    terms: Terms
    parts: PartCount | None = None
    size: int = 0
    sure: int = 0
    media: int = 0
    longest: str = ""

    def add(self, size: int) -> None:
        """`size` bytes that reach the tokenizer."""
        self.size += size
        self.sure += size

    def text(self, text: str) -> None:
        """A text that reaches the tokenizer."""
        size = len(text) if text.isascii() else len(text.encode())
        self.size += size
        self.sure += size
        if len(text) > len(self.longest):
            self.longest = text

    def items(self, items: Any) -> None:
        """A list of messages, or of items beside messages."""
        if type(items) is not list:
            items = converted(items, list[Any])
        count = len(items)
        if count > MAX_ITEMS:
            raise PromptError(f"has {count} messages and at most {MAX_ITEMS} are taken: leave older ones out")
        size, longest, most = _MARKS * count, "", 0
        for place, item in enumerate(items):
            try:  # most messages are a role and a text
                content, role = item["content"], item["role"]
                is_plain = len(item) == 2 and type(content) is str and type(role) is str
            except (KeyError, TypeError):
                is_plain = False
            if not is_plain:
                within(f"[{place}]", partial(self._item, item))
                continue
            length = len(content)
            size += len(role) + (length if content.isascii() else len(content.encode()))
            if length > most:
                longest, most = content, length
        self.size += size
        self.sure += size
        if most > len(self.longest):
            self.longest = longest

    def content(self, content: Any, nesting: Nesting = "Never") -> None:
        """A text, a list of parts, or nothing. `nesting`: whether a part may have a content of its own."""
        if content is None:
            return
        if type(content) is str:
            self.text(content)
            return
        if type(content) is not list:
            content = converted(content, list[Any])
        self.parts = parts = self.parts or PartCount()
        parts.seen += len(content)
        if parts.seen > MAX_PARTS:
            raise PromptError(f"is one of too many: at most {MAX_PARTS} parts are taken in all. Join or leave out some")
        each(self._nesting_part if nesting == "Once" else self.part, content)

    def part(self, part: Any) -> None:
        """A text, or an object that says what it is."""
        if type(part) is str:
            self.text(part)
            return
        fields = _object(part)
        kind = _kind(fields)
        if kind not in _TEXTS:
            self._medium(kind, fields)
            return
        self.add(len(kind))
        if fields.keys() != _PLAIN_PART:
            self._beside(fields, ("type", "text"))
        text = fields.get("text")
        if type(text) is str:
            self.text(text)
        else:
            self.add(len(_ENCODER.encode(text)))

    def _item(self, item: Any) -> None:
        fields = _object(item)
        role = fields.get("role")
        self.add(len(role) if type(role) is str else len(_ENCODER.encode(role)))
        if fields.keys() != _PLAIN_MESSAGE:
            kind = _kind(fields)
            if kind is not None and kind not in _ITEMS:
                raise _no_text(kind)
            self._beside(fields, ("role", "content", "output"))
        for name, nesting in _CONTENTS:
            value = fields.get(name)
            if type(value) is str:
                self.text(value)
            elif value is not None:
                within(f".{name}", partial(self.content, value, nesting))

    def _nesting_part(self, part: Any) -> None:
        if type(part) is not dict or _kind(part) not in _CALLS:
            self.part(part)
            return
        self._beside(part, ("content",))
        within(".content", partial(self.content, part.get("content")))

    def _medium(self, kind: str | None, fields: dict[str, Any]) -> None:
        medium, apart = _MEDIA.get(kind or "", ("", ()))
        if not medium:
            raise _no_text(kind)
        cost = getattr(self.terms.media, f"{medium}_tokens")
        if cost is None:
            raise unsupported(
                ".type",
                f"what a part of type {quoted(kind)} takes is not known here; the administrator of the pool can set it "
                f"in spec.model.media.{medium}Tokens of the ModelPool",
            )
        self.media += cost
        self._beside(fields, ("type", *apart))

    def _beside(self, fields: dict[str, Any], apart: tuple[str, ...]) -> None:
        """All of an object but the fields `apart`."""
        for name, value in fields.items():
            if name not in apart:
                size = len(_ENCODER.encode(value))
                self.size += size + len(name)
                self.sure += size if name in _KNOWN else 0


def text_size(text: str) -> int:
    """Bytes of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def elements(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of a JSON list that `read_object` has bounded. Raises PromptError."""
    if is_token_ids(bytes(raw)):
        decoded(raw, list[dict[str, Any]])
    found: list[msgspec.Raw] = decoded(raw, list[msgspec.Raw])
    return found


def decoded(raw: msgspec.Raw, kind: Any) -> Any:
    """A JSON value of a type. Raises PromptError."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _mistyped(error) from error


def converted(value: Any, kind: Any) -> Any:
    """The same for a value that is decoded already. Raises PromptError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _mistyped(error) from error


def within(outer: str, weigh: Callable[[], _T]) -> _T:
    """`weigh()`, and where it raises PromptError the field is named from `outer` on."""
    try:
        return weigh()
    except PromptError as error:
        raise error.within(outer) from error


def each(weigh: Callable[[Any], object], values: Iterable[Any]) -> None:
    """`weigh` each, and where it raises PromptError the place is named."""
    place = 0
    try:
        for place, value in enumerate(values):  # noqa: B007 - it is told where the loop breaks
            weigh(value)
    except PromptError as error:
        raise error.within(f"[{place}]") from error


def unsupported(param: str, reason: str) -> PromptError:
    return PromptError(
        f"is not supported under a quota: {reason}. Leave it out.", param, Code.NOT_SUPPORTED_UNDER_QUOTA
    )


def _object(value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = value if type(value) is dict else converted(value, dict[str, Any])
    return fields


def _kind(fields: dict[str, Any]) -> str | None:
    given = fields.get("type")
    kind: str | None = given if type(given) is str else within(".type", partial(converted, given, str | None))
    return kind


def _mistyped(error: msgspec.ValidationError) -> PromptError:
    reason, _, path = str(error).partition(" - at `$")
    return PromptError(f"is not what this route takes: {reason}. Correct it.", path.rstrip("`"))


def _no_text(kind: str | None) -> PromptError:
    return unsupported(".type", f"{quoted(kind)} is not text, so its tokens cannot be counted")
