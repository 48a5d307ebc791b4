"""One plan of one card: what the engine makes of its KV memory, and how the card is divided.

Decides the KV bytes, the cache that the engine makes of them, and whether all of it fits. What one plan of the command
line and one plan of the operator have in common is here. Pure.

Invariants:

1. Where `problem` is None, the parts never sum to more than the card, and one request of the longest length fits.
2. The cache is that of the engine's own rules for exactly the KV bytes that the partition has.
3. What was not given is either the engine's default or an estimate with a source; each is one of `assumptions`.
4. A plan that does not fit is a value with its numbers, not an error: what would make it fit is planned from it.

Everything is of one GPU of one engine. It does not know what the engine will measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from kvquota_api.amounts import WHOLE, Bytes, Hundredths, Tokens, format_bytes
from kvquota_api.memory import llamacpp, sglang, tensorrt, vllm
from kvquota_api.memory.blocks import blocks_for
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import PlanError, PoolTooSmallError
from kvquota_api.memory.inputs import EngineInputs, Platform
from kvquota_api.memory.models.layers import ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.memory.partition import Budget, Partition, Parts, budget, estimated_parts, overflow

# vLLM has larger steps by default on cards of this size (get_batch_defaults); none below it is of Hopper's kind.
LARGE_CARD_BYTES: Final = 70 * 2**30


@dataclass(frozen=True, slots=True)
class KvBytes:
    """The KV cache takes `size` bytes."""

    size: Bytes


@dataclass(frozen=True, slots=True)
class KvTokens:
    """The KV cache holds `tokens` of the longest requests; rounded up to whole blocks."""

    tokens: Tokens


@dataclass(frozen=True, slots=True)
class KvPercent:
    """The KV cache takes a percent of the card."""

    hundredths: Hundredths


@dataclass(frozen=True, slots=True)
class KvRemainder:
    """The KV cache takes what the other parts leave."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The engine may use `part` of the card and takes for KV what its other parts leave of that; None: its default."""

    part: Fraction | None = None


KvSize = KvBytes | KvTokens | KvPercent | KvRemainder | KvBudget


@dataclass(frozen=True, slots=True)
class Card:
    """One card of `memory` bytes. `weights`, `activation`, `other`: bytes that are known, None: estimated.
    `margin_percent`: of the card, left alone; None: what the engine's own budget leaves."""

    memory: Bytes
    weights: Bytes | None = None
    activation: Bytes | None = None
    other: Bytes | None = None
    margin_percent: int | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned.

    `config`: the model's config.json; `card`: None where only the KV bytes are known; `platform`: in place of that of
    `inputs`, None: by the card's memory; `assumptions`: what whoever asks has assumed already.
    """

    config: Mapping[str, Any]
    inputs: EngineInputs
    kv: KvSize
    card: Card | None = None
    platform: Platform | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CardPlan:
    """The plan. `inputs`: with the platform that was planned for; `cache`: None where nothing is left for it;
    `partition`: None where the card is not known, or not divided, of which `undivided` is the reason: the cache needs
    nothing of the other parts where its bytes are stated. `problem`: why it does not fit, None where it does."""

    request: PlanRequest
    inputs: EngineInputs
    model: ModelShape
    cache: CachePlan | None
    partition: Partition | None
    problem: PlanError | None
    assumptions: tuple[str, ...]
    undivided: PlanError | None = None


def plan_cache(model: ModelShape, inputs: EngineInputs, kv_bytes: int) -> CachePlan:
    """What the engine of `inputs` makes of `kv_bytes` on each GPU. Raises PlanError for what is not known of it."""
    return _PLANNERS[inputs.engine](model, inputs, kv_bytes)


def plan_card(request: PlanRequest) -> CardPlan:
    """The plan; where it does not fit, `problem` says why. Raises PlanError for what is not known."""
    model = read_model(request.config)
    inputs, notes = _on_platform(request)
    if request.card is None:
        return _of_bytes(request, inputs, model, notes)
    return _of_card(request, inputs, model, request.card, notes)


def _on_platform(request: PlanRequest) -> tuple[EngineInputs, tuple[str, ...]]:
    """Engines choose defaults by the card's memory: so does this where nobody says what it is."""
    if request.platform is not None:
        return replace(request.inputs, platform=request.platform), request.assumptions
    if request.card is None or request.card.memory >= LARGE_CARD_BYTES:
        note = "platform not given: cuda-sm90, what cards of 70 GiB and more are taken for"
        return replace(request.inputs, platform="cuda-sm90"), (*request.assumptions, note)
    note = "platform not given: cuda-sm80, what cards below 70 GiB are taken for"
    return replace(request.inputs, platform="cuda-sm80"), (*request.assumptions, note)


def _of_bytes(request: PlanRequest, inputs: EngineInputs, model: ModelShape, notes: tuple[str, ...]) -> CardPlan:
    """Where the card is not known: only what the engine makes of the bytes."""
    cache, problem = _cache(model, inputs, request.kv.size if isinstance(request.kv, KvBytes) else None)
    return CardPlan(request, inputs, model, cache, None, problem, (*notes, *_assumed(cache)))


