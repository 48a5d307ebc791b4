"""What a body asks for: its model, its prompts, how many outputs and how long.

Decides the shape of a request from the bytes of its body. Pure, and linear in their number.

Invariants:

1. The engine cannot read the body in another way: a key that is named twice at any level, NaN, and text that is not
   UTF-8 are refused, and a field that decides what the request takes has exactly its own type.
2. What outlives the response or hides its size is refused.
3. Every refusal is a 400 that names the field, or the bound.
4. What is looked at one by one is bounded before it is: by `scan`, and for messages and parts by `weighing`.

It does not know tenants, limits or blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_sidecar.estimate.bodies import Body, Chat, Completion, Messages, Responses
from kvquota_sidecar.estimate.prompts import (
    PromptSize,
    chat_prompts,
    completion_prompts,
    message_prompts,
    response_prompts,
)
from kvquota_sidecar.estimate.scan import MAX_DEPTH, Fields, ScanError, scan
from kvquota_sidecar.estimate.weighing import PromptError
from kvquota_sidecar.refusals import Code, Refusal, refuse

__all__ = ["ROUTES", "PromptSize", "Shape", "read_shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """`model`: "" where the client named none. `copies`: outputs of each prompt, at least 1.

    `output_limit`: tokens of each sequence, None where the client set none. `cache_salt`: the client's own, "" for
    none. `include_usage`: whether the client itself asked for usage in the stream. `fields`: where the top-level
    fields stand in the body, for `edited`.
    """

    model: str
    stream: bool
    prompts: tuple[PromptSize, ...]
    copies: int
    output_limit: Tokens | None
    cache_salt: str
    include_usage: bool
    fields: Fields


@dataclass(frozen=True, slots=True)
class _Route:
    """`limit`: the output limit of a body; `unsupported`: fields that are refused unless they are null or false."""

    body: type[Body]
    prompts: Callable[[Any], tuple[PromptSize, ...]]
    limit: Callable[[Any], int | None]
    unsupported: Mapping[str, str]


def _chat_limit(body: Chat) -> int | None:
    """Engines differ in which of the two they take, so the larger counts."""
    given = [each for each in (body.max_completion_tokens, body.max_tokens) if each is not None]
    return max(given, default=None)


_OUTLIVES: Final = "what is kept after the answer cannot be accounted"
_HIDES: Final = "it hides how much the request takes"
_UNSUPPORTED: Final = {
    "store": _OUTLIVES,
    "background": _OUTLIVES,
    "previous_response_id": _HIDES,
    "conversation": _HIDES,
    "kv_transfer_params": _OUTLIVES,
    "ec_transfer_params": _OUTLIVES,
    "prompt_embeds": _HIDES,
    "chat_template": "a template of one's own hides how long a prompt gets",
    "n_predict": "use max_tokens, which every engine reads in the same way",
}
ROUTES: Final[Mapping[str, _Route]] = MappingProxyType(
    {
        "/v1/chat/completions": _Route(Chat, chat_prompts, _chat_limit, _UNSUPPORTED),
        "/v1/completions": _Route(Completion, completion_prompts, lambda body: body.max_tokens, _UNSUPPORTED),
        "/v1/messages": _Route(Messages, message_prompts, lambda body: body.max_tokens, _UNSUPPORTED),
        "/v1/responses": _Route(
            Responses, response_prompts, lambda body: body.max_output_tokens, {**_UNSUPPORTED, "prompt": _HIDES}
        ),
    }
)


def read_shape(route: str, body: bytes) -> Shape | Refusal:
    """The shape of `body`, sent to `route`, which is one of ROUTES; a refusal where it cannot be read or accounted."""
    try:
        return _read(ROUTES[route], body)
    except PromptError as error:
        return refuse(error.code, str(error), param=error.param)
    except (ScanError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason, param = _explain(error)
        text = f"The body is not a request that this route takes: {reason}. Correct it and send it again."
        return refuse(Code.MALFORMED_REQUEST, text, param=param)


def _explain(error: Exception) -> tuple[str, str | None]:
    """What is wrong, and with which field."""
    if isinstance(error, ScanError):
        return str(error), error.key or None
    if isinstance(error, msgspec.ValidationError):
        reason, _, path = str(error).partition(" - at `$.")
        return str(error), path.rstrip("`") or _missing(reason)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8", None
    if isinstance(error, RecursionError):
        return f"it is nested more than {MAX_DEPTH} levels deep", None
    return str(error), None


def _missing(reason: str) -> str | None:
    """The field that msgspec misses: "Object missing required field `messages`"."""
    return reason.split("`")[1] if "missing required field" in reason else None


def _read(route: _Route, text: bytes) -> Shape | Refusal:
    text.decode()
    body = msgspec.json.decode(text, type=route.body)
    fields = scan(text)
    for name, reason in route.unsupported.items():
        if _value(text, fields, name) not in {b"", b"null", b"false"}:
            return _unsupported(name, reason)
    return _shape(route, body, fields)


def _value(text: bytes, fields: Fields, name: str) -> bytes:
    field = fields.by_name.get(name)
    return b"" if field is None else text[field.value : field.end]


def _shape(route: _Route, body: Body, fields: Fields) -> Shape:
    limit, options = route.limit(body), body.stream_options
    return Shape(
        model=body.model or "",
        stream=bool(body.stream),
        prompts=route.prompts(body),
        copies=max(getattr(body, "n", None) or 1, getattr(body, "best_of", None) or 1),
        output_limit=None if limit is None else Tokens(limit),
        cache_salt=body.cache_salt or "",
        include_usage=options is not None and bool(options.include_usage),
        fields=fields,
    )


def _unsupported(name: str, reason: str) -> Refusal:
    text = f"The field {name!r} is not supported under a quota: {reason}. Leave it out."
    return refuse(Code.NOT_SUPPORTED_UNDER_QUOTA, text, param=name)
