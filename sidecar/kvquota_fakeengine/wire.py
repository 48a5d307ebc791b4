"""The JSON documents that vLLM 0.32 answers with: field by field the same, absent and null told apart as it does.

It does not know when they are sent, nor how they are cut into bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvquota_fakeengine.requests import Refused
from kvquota_fakeengine.settings import EngineSettings

Document = dict[str, Any]

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-fake"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Of one answer or one choice: `cached` is None where the engine does not tell."""

    prompt: int
    output: int
    cached: int | None
    newly_cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one choice got since its last piece, or all of it."""

    index: int
    text: str
    finish: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all documents of one answer share; `created` is UTC seconds."""

    id: str
    created: int
    model: str

    def document(self, kind: str, choices: list[Document]) -> Document:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class Dialect(Protocol):
    """How a route words its answers."""

    id_prefix: str

    def opening(self, envelope: Envelope, choices: int) -> list[Document]:
        """Chunks before the first token."""

    def chunk(self, envelope: Envelope, piece: Piece) -> Document: ...

    def running_usage(self, counts: TokenCounts) -> Document: ...

    def final_chunk(self, envelope: Envelope, counts: TokenCounts) -> Document: ...

    def whole(self, envelope: Envelope, pieces: Sequence[Piece], counts: TokenCounts | None) -> Document: ...


class ChatDialect:
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl"
    _chunk = "chat.completion.chunk"

    def opening(self, envelope: Envelope, choices: int) -> list[Document]:
        return [self._role_chunk(envelope, index) for index in range(choices)]

    def _role_chunk(self, envelope: Envelope, index: int) -> Document:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return envelope.document(self._chunk, [choice]) | {"prompt_token_ids": None, "prompt_text": None}

    def chunk(self, envelope: Envelope, piece: Piece) -> Document:
        delta = {"content": piece.text}
        choice: Document = {"index": piece.index, "delta": delta, "logprobs": None, "finish_reason": piece.finish}
        if piece.finish is not None:
            choice["stop_reason"] = None
        return envelope.document(self._chunk, [choice | {"token_ids": None}])

    def running_usage(self, counts: TokenCounts) -> Document:
        return _counted(counts) | {"completion_tokens_details": None}

    def final_chunk(self, envelope: Envelope, counts: TokenCounts) -> Document:
        usage = _counted(counts)
        if counts.cached is not None:
            details = {"cached_tokens": counts.cached, "created_cache_tokens": counts.newly_cached}
            usage["prompt_tokens_details"] = details
        return envelope.document(self._chunk, []) | {"usage": usage, "system_fingerprint": FINGERPRINT}

    def whole(self, envelope: Envelope, pieces: Sequence[Piece], counts: TokenCounts | None) -> Document:
        choices = [self._choice(piece) for piece in pieces]
        usage = _full_usage(counts, created=counts.newly_cached) if counts else None
        tail = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return envelope.document("chat.completion", choices) | _common_tail(usage) | tail | _UNUSED

    def _choice(self, piece: Piece) -> Document:
        empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message = {"role": "assistant", "content": piece.text} | empty
        ending = {"finish_reason": piece.finish, "stop_reason": None, "token_ids": None, "routed_experts": None}
        return {"index": piece.index, "message": message, "logprobs": None} | ending


class CompletionDialect:
    """`/v1/completions`."""

    id_prefix = "cmpl"
    _kind = "text_completion"

    def opening(self, envelope: Envelope, choices: int) -> list[Document]:  # noqa: ARG002 - the port's shape
        return []

    def chunk(self, envelope: Envelope, piece: Piece) -> Document:
        choice = {"index": piece.index, "text": piece.text, "logprobs": None, "finish_reason": piece.finish}
        nothing = dict.fromkeys(("stop_reason", "prompt_token_ids", "token_ids"))
        return envelope.document(self._kind, [choice | nothing])

    def running_usage(self, counts: TokenCounts) -> Document:
        return _counted(counts)

    def final_chunk(self, envelope: Envelope, counts: TokenCounts) -> Document:
        usage = _counted(counts)
        if counts.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": counts.cached}
        return envelope.document(self._kind, []) | {"usage": usage, "system_fingerprint": FINGERPRINT}

    def whole(self, envelope: Envelope, pieces: Sequence[Piece], counts: TokenCounts | None) -> Document:
        choices = [self._choice(piece) for piece in pieces]
        usage = _full_usage(counts, created=None) if counts else None
        return envelope.document(self._kind, choices) | _common_tail(usage) | _UNUSED

    def _choice(self, piece: Piece) -> Document:
        choice = {"index": piece.index, "text": piece.text, "logprobs": None, "finish_reason": piece.finish}
        nothing = ("stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts")
        return choice | dict.fromkeys(nothing)


_UNUSED: Document = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _counted(counts: TokenCounts) -> Document:
    total = counts.prompt + counts.output
    return {"prompt_tokens": counts.prompt, "total_tokens": total, "completion_tokens": counts.output}


def _full_usage(counts: TokenCounts, created: int | None) -> Document:
    details: Document | None = None
    if counts.cached is not None:
        details = {"cached_tokens": counts.cached, "created_cache_tokens": created, "multimodal_tokens": None}
    return _counted(counts) | {"prompt_tokens_details": details, "completion_tokens_details": None}


def _common_tail(usage: Document | None) -> Document:
    return {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}


def refusal(refused: Refused) -> Document:
    if refused.kind is None:
        return {"detail": refused.message}
    error = {"message": refused.message, "type": refused.kind, "param": refused.param, "code": refused.status}
    return {"error": error}


def model_list(settings: EngineSettings, now: float) -> Document:
    created = int(now)
    switches = {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
    switches |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
    permission = {"id": f"modelperm-{settings.model}", "object": "model_permission", "created": created}
    permission |= switches | {"organization": "*", "group": None, "is_blocking": False}
    card = {"id": settings.model, "object": "model", "created": created, "owned_by": "vllm", "root": settings.model}
    card |= {"parent": None, "max_model_len": settings.max_model_len, "permission": [permission]}
    return {"object": "list", "data": [card]}


def openapi(routes: Sequence[tuple[str, str]]) -> Document:
    """Which (path, method) there are, without saying what they take."""
    paths: dict[str, Document] = {}
    for path, method in routes:
        paths.setdefault(path, {})[method.lower()] = {}
    return {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": paths}


def tokenized(tokens: Sequence[int], pieces: Sequence[str] | None, settings: EngineSettings) -> Document:
    return {
        "count": len(tokens),
        "max_model_len": settings.max_model_len,
        "tokens": list(tokens),
        "token_strs": None if pieces is None else list(pieces),
    }
