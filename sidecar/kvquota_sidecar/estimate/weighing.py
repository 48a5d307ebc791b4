"""How much text the messages of a body hold.

Decides the bytes of messages and of their parts. Pure, and linear in the length of the body.

Invariants:

1. Whatever a client can put into a message is counted: its text as UTF-8, everything else as it stands in the JSON.
2. What is not text (images, audio, stored items) is refused: its size in tokens does not follow from its bytes.
3. Of each body at most MAX_ITEMS messages and MAX_PARTS parts are looked at; more are refused.

It does not know routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec

from kvquota_sidecar.estimate.bodies import ABSENT
from kvquota_sidecar.estimate.scan import TOKEN_IDS
from kvquota_sidecar.refusals import Code

MAX_ITEMS: Final = 4096  # messages of one body: each is four tokens at least, and agents of a day have some hundreds
MAX_PARTS: Final = 4096  # of all messages of one body: clients send one to ten in a message
_MARKS: Final = 16  # bytes: what a template puts around a message is 3 to 6 tokens
_TEXTS: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "summary_text", "reasoning_text"}
)
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


_NOTHING: Final = frozenset({b"", b"null"})
Nesting = Literal["Never", "Once"]

_T = TypeVar("_T")
_TEXT: Final = msgspec.json.Decoder(str)
_KIND: Final = msgspec.json.Decoder(str | None)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


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


class Weight:
    """What was counted so far of one body. `size`: bytes that may reach the tokenizer. `sure`: those that do.

    The methods raise PromptError with a `param` that begins at what they were given.
    """

    __slots__ = ("_parts", "size", "sure")

    def __init__(self) -> None:
        self.size = 0
        self.sure = 0
        self._parts = 0

    def add(self, size: int) -> None:
        """`size` bytes that reach the tokenizer."""
        self.size += size
        self.sure += size

    def items(self, raw: msgspec.Raw) -> None:
        """A list of messages, or of items beside messages."""
        items = elements(raw)
        if len(items) > MAX_ITEMS:
            raise PromptError(f"has {len(items)} messages and at most {MAX_ITEMS} are taken: leave older ones out")
        _each(self._item, items)

    def content(self, raw: msgspec.Raw, *, may_nest: Nesting = "Never") -> None:
        """A text, a list of parts, or nothing. `may_nest`: whether a part may have a content of its own."""
        text = bytes(raw)
        if text in _NOTHING:
            return
        if text.startswith(b'"'):
            self.add(text_size(raw))
            return
        parts = elements(raw)
        self._parts += len(parts)
        if self._parts > MAX_PARTS:
            raise PromptError(f"is one of too many: at most {MAX_PARTS} parts are taken in all. Join or leave out some")
        _each(self._nesting_part if may_nest == "Once" else self._part, parts)

    def _item(self, raw: msgspec.Raw) -> None:
        """Its JSON stands for the marks that a template puts around it."""
        fields = _fields(raw)
        kind = _kind(fields)
        if kind is not None and kind not in _ITEMS:
            raise _no_text(kind)
        self.sure += _MARKS
        self._beside(raw, fields, ("content", "output"))
        within(".content", partial(self.content, may_nest="Once"), fields.get("content", ABSENT))
        within(".output", self.content, fields.get("output", ABSENT))

    def _nesting_part(self, raw: msgspec.Raw) -> None:
        fields = {} if bytes(raw).startswith(b'"') else _fields(raw)
        if _kind(fields) not in _CALLS:
            self._part(raw)
            return
        self._beside(raw, fields, ("content",))
        within(".content", self.content, fields.get("content", ABSENT))

    def _part(self, raw: msgspec.Raw) -> None:
        if bytes(raw).startswith(b'"'):
            self.add(text_size(raw))
            return
        fields = _fields(raw)
        kind = _kind(fields)
        if kind not in _TEXTS:
            raise _no_text(kind)
        self._beside(raw, fields, ("text",))
        text = fields.get("text", ABSENT)
        self.add(text_size(text) if bytes(text).startswith(b'"') else len(bytes(text)))

    def _beside(self, raw: msgspec.Raw, fields: dict[str, msgspec.Raw], apart: tuple[str, ...]) -> None:
        """All of an object but the fields `apart`."""
        self.size += len(bytes(raw)) - sum([len(bytes(fields[name])) for name in apart if name in fields])
        self.sure += sum([len(bytes(value)) for name, value in fields.items() if name in _KNOWN])


def text_size(raw: msgspec.Raw) -> int:
    """Bytes of a JSON string as UTF-8. Raises PromptError where it is none."""
    text = decoded(_TEXT, raw)
    return len(text) if text.isascii() else len(text.encode())


def elements(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of a JSON list, of which `scan` has bounded all kinds but token ids. Raises PromptError."""
    if TOKEN_IDS.fullmatch(raw):
        decoded(_OBJECTS, raw)
    return decoded(_LIST, raw)


def decoded(decoder: msgspec.json.Decoder[_T], raw: msgspec.Raw) -> _T:
    """A JSON value of the decoder's type. Raises PromptError."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        raise PromptError(f"is not what this route takes: {reason}. Correct it.", path.rstrip("`")) from error


def within(outer: str, weigh: Callable[[msgspec.Raw], _T], raw: msgspec.Raw) -> _T:
    """`weigh(raw)`, and where it raises PromptError the field is named from `outer` on."""
    try:
        return weigh(raw)
    except PromptError as error:
        raise error.within(outer) from error


def unsupported(param: str, reason: str) -> PromptError:
    return PromptError(
        f"is not supported under a quota: {reason}. Leave it out.", param, Code.NOT_SUPPORTED_UNDER_QUOTA
    )


def _each(weigh: Callable[[msgspec.Raw], None], raws: Iterable[msgspec.Raw]) -> None:
    place = 0
    try:
        for place, raw in enumerate(raws):  # noqa: B007 - it is told where the loop breaks
            weigh(raw)
    except PromptError as error:
        raise error.within(f"[{place}]") from error


def _fields(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    return decoded(_OBJECT, raw)


def _kind(fields: dict[str, msgspec.Raw]) -> str | None:
    return within(".type", partial(decoded, _KIND), fields["type"]) if "type" in fields else None


def _no_text(kind: str | None) -> PromptError:
    return unsupported(".type", f"{kind!r} is not text, so its tokens cannot be counted")
