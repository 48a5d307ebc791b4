"""Every refusal there is: its code, its status, and what it says when nothing more is known.

Decides the status, the error types and whether a retry can help, for each code. Pure.

Invariants:

1. A code has one status, always; whether a retry can help follows from the code alone.
2. Every message says what the reader can do.

It does not know why a request is refused (`admission`, `proxy`) nor how a refusal is written (`wire`, `headers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Code(StrEnum):
    """What a refusal is called, in bodies, headers, counters and status."""

    TENANT_CONCURRENCY_EXCEEDED = "tenant_concurrency_exceeded"
    TENANT_KV_QUOTA_EXCEEDED = "tenant_kv_quota_exceeded"
    KV_POOL_CONTENDED = "kv_pool_contended"
    KV_POOL_EXHAUSTED = "kv_pool_exhausted"
    KV_EVICTED = "kv_evicted"
    RECEIVING_TOO_MUCH = "receiving_too_much"
    STARTING = "starting"
    DRAINING = "draining"
    NOT_CONFIGURED = "not_configured"
    REQUEST_EXCEEDS_KV_QUOTA = "request_exceeds_kv_quota"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNKNOWN_TENANT = "unknown_tenant"
    AMBIGUOUS_IDENTITY = "ambiguous_identity"
    ROUTE_NOT_ALLOWED = "route_not_allowed"
    NOT_SUPPORTED_UNDER_QUOTA = "not_supported_under_quota"
    MALFORMED_REQUEST = "malformed_request"
    REQUEST_TIMEOUT = "request_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    EXPECTATION_FAILED = "expectation_failed"
    HEADERS_TOO_LARGE = "headers_too_large"
    ENGINE_ERROR = "engine_error"
    ENGINE_TIMEOUT = "engine_timeout"


@dataclass(frozen=True, slots=True)
class Entry:
    """`openai_type` and `anthropic_type`: the word that the error object of each API has for it."""

    status: int
    openai_type: str
    anthropic_type: str
    message: str
    retryable: bool


def _permanent(status: int, message: str, *, anthropic_type: str = "invalid_request_error") -> Entry:
    return Entry(status, "invalid_request_error", anthropic_type, message, retryable=False)


def _limited(message: str) -> Entry:
    return Entry(429, "rate_limit_error", "rate_limit_error", message, retryable=True)


def _unavailable(status: int, message: str, *, anthropic_type: str = "overloaded_error") -> Entry:
    return Entry(status, "server_error", anthropic_type, message, retryable=True)


def _unknown(message: str) -> Entry:
    return Entry(401, "authentication_error", "authentication_error", message, retryable=False)


TABLE: Final[Mapping[Code, Entry]] = MappingProxyType(
    {
        Code.TENANT_CONCURRENCY_EXCEEDED: _limited(
            "This tenant has as many requests running as it may. Wait for one to end, or lower the concurrency."
        ),
        Code.TENANT_KV_QUOTA_EXCEEDED: _limited(
            "This tenant holds as much KV cache as it may. Shorten the input or lower max_tokens or concurrency."
        ),
        Code.KV_POOL_CONTENDED: _limited(
            "The KV cache is short and this request goes beyond the tenant's guaranteed share. Retry later."
        ),
        Code.KV_POOL_EXHAUSTED: _unavailable(503, "The KV cache has no room at the moment. Retry later."),
        Code.KV_EVICTED: _unavailable(
            503, "This request was ended to make room for guaranteed work of another tenant. Retry later."
        ),
        Code.RECEIVING_TOO_MUCH: _unavailable(
            503, "This replica is receiving as much at once as it may hold. Retry in a few seconds."
        ),
        Code.STARTING: _unavailable(
            503, "The engine still works for clients of before this program started. Retry in a few seconds."
        ),
        Code.DRAINING: _unavailable(503, "This replica is shutting down. Retry: another replica will answer."),
        Code.NOT_CONFIGURED: _unavailable(
            503,
            "This replica has not received its quotas yet."
            " Retry in a few seconds; if it lasts, tell whoever runs this cluster.",
        ),
        Code.REQUEST_EXCEEDS_KV_QUOTA: _permanent(
            400, "This request can never fit the tenant's quota. Shorten the input or lower max_tokens or n."
        ),
        Code.CONTEXT_LENGTH_EXCEEDED: _permanent(
            400, "This request is longer than the context limit. Shorten the input or lower max_tokens."
        ),
        Code.UNKNOWN_TENANT: _unknown("No tenant is known by these credentials. Send an API key of this model pool."),
        Code.AMBIGUOUS_IDENTITY: _permanent(
            400, "The request names its sender in ways that disagree. Send exactly one credential."
        ),
        Code.ROUTE_NOT_ALLOWED: _permanent(
            404,
            "This route is not served here. Use POST /v1/chat/completions, /v1/completions, /v1/responses,"
            " /v1/messages, /v1/embeddings, /v1/rerank, /v1/score or /tokenize, or GET /v1/models.",
            anthropic_type="not_found_error",
        ),
        Code.NOT_SUPPORTED_UNDER_QUOTA: _permanent(
            400, "The request uses what cannot be accounted under a quota. Leave it out."
        ),
        Code.MALFORMED_REQUEST: _permanent(400, "The request cannot be read. Correct it and send it again."),
        Code.REQUEST_TIMEOUT: _permanent(
            408, "The request did not arrive in time. Send it faster.", anthropic_type="timeout_error"
        ),
        Code.REQUEST_TOO_LARGE: _permanent(
            413, "The request body is too large. Send a shorter one.", anthropic_type="request_too_large"
        ),
        Code.UNSUPPORTED_ENCODING: _permanent(
            415, "The request body is compressed or is not JSON. Send plain application/json."
        ),
        Code.EXPECTATION_FAILED: _permanent(417, "Only 'Expect: 100-continue' is understood. Leave the header out."),
        Code.HEADERS_TOO_LARGE: _permanent(431, "The request headers are too large. Send fewer or shorter ones."),
        Code.ENGINE_ERROR: _unavailable(
            502, "The engine failed while it served this request. Retry later.", anthropic_type="api_error"
        ),
        Code.ENGINE_TIMEOUT: _unavailable(
            504, "The engine did not answer in time. Retry later.", anthropic_type="timeout_error"
        ),
    }
)
