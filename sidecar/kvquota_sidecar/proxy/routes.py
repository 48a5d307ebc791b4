"""Which requests there are. Everything else is refused.

Decides what a method and a path mean. Pure.

Invariants:

1. The match is exact: no prefix, no pattern, no trailing slash, no other method; so the engine's routes for its
   administrators (/pause, /sleep, /reset_prefix_cache, /abort_requests, /v1/load_lora_adapter, ...) are closed without
   being named. HEAD is open where GET is.
2. Every route that makes the engine's KV cache hold something is accounted for.

Of the routes of vLLM 0.32 that generate or pool, these stay closed:

* /inference/v1/generate, /generative_scoring, /v1/systemone: the engine's own formats, whose parameters (transfer of
  cache, labels, sampling within) say in other words how much is made. /v1/completions takes token ids as well.
* /v1/audio/transcriptions, /v1/audio/translations: forms, not JSON, and only the engine knows an audio's tokens.
* /v1/realtime: a WebSocket, which outlives every answer.
* /v1/responses/{id}, /v1/responses/{id}/cancel: of stored responses, which are refused.
* /v2/embed, /cohere/v2/chat: Cohere's dialect; /v1/embeddings and /v1/chat/completions do the same.
* /invocations: whatever route its body looks like, so it cannot be told which.
* */render, */derender: they make no KV cache, but hand out the engine's inner form of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvquota_sidecar.proxy.metering import Dialect

Purpose = Literal["Generate", "Read", "Health", "OwnUsage"]


@dataclass(frozen=True, slots=True)
class Route:
    """`purpose`: Generate is all that takes KV cache, pooling too. `dialect`: in which words its answers speak of
    tokens, and its errors of what went wrong."""

    method: str
    path: str
    purpose: Purpose
    dialect: Dialect = "OpenAI"


_ROUTES: Final = (
    Route("POST", "/v1/chat/completions", "Generate"),
    Route("POST", "/v1/chat/completions/batch", "Generate"),
    Route("POST", "/v1/completions", "Generate"),
    Route("POST", "/v1/responses", "Generate", "Responses"),
    Route("POST", "/v1/messages", "Generate", "Anthropic"),
    Route("POST", "/v1/embeddings", "Generate"),
    Route("POST", "/pooling", "Generate"),
    Route("POST", "/classify", "Generate"),
    Route("POST", "/score", "Generate"),
    Route("POST", "/v1/score", "Generate"),
    Route("POST", "/rerank", "Generate"),
    Route("POST", "/v1/rerank", "Generate"),
    Route("POST", "/v2/rerank", "Generate"),
    Route("POST", "/tokenize", "Read"),
    Route("POST", "/detokenize", "Read"),
    Route("POST", "/v1/messages/count_tokens", "Read", "Anthropic"),
    Route("GET", "/v1/models", "Read"),
    Route("GET", "/v1/usage", "OwnUsage"),
    Route("GET", "/health", "Health"),
)
_BY_METHOD: Final = {
    method: {route.path: route for route in _ROUTES if route.method == method}
    for method in {route.method for route in _ROUTES}
}
PATHS: Final = frozenset(route.path for route in _ROUTES)


def find_route(method: str, path: str) -> Route | None:
    """The route of a request, or None: `route_not_allowed`."""
    by_path = _BY_METHOD.get("GET" if method == "HEAD" else method)
    return None if by_path is None else by_path.get(path)
