"""The status of a ModelPool: the plan in force, what was measured, and what is to be done.

Decides its fields. Pure. Everything is optional: a number that nobody measured is missing, never 0.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvquota_api.conditions import Condition
from kvquota_api.list_map import ListMap
from kvquota_api.quota import KvAmount, RecentCounts
from kvquota_api.resource import Count, Quantity, StatusModel, TokenCount
from kvquota_api.words import ReasonWord

PercentCount = Annotated[int, Field(ge=0, le=100)]


class MemoryParts(StatusModel):
    """The parts of one card, in bytes."""

    weights: Quantity | None = None
    """Bytes of the model's weights."""
    activation: Quantity | None = None
    """Bytes at the peak of what a step needs beside weights and KV cache."""
    kv_pool: Quantity | None = None
    """Bytes of the KV cache."""
    other: Quantity | None = None
    """Bytes of CUDA context, graphs and communication buffers."""
    safety_margin: Quantity | None = None
    """Bytes that are left alone."""


class PoolMemory(StatusModel):
    """The partition of one card."""

    planned: MemoryParts | None = None
    """As planned from the spec."""
    measured: MemoryParts | None = None
    """As measured in the running engine."""


class PoolKv(StatusModel):
    """The KV cache. Amounts are sums over the pods that report, except cap, which is of one engine."""

    bytes_per_token: Count | None = None
    """Bytes of one token on one GPU."""
    block_tokens: Count | None = None
    """Tokens in one block."""
    bytes_per_block: Count | None = None
    """Bytes of one block on one GPU."""
    cap: KvAmount | None = None
    """The planned hard cap of one engine."""
    measured: KvAmount | None = None
    """What the engines came up with."""
    reserved: KvAmount | None = None
    """Promised to running requests."""
    used: KvAmount | None = None
    """Filled by running requests so far."""
    cached: KvAmount | None = None
    """Kept by the engine from finished requests for prefix hits; reclaimable, charged to nobody."""
    unattributed: KvAmount | None = None
    """In use in the engine beyond what the sidecars know of."""
    accounting: Literal["Estimated", "Exact"] | None = None
    """Exact: counted inside the engine. Estimated: from the text and the engine's gauges."""


class Fragmentation(StatusModel):
    """Memory that is taken and does nothing."""

    tail_waste_tokens: Count | None = None
    """Empty token places in the last blocks of running requests."""
    reserved_unused: KvAmount | None = None
    """Promised and not filled yet."""
    allocator_unused: Quantity | None = None
    """Bytes that the engine's allocator holds and has not handed out."""
    allocator_largest_free: Quantity | None = None
    """Bytes of the largest free piece among them."""
    allocator_inactive_split: Quantity | None = None
    """Bytes in split pieces that cannot be given back."""
    unplanned: Quantity | None = None
    """Bytes of the card that are in use and in no part of the plan."""


class CapacityLine(StatusModel):
    """How many requests of one length fit at the same time, under the plan."""

    context_tokens: TokenCount
    """Tokens of prompt and output of each request."""
    requests: Count
    """Requests that fit at the same time in one engine."""


class PodCounts(StatusModel):
    """The pods of the pool."""

    expected: Count
    """Pods that the selector matches and that carry the sidecar."""
    reporting: Count
    """Pods whose sidecar reported lately."""
    stale: Count
    """Pods whose last report is too old; their numbers are in no sum."""
    summary: Annotated[str, Field(max_length=32)]
    """reporting/expected, for kubectl get."""


class Advice(StatusModel):
    """Something to do that is not an error."""

    reason: ReasonWord
    """In one word, for programs."""
    message: Annotated[str, Field(max_length=1024)]
    """What to do and what it brings."""


class ModelPoolStatus(StatusModel):
    """What is in force and what was observed. A number that nobody measured is missing, never 0."""

    observed_generation: Count | None = None
    """The generation of the spec that this status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), ListMap("type")] = ()
    """PlanValid, PartitionApplied, PodsGoverned, TrafficGoverned, UsageObserved, GuaranteeKept, QuotaReviewed,
    Degraded."""
    state: ReasonWord | None = None
    """The conditions in one word, for kubectl get."""
    plan_hash: Annotated[str, Field(max_length=64)] | None = None
    """Names the plan in force; the annotation kvquota.dev/reviewed-plan with this value accepts it."""
    memory: PoolMemory | None = None
    """The partition of one card, planned and measured."""
    kv: PoolKv | None = None
    """The KV cache."""
    fragmentation: Fragmentation | None = None
    """Memory that is taken and does nothing."""
    pressure_percent: Count | None = None
    """100 less the free percent, the highest of the pods that report; above 100 when more is promised than there is."""
    rung: Literal["Normal", "Shed", "Evict", "Truncate", "Fallback"] | None = None
    """The step of the degradation ladder, the highest of the pods that report."""
    prefix_hit_rate_percent: PercentCount | None = None
    """Percent of prompt tokens that the engines found in their prefix caches, in the last ten minutes."""
    recent: RecentCounts | None = None
    """What happened in the last ten minutes, over all tenants."""
    capacity: Annotated[tuple[CapacityLine, ...], Field(max_length=32), ListMap("contextTokens")] = ()
    """How many requests fit, for each length of the assumed mix."""
    pods: PodCounts | None = None
    """The pods of the pool."""
    advice: Annotated[tuple[Advice, ...], Field(max_length=16), ListMap("reason")] = ()
    """Things to do that are not errors."""