def _of_card(
    request: PlanRequest, inputs: EngineInputs, model: ModelShape, card: Card, notes: tuple[str, ...]
) -> CardPlan:
    known = {"weights": card.weights, "activation": card.activation, "other": card.other}
    try:
        parts = estimated_parts(request.config, model, inputs, **known)
    except PlanError as error:
        if isinstance(request.kv, KvBytes):
            return replace(_of_bytes(request, inputs, model, notes), undivided=error)
        raise
    room = _room(request.kv, inputs, model, card, parts)
    cache, problem = _cache_of_room(request.kv, room, model, inputs)
    partition = Partition(
        card=card.memory,
        weights=parts.weights,
        activation=parts.activation,
        kv_pool=Bytes(max(0, room.kv_bytes) if cache is None else cache.kv_bytes),
        safety_margin=Bytes(max(0, room.safety_margin - _passed(cache, room))),
        other=parts.other,
    )
    assumed = (*notes, *parts.assumptions, *room.assumptions, *_assumed(cache))
    return CardPlan(request, inputs, model, cache, partition, overflow(partition) or problem, assumed)


def _cache_of_room(
    kv: KvSize, room: Budget, model: ModelShape, inputs: EngineInputs
) -> tuple[CachePlan | None, PlanError | None]:
    """The cache in the room. Where it takes all that is left, and the engine rounds up past that and the margin, it has
    a block less."""
    size = max(0, room.kv_bytes)
    cache, problem = _cache(model, inputs, size)
    if cache is None or problem or not isinstance(kv, KvRemainder) or _passed(cache, room) <= room.safety_margin:
        return cache, problem
    return _cache(model, inputs, max(0, size - cache.bytes_per_block))


def _passed(cache: CachePlan | None, room: Budget) -> int:
    """Bytes by which the engine rounds the cache up past its room, less than a block, which it takes from the margin. A
    cache that is larger than that does not fit: nothing makes room for it."""
    passed = 0 if cache is None else max(0, cache.kv_bytes - max(0, room.kv_bytes))
    return passed if cache is None or passed < cache.bytes_per_block else 0


def _assumed(cache: CachePlan | None) -> tuple[str, ...]:
    return () if cache is None else cache.assumptions


def _cache(model: ModelShape, inputs: EngineInputs, size: int | None) -> tuple[CachePlan | None, PlanError | None]:
    """The cache in `size` bytes, and why that is too small; None: as large as the engine needs it."""
    try:
        cache = plan_cache(model, inputs, size or 0)
    except PoolTooSmallError as error:
        return None, error
    return cache, None if size is None else _too_small(cache, size)


def _room(kv: KvSize, inputs: EngineInputs, model: ModelShape, card: Card, parts: Parts) -> Budget:
    """What the KV cache may take, and what is left alone."""
    if isinstance(kv, KvBudget):
        return budget(inputs, card.memory, parts, kv.part)
    margin = Bytes(card.memory * (card.margin_percent or 0) // 100)
    match kv:
        case KvBytes(size):
            return Budget(size, margin, ())
        case KvPercent(hundredths):
            return Budget(card.memory * hundredths // WHOLE, margin, ())
        case KvTokens(tokens):
            return Budget(_bytes_for(tokens, plan_cache(model, inputs, card.memory)), margin, ())
        case _:
            return Budget(card.memory - parts.weights - parts.activation - parts.other - margin, margin, ())


def _bytes_for(tokens: Tokens, cache: CachePlan) -> int:
    """Bytes of a cache that holds `tokens` of the longest requests. `cache`: of any size."""
    beside = max(0, cache.kv_bytes - cache.blocks * cache.bytes_per_block)
    costs = [group.cost for group in cache.groups]
    if len(costs) == 1 and costs[0].kind == "Full":
        return -(-tokens // costs[0].block_tokens) * cache.bytes_per_block + beside
    longest = Tokens(cache.max_model_len)
    return -(-tokens * blocks_for(costs, longest) // longest) * cache.bytes_per_block + beside


def _too_small(cache: CachePlan, available: int) -> PlanError | None:
    longest = Tokens(cache.max_model_len)
    needed = blocks_for((group.cost for group in cache.groups), longest)
    usable = max(0, cache.blocks - cache.null_blocks)
    if needed > usable:
        return PoolTooSmallError(
            f"the KV cache of {format_bytes(available)} has {usable:,} usable blocks, and one request of {longest:,}"
            f" tokens needs {needed:,}"
        )
    if cache.min_bytes > available:
        return PoolTooSmallError(
            f"requests of {longest:,} tokens need a KV cache of {format_bytes(cache.min_bytes)} at least, and there are"
            f" {format_bytes(available)}"
        )
    return None


_PLANNERS: Final[Mapping[str, Callable[[ModelShape, EngineInputs, int], CachePlan]]] = {
    "vLLM": vllm.plan_cache,
    "SGLang": sglang.plan_cache,
    "LlamaCpp": llamacpp.plan_cache,
    "TensorRTLLM": tensorrt.plan_cache,
}
