"""How a refusal is written: the error object of the API that the route belongs to, as a body or as a final event.

Decides the bytes. Pure.

Invariants:

1. A body and a final event of the same refusal carry the same code and the same sentence.
2. A final event is never a successful end: there is no `[DONE]` and no `message_stop`.

It does not know the headers: that is `headers`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvquota_sidecar.refusals.codes import TABLE
from kvquota_sidecar.refusals.refusal import Refusal

ANTHROPIC_ROUTES: Final = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
_NAMED_EVENTS: Final = ANTHROPIC_ROUTES | {"/v1/responses"}  # routes whose stream names its events


def body(refusal: Refusal, route: str) -> bytes:
    """The JSON body of a refusal; `route` is the path of the request ("/v1/messages" speaks Anthropic's)."""
    return msgspec.json.encode(_envelope(refusal, route, {}))


def final_event(refusal: Refusal, route: str) -> bytes:
    """The last event of a stream that is ended after its first byte: the body's object, and whether and when
    (milliseconds) a retry may help, since the headers are gone by then."""
    told: dict[str, Any] = {"retryable": refusal.retryable}
    if refusal.retry_after is not None:
        told["retry_after_ms"] = round(refusal.retry_after * 1000)
    name = b"event: error\n" if route in _NAMED_EVENTS else b""
    return name + b"data: " + msgspec.json.encode(_envelope(refusal, route, told)) + b"\n\n"


def _envelope(refusal: Refusal, route: str, told: dict[str, Any]) -> dict[str, Any]:
    entry = TABLE[refusal.code]
    if route in ANTHROPIC_ROUTES:
        error = {"type": entry.anthropic_type, "message": refusal.message, "code": refusal.code, **told}
        return {"type": "error", "error": error}
    error = {"message": refusal.message, "type": entry.openai_type, "param": refusal.param, "code": refusal.code}
    return {"error": {**error, **told}}
