"""The headers that kvquota adds to an answer: the tenant's room, and on a refusal whether and when to retry.

Decides names and values. Pure.

Invariants:

1. Every answer to a known tenant carries its room, good or refused. Known is whom a good head names, or the beginning
   of one that is too large. Of what is no HTTP, or not here in time, nobody looks who sent it.
2. `retry-after` is present exactly when a retry can help, in whole seconds from 1 to 60, never less than
   `retry-after-ms`.
3. A 401 names the scheme that it is about.

It does not know `content-type` and `content-length`: those belong to who writes the answer.
"""

from __future__ import annotations

import math
from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_api.memory.worth import Worth
from kvquota_sidecar.refusals.refusal import Refusal
from kvquota_sidecar.refusals.room import Allowance, Room

KV_UNIT: Final = "kv-tokens"  # a quota unit of ours: none of the draft's registered units counts tokens held
CONCURRENCY_UNIT: Final = "concurrent-requests"  # registered by draft-ietf-httpapi-ratelimit-headers-10
_UNAUTHORIZED: Final = 401
_CHALLENGE: Final = b"www-authenticate: Bearer\r\n"  # RFC 9110, section 11.6.1: every 401 has one


def allowance_of(soft: Blocks, hard: Blocks, worth: Worth, max_concurrent: int | None) -> Allowance:
    """What a tenant may have, with what its answers say of that."""
    soft_tokens, hard_tokens = worth.tokens(soft), worth.tokens(hard)
    policy = f'ratelimit-policy: "kv";q={hard_tokens};qu="{KV_UNIT}"'
    if max_concurrent is not None:
        policy += f', "concurrency";q={max_concurrent};qu="{CONCURRENCY_UNIT}"'
    amounts = f"x-kvquota-soft-tokens: {soft_tokens}\r\nx-kvquota-hard-tokens: {hard_tokens}\r\n"
    return Allowance(soft, hard, worth.rate, max_concurrent, hard_tokens, policy + "\r\n", amounts)


def admitted_fields(room: Room | None) -> bytes:
    """Header lines of an answer that was not refused; `room` None: nothing is known of the tenant."""
    return b"" if room is None else _room_fields(room, "")


def refused_fields(refusal: Refusal, room: Room | None) -> bytes:
    """Header lines of a refusal; `room` None: it was refused before its tenant was known."""
    code = refusal.code.encode()
    if refusal.retry_after is None:
        retry, wait = b"x-should-retry: false\r\n", ""
    else:
        seconds = math.ceil(refusal.retry_after)
        told = (seconds, round(refusal.retry_after * 1000))
        retry = b"x-should-retry: true\r\nretry-after: %d\r\nretry-after-ms: %d\r\n" % told
        wait = f";t={seconds}"
    lines = b"x-kvquota-code: %b\r\n%b%b" % (code, retry, b"" if room is None else _room_fields(room, wait))
    return lines + _CHALLENGE if refusal.status == _UNAUTHORIZED else lines


def _room_fields(room: Room, wait: str) -> bytes:
    """Numbers and words of this program only: nothing can be put into them."""
    allowed, held, in_flight = room.allowance, room.tokens(room.reserved), room.in_flight
    hard, most = allowed.hard_tokens, allowed.max_concurrent
    more = "" if most is None else f', "concurrency";r={most - in_flight if most > in_flight else 0}{wait}'
    return (
        f'{allowed.policy}ratelimit: "kv";r={hard - held if hard > held else 0}{wait}{more}\r\n'
        f"x-kvquota-used-tokens: {held}\r\n"
        f"{allowed.amounts}x-kvquota-in-flight: {in_flight}\r\nx-kvquota-rung: {room.rung}\r\n"
    ).encode()
