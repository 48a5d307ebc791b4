"""Shares of a pool, as a tier and a TenantQuota both state them.

Decides the shape of a share (percent, bytes or tokens), what is sensible in one, and what a status says of KV memory.
Pure. What a share is worth in blocks is decided with the plan at hand, by the operator.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from kvquota_api.amounts import Bytes, Hundredths, Tokens, exact_quantity, parse_percent, parse_quantity
from kvquota_api.resource import Count, Model, Percent, Quantity, StatusModel
from kvquota_api.rules import Rule, exactly_one_of

Enforcement = Literal["Enforce", "Shadow"]
Priority = Annotated[StrictInt, Field(ge=0, le=1000)]
MaxConcurrentRequests = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
MaxContextTokens = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]


class Share(Model):
    """A part of one pod's KV pool: exactly one of percent, bytes, tokens."""

    percent: Percent | None = None
    """Percent of the pool's usable blocks with at most two decimals; write decimals in quotes: "2.5"."""
    bytes: Quantity | None = None
    """Bytes of the KV cache on one GPU, as a quantity: 8Gi."""
    tokens: Count | None = None
    """Tokens of context that fit at the same time; rounded up to whole blocks."""

    one_value = True
    rules = (exactly_one_of("percent", "bytes", "tokens"),)

    @property
    def hundredths(self) -> Hundredths | None:
        """The percent in hundredths; None when the share is stated otherwise."""
        return None if self.percent is None else parse_percent(self.percent)

    @property
    def byte_count(self) -> Bytes | None:
        """The bytes as a number; None when the share is stated otherwise."""
        return None if self.bytes is None else parse_quantity(self.bytes)

    @property
    def token_count(self) -> Tokens | None:
        """The tokens; None when the share is stated otherwise."""
        return None if self.tokens is None else Tokens(self.tokens)

    def exceeds(self, other: Share) -> bool:
        """Whether this share is larger than `other`, where both are stated in the same unit; else False."""
        if self.bytes is not None and other.bytes is not None:
            return exact_quantity(self.bytes) > exact_quantity(other.bytes)
        pairs = ((self.hundredths, other.hundredths), (self.token_count, other.token_count))
        return any(mine is not None and theirs is not None and mine > theirs for mine, theirs in pairs)


class KvQuota(Model):
    """What a tenant is guaranteed of the KV cache and how much it may take."""

    soft: Share | None = None
    """The guaranteed share: work inside it is never ended for others. Default: that of the tier, else nothing."""
    hard: Share | None = None
    """The ceiling: a request that would pass it is refused. Default: that of the tier, else the whole pool."""

    rules = (
        Rule(
            cel=(
                "!has(self.soft) || !has(self.hard) || ("
                "!(has(self.soft.percent) && has(self.hard.percent)"
                " && double(string(self.soft.percent)) > double(string(self.hard.percent)))"
                " && !(has(self.soft.bytes) && has(self.hard.bytes)"
                " && quantity(string(self.soft.bytes)).isGreaterThan(quantity(string(self.hard.bytes))))"
                " && !(has(self.soft.tokens) && has(self.hard.tokens) && self.soft.tokens > self.hard.tokens))"
            ),
            message="soft must not be more than hard: lower soft or raise hard",
            holds=lambda kv: kv.soft is None or kv.hard is None or not kv.soft.exceeds(kv.hard),
        ),
    )


class KvAmount(StatusModel):
    """An amount of KV cache."""

    blocks: Count
    """In blocks of the engine: the unit in which all is counted."""
    tokens: Count
    """The same in tokens of context."""


class RecentCounts(StatusModel):
    """What happened in the last ten minutes, over all pods that report."""

    admitted: Count
    """Requests that were let through."""
    rejected_total: Count
    """Requests that were refused, for whatever reason."""
    rejected: dict[str, Count] = Field(default_factory=dict, max_length=64)
    """Refused requests by refusal code."""
    would_reject: dict[str, Count] = Field(default_factory=dict, max_length=64)
    """Requests that Shadow let through and Enforce would have refused, by refusal code."""
    evicted: Count
    """Running requests that were ended to make room for others."""
    degraded: dict[str, Count] = Field(default_factory=dict, max_length=64)
    """Requests that were answered with less than they asked for, by rung of the ladder."""
