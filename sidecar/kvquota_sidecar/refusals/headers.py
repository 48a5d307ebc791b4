"""The headers that kvquota adds to an answer: the tenant's room, and on a refusal whether and when to retry.

Decides names and values. Pure.

Invariants:

1. Every answer of a known tenant carries its room, good or refused.
2. `retry-after` is present exactly when a retry can help, in whole seconds from 1 to 60, never less than
   `retry-after-ms`.

It does not know `content-type` and `content-length`: those belong to who writes the answer.
"""

from __future__ import annotations

import math
from typing import Final

from kvquota_sidecar.refusals.refusal import Refusal
from kvquota_sidecar.refusals.room import Room

KV_UNIT: Final = "kv-tokens"  # a quota unit of ours: none of the draft's registered units counts tokens held
CONCURRENCY_UNIT: Final = "concurrent-requests"  # registered by draft-ietf-httpapi-ratelimit-headers-10

Headers = tuple[tuple[str, str], ...]


def admitted_headers(room: Room | None) -> Headers:
    """Headers of an answer that was not refused; `room` None: nothing is known of the tenant."""
    return () if room is None else _room_headers(room, wait=None)


def refused_headers(refusal: Refusal, room: Room | None) -> Headers:
    """Headers of a refusal; `room` None: it was refused before its tenant was known."""
    wait = None if refusal.retry_after is None else math.ceil(refusal.retry_after)
    retry: Headers = (("x-should-retry", "true" if refusal.retryable else "false"),)
    if refusal.retry_after is not None:
        retry += (("retry-after", str(wait)), ("retry-after-ms", str(round(refusal.retry_after * 1000))))
    return (("x-kvquota-code", refusal.code.value), *retry, *(() if room is None else _room_headers(room, wait)))


def _room_headers(room: Room, wait: int | None) -> Headers:
    return (
        ("ratelimit-policy", ", ".join(f'"{name}";q={quota};qu="{unit}"' for name, unit, quota, _ in _quotas(room))),
        ("ratelimit", ", ".join(_remaining(name, left, wait) for name, _, _, left in _quotas(room))),
        ("x-kvquota-used-tokens", str(room.tokens(room.reserved))),
        ("x-kvquota-soft-tokens", str(room.tokens(room.soft))),
        ("x-kvquota-hard-tokens", str(room.tokens(room.hard))),
        ("x-kvquota-in-flight", str(room.in_flight)),
        ("x-kvquota-rung", room.rung),
    )


def _quotas(room: Room) -> tuple[tuple[str, str, int, int], ...]:
    held, hard = room.tokens(room.reserved), room.tokens(room.hard)
    kv = ("kv", KV_UNIT, int(hard), max(0, hard - held))
    if room.max_concurrent is None:
        return (kv,)
    left = max(0, room.max_concurrent - room.in_flight)
    return (kv, ("concurrency", CONCURRENCY_UNIT, room.max_concurrent, left))


def _remaining(name: str, left: int, wait: int | None) -> str:
    return f'"{name}";r={left}' + ("" if wait is None else f";t={wait}")
