"""What a body asks for: its model, its prompts, how many outputs and how long.

Decides the shape of a request from the bytes of its body. Pure, and linear in their number.

Invariants:

1. The engine cannot read the body in another way: a key that is named twice at any level, NaN, and text that is not
   UTF-8 are refused, and a field that decides what the request takes has exactly its own type.
2. What outlives the response or hides its size is refused.
3. Every refusal is a 400 that names the field, or the bound; of what the client wrote it quotes MAX_QUOTED characters
   at most, as operators and logs read it too.
4. What is looked at one by one is bounded before it is: by `scan`, and for messages and parts by `weighing`.

It does not know tenants, limits or blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from kvquota_api.amounts import Tokens
from kvquota_api.pod_config import MediaCost
from kvquota_api.quoting import MAX_QUOTED
from kvquota_sidecar.estimate.bodies import Body, Chat, Completion, Messages, Pooled, Rerank, Responses, Score
from kvquota_sidecar.estimate.hiding import hides_output
from kvquota_sidecar.estimate.pairs import rerank_prompts, score_prompts
from kvquota_sidecar.estimate.prompts import (
    PromptSize,
    chat_prompts,
    chats_prompts,
    completion_prompts,
    message_prompts,
    pooled_prompts,
    refuse_own_template,
    response_prompts,
)
from kvquota_sidecar.estimate.reading import read_object
from kvquota_sidecar.estimate.scan import MAX_DEPTH, ScanError
from kvquota_sidecar.estimate.weighing import PromptError, Terms
from kvquota_sidecar.records import LeafValue
from kvquota_sidecar.refusals import Code, Refusal, refuse

__all__ = ["ROUTES", "PromptSize", "Shape", "read_shape"]

Kind = Literal["Generate", "Pool"]
Engine = Literal["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM", "OpenAI"]
_Prompts = Callable[[Any, Mapping[str, Any], Terms], tuple[PromptSize, ...]]


class Shape(LeafValue, frozen=True):
    """`kind`: Pool makes no output. `model`: "" where the client named none. `copies`: outputs of each prompt, at least
    1. `output_limit`: tokens of each sequence, as this engine will use it; None where there is none but the context.
    `cache_salt`: the client's own, "" for none. `priority`: the client's own, as JSON; empty for none. `include_usage`:
    whether the client itself asked for usage in the stream. `fields`: the names of the body's top-level fields, for
    `edited`. `shows_output`: it is a stream, and shows all that is made.
    """

    kind: Kind
    model: str
    stream: bool
    prompts: tuple[PromptSize, ...]
    copies: int
    output_limit: Tokens | None
    cache_salt: str
    priority: bytes
    include_usage: bool
    fields: tuple[str, ...]
    shows_output: bool


@dataclass(frozen=True, slots=True)
class _Route:
    """`limit`: the output limit of a body on an engine. `copies`: its outputs of each prompt. `unsupported`: what is
    refused unless it is null or false; `suspects`: the names of these."""

    decoder: msgspec.json.Decoder[Any]
    prompts: _Prompts
    limit: Callable[[Any, Engine], int | None]
    unsupported: Mapping[str, str]
    copies: Callable[[Any], int]
    kind: Kind = "Generate"
    suspects: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "suspects", frozenset(self.unsupported))


def _chat_limit(body: Chat, engine: Engine) -> int | None:
    """vLLM takes the new name where there is one; of other engines it is not known, so the larger counts."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is None or old is None:
        return old if new is None else new
    return new if engine == "vLLM" else max(new, old)


def _completion_limit(body: Completion, engine: Engine) -> int | None:
    """vLLM makes 16 tokens where a completion leaves the limit out, while a chat may fill the context. Of `null` 0.32
    makes 16 too, older ones the context: which one runs is not known here, so the larger counts."""
    if body.max_tokens is msgspec.UNSET:
        return 16 if engine == "vLLM" else None
    return body.max_tokens


def _copies(body: Chat | Completion) -> int:
    """`best_of` runs more than it returns, where an engine has it; beams are as many as `n`."""
    asked, best_of = body.n, body.best_of
    return 1 if asked is None and best_of is None else max(asked or 1, best_of or 1)


def _pooling(prompts: _Prompts, body: type[Body]) -> _Route:
    """It makes no output."""
    unsupported = {**_UNSUPPORTED, "data": "what a plugin of the engine makes of it is not known"}
    return _Route(msgspec.json.Decoder(body), prompts, lambda *_: 0, unsupported, lambda _: 1, "Pool")


