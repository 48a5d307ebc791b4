"""The degradation ladder of a pool: what is done, and from which pressure on, when memory runs short.

Decides the fields, their defaults and their order. Pure. Where a pool stands on the ladder is decided in the sidecar.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt

from kvquota_api.resource import LocalRef, Model, TokenCount, WholePercent
from kvquota_api.rules import Rule


class RungSpec(Model):
    """When a rung of the ladder begins and ends, in percent of the pool's pressure (100 less the free percent)."""

    enter_percent: WholePercent
    """The rung begins at this percent of pressure."""
    exit_percent: WholePercent
    """The rung ends below this percent of pressure, after the dwell time; less than enterPercent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.exitPercent < self.enterPercent",
            message="exitPercent must be less than enterPercent, or the rung would begin and end at once: lower it",
            holds=lambda rung: rung.exit_percent < rung.enter_percent,
            field="exitPercent",
        ),
    )


class TruncateSpec(RungSpec):
    """Long requests of tenants that allow it lose their oldest turns or get a smaller output limit, and are told."""

    strategy: Literal["DropOldestTurns", "LimitOutput"] = "DropOldestTurns"
    """DropOldestTurns: keep the system prompt and the newest turns. LimitOutput: lower the output limit."""
    max_context_tokens: TokenCount
    """What is left of a long request, in tokens of prompt and output."""


class FallbackSpec(RungSpec):
    """Under pressure that lasts, tenants that allow it get a shorter context, then the smaller model."""

    after_seconds: Annotated[StrictInt, Field(ge=0, le=86_400)] = 60
    """Seconds that the pressure must last."""
    context_tokens: TokenCount | None = None
    """The shorter context, in tokens. Default: the context stays as it is."""
    model_pool_ref: LocalRef | None = None
    """The ModelPool (kvmp) of the smaller model, in the same namespace. Default: no other model is asked."""

    rules = (
        *RungSpec.rules,
        Rule(
            cel="has(self.contextTokens) || has(self.modelPoolRef)",
            message="fallback needs something to fall back to: set contextTokens, modelPoolRef or both",
            holds=lambda rung: rung.context_tokens is not None or rung.model_pool_ref is not None,
        ),
    )


class PoolDegradation(Model):
    """The ladder. Thresholds are percent of the pool's pressure, each rung begins no earlier than the one before."""

    guarantee_reserve_percent: WholePercent = 20
    """Percent of the pool that over-soft work leaves free for guarantees that others have not used yet. 100 lends
    nothing that somebody may still claim."""
    eviction_wait_seconds: Annotated[StrictInt, Field(ge=0, le=60)] = 2
    """Seconds that a guaranteed request waits for memory of ended requests before it is refused. At least twice what
    the engine needs to free memory."""
    min_dwell_seconds: Annotated[StrictInt, Field(ge=0, le=3600)] = 10
    """Seconds that a rung lasts at least, and for which nothing is lent after an eviction."""
    shed: RungSpec = RungSpec(enter_percent=85, exit_percent=80)
    """Refuse new over-soft work at once; lowest priority first. Softs sum to at most enterPercent of the pool."""
    evict: RungSpec = RungSpec(enter_percent=92, exit_percent=86)
    """End over-soft work for a guaranteed request that waits; work inside soft is never touched."""
    truncate: TruncateSpec | None = None
    """Shorten long requests of tenants that allow it. Default: never."""
    fallback: FallbackSpec | None = None
    """Answer tenants that allow it with less under pressure that lasts. Default: never."""

    @property
    def fallback_pool(self) -> str | None:
        """Name of the ModelPool to fall back to; None where there is none."""
        if self.fallback is None or self.fallback.model_pool_ref is None:
            return None
        return self.fallback.model_pool_ref.name

    rules = (
        Rule(
            cel="self.shed.enterPercent <= self.evict.enterPercent",
            message="evict must not begin before shed: raise evict.enterPercent or lower shed.enterPercent",
            holds=lambda ladder: ladder.shed.enter_percent <= ladder.evict.enter_percent,
            field="evict.enterPercent",
        ),
        Rule(
            cel="!has(self.truncate) || self.evict.enterPercent <= self.truncate.enterPercent",
            message="truncate must not begin before evict: raise truncate.enterPercent or lower evict.enterPercent",
            holds=lambda ladder: ladder.truncate is None or ladder.evict.enter_percent <= ladder.truncate.enter_percent,
            field="truncate.enterPercent",
        ),
        Rule(
            cel=(
                "!has(self.fallback) || (has(self.truncate) ? self.truncate.enterPercent : self.evict.enterPercent)"
                " <= self.fallback.enterPercent"
            ),
            message="fallback must not begin before the rungs above it: raise fallback.enterPercent",
            holds=lambda ladder: (
                ladder.fallback is None
                or (ladder.truncate or ladder.evict).enter_percent <= ladder.fallback.enter_percent
            ),
            field="fallback.enterPercent",
        ),
    )
