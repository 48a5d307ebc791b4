"""What a tenant is told about itself by `GET /v1/usage` on the traffic port, for people: everything in tokens.

Decides the shape of the document. Pure.
"""

from __future__ import annotations

import msgspec

from kvquota_api.amounts import Blocks
from kvquota_api.usage import Counts, Refusal, Rung, TenantUsage
from kvquota_sidecar.refusals.room import Room


class OwnUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Tokens of KV cache on this replica; `reserved` counts against `hard`, `used` is what is filled of it so far:
    of what nobody sees (an answer that is not streamed) nothing in its first second, and then all that was reserved.

    `total` since the sidecar started, `recent` of ten minutes.
    """

    tenant: str
    unit: str
    soft: int
    hard: int
    reserved: int
    used: int
    over_soft: int
    in_flight: int
    max_concurrent_requests: int | None = None
    rung: Rung
    pressure_percent: float
    total: Counts
    recent: Counts
    last_refusal: Refusal | None = None


def own_usage(usage: TenantUsage, room: Room) -> bytes:
    """The document as JSON."""

    def tokens(blocks: int) -> int:
        return room.tokens(Blocks(blocks))

    return msgspec.json.encode(
        OwnUsage(
            tenant=usage.id,
            unit="tokens",
            soft=tokens(room.soft),
            hard=tokens(room.hard),
            reserved=tokens(usage.reserved),
            used=tokens(usage.used),
            over_soft=tokens(usage.over_soft),
            in_flight=usage.in_flight,
            max_concurrent_requests=room.max_concurrent,
            rung=room.rung,
            pressure_percent=round(room.pressure_percent, 1),
            total=usage.total,
            recent=usage.recent,
            last_refusal=usage.last_refusal,
        )
    )