NO_MEDIA: Final = MediaCost()
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
    "mm_processor_kwargs": "it changes how many tokens an image takes",
    "media_io_kwargs": "it changes how many tokens a video takes",
    # SGLang's and llama.cpp's own.
    "session_params": _OUTLIVES,
    "bootstrap_host": _OUTLIVES,
    "bootstrap_port": _OUTLIVES,
    "bootstrap_room": _OUTLIVES,
    "id_slot": "which slot is free only the engine knows",
    "n_predict": "use max_tokens, which every engine reads in the same way",
    "n_cmpl": "use n, which every engine reads in the same way",
}
_CHATS: Final = msgspec.json.Decoder(Chat)
_ROUTES: Final = {
    "/v1/chat/completions": _Route(_CHATS, chat_prompts, _chat_limit, _UNSUPPORTED, _copies),
    "/v1/chat/completions/batch": _Route(
        _CHATS,
        chats_prompts,
        _chat_limit,
        {**_UNSUPPORTED, "tools": "a batch of chats takes none", "functions": "a batch of chats takes none"},
        _copies,
    ),
    "/v1/completions": _Route(
        msgspec.json.Decoder(Completion), completion_prompts, _completion_limit, _UNSUPPORTED, _copies
    ),
    "/v1/messages": _Route(
        msgspec.json.Decoder(Messages), message_prompts, lambda body, _: body.max_tokens, _UNSUPPORTED, lambda _: 1
    ),
    "/v1/responses": _Route(
        msgspec.json.Decoder(Responses),
        response_prompts,
        lambda body, _: body.max_output_tokens,
        {**_UNSUPPORTED, "prompt": _HIDES, "previous_input_messages": _HIDES},
        lambda _: 1,
    ),
    "/v1/embeddings": _pooling(pooled_prompts, Pooled),
    "/pooling": _pooling(pooled_prompts, Pooled),
    "/classify": _pooling(pooled_prompts, Pooled),
    "/rerank": _pooling(rerank_prompts, Rerank),
    "/score": _pooling(score_prompts, Score),
}
ROUTES: Final[Mapping[str, _Route]] = MappingProxyType(
    {**_ROUTES, "/v1/rerank": _ROUTES["/rerank"], "/v2/rerank": _ROUTES["/rerank"], "/v1/score": _ROUTES["/score"]}
)


def read_shape(
    route: str, body: bytes, media: MediaCost = NO_MEDIA, engine: Engine = "OpenAI", *, shares: bool = True
) -> Shape | Refusal:
    """The shape of `body`, sent to `route`, which is one of ROUTES; a refusal where it cannot be read or accounted.

    `media` and `shares` as in Terms. `engine`: whose reading of the limits counts.
    """
    try:
        return _read(ROUTES[route], body, Terms(media, shares), engine)
    except PromptError as error:
        return refuse(error.code, str(error), param=error.param)
    except (ScanError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as unread:
        reason, param = _explain(unread)
        text = f"The body is not a request that this route takes: {reason}. Correct it and send it again."
        return refuse(Code.MALFORMED_REQUEST, text, param=param)


def _explain(error: Exception) -> tuple[str, str | None]:
    """What is wrong, and with which field."""
    if isinstance(error, ScanError):
        return str(error), error.key[:MAX_QUOTED] or None
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


def _read(route: _Route, text: bytes, terms: Terms, engine: Engine) -> Shape | Refusal:
    try:
        fields = read_object(text)
    except msgspec.ValidationError:
        route.decoder.decode(text)  # says which of its fields it is, where it is one of them
        raise
    body = route.decoder.decode(text)
    if not route.suspects.isdisjoint(fields):
        for name, reason in route.unsupported.items():
            if not _is_off(fields.get(name)):
                return _unsupported(name, reason)
    if "chat_template_kwargs" in fields:
        refuse_own_template(body.chat_template_kwargs)
    limit, options, stream = route.limit(body, engine), body.stream_options, body.stream is True
    return Shape(
        route.kind,
        body.model or "",
        stream,
        route.prompts(body, fields, terms),
        route.copies(body),
        None if limit is None else Tokens(limit),
        body.cache_salt or "",
        bytes(body.priority) if "priority" in fields else b"",
        options is not None and bool(options.include_usage),
        tuple(fields),
        stream and not hides_output(fields),
    )


def _is_off(value: object) -> bool:
    """Whether a field is left out or switched off."""
    return value is None or value is False or (type(value) is msgspec.Raw and bytes(value) in {b"null", b"false"})


def _unsupported(name: str, reason: str) -> Refusal:
    text = f"The field {name!r} is not supported under a quota: {reason}. Leave it out."
    return refuse(Code.NOT_SUPPORTED_UNDER_QUOTA, text, param=name)
