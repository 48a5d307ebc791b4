"""What would make a plan fit, or hold more, each with its numbers.

Decides the ways out, in this order: quantise the weights; then the KV cache, a smaller pool or a shorter context; then
more GPUs. Pure.

Invariants:

1. Every number comes from planning again with that change; none is estimated here.
2. A change that brings nothing, or that the engine does not take, is no advice.
3. Of several types or numbers the mildest that is enough is named; where none is, the strongest.
4. Where no change of the KV cache is enough alone, it is planned on top of the weights' change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from kvquota_api.amounts import Bytes, Tokens, format_bytes
from kvquota_api.memory.capacity import capacity_of
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import LONGEST
from kvquota_api.memory.planning import (
    CardPlan,
    KvBudget,
    KvBytes,
    KvRemainder,
    PlanRequest,
    plan_card,
)

WEIGHT_DTYPES: Final = ("fp8", "int4")  # mildest first
HALF_KV_DTYPES: Final = {"LlamaCpp": "q8_0"}  # what about halves the cache, where it is not called fp8
MOST_GPUS: Final = 64  # of one tensor group

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Terms:
    """How the reader changes a thing: `{}` stands for its new value. `whole_context`: a length is that of all streams
    of llama.cpp together, not of one request."""

    weight_dtype: str
    kv_dtype: str
    kv_size: str
    max_model_len: str
    tensor: str
    whole_context: bool


FIELDS: Final = Terms(
    weight_dtype="spec.model.weightDtype: {}",
    kv_dtype="spec.model.kvCacheDtype: {}",
    kv_size="spec.memory.kvPool.bytes: {}",
    max_model_len="spec.model.maxModelLen: {}",
    tensor="spec.engine.parallelism.tensor: {}, and spec.gpu.count with it",
    whole_context=False,
)
FLAGS: Final = Terms(
    weight_dtype="--weight-dtype {}",
    kv_dtype="--kv-dtype {}",
    kv_size="--kv-memory {}",
    max_model_len="--max-model-len {}",
    tensor="--tp {}",
    whole_context=True,
)


@dataclass(frozen=True, slots=True)
class Advice:
    """`reason`: one word; `message`: what to do and what it brings; `plan`: the plan with it, which need not fit."""

    reason: str
    message: str
    plan: CardPlan


def advise(plan: CardPlan, terms: Terms) -> tuple[Advice, ...]:
    """The ways out of a plan that does not fit; for one that does, what would hold more."""
    if plan.problem is None:
        return tuple(each for each in _kv_dtype(plan, terms) if _held(each.plan) > _held(plan))
    weights = tuple(_weights(plan, terms))
    found = (*weights, *_cache(plan, weights, terms), *_more_gpus(plan, terms))
    return tuple(each for each in found if _brings(each.plan, plan))


def in_order(advice: Iterable[Advice]) -> str:
    """The ways out as one sentence."""
    numbered = "; ".join(f"{number}. {each.message}" for number, each in enumerate(advice, start=1))
    if not numbered:
        return "No other type, context or number of GPUs that the planner knows makes it fit: take a larger card"
    return f"Ways out, in this order: {numbered}"


def outcome(plan: CardPlan) -> str:
    """What a plan brings, in a few words."""
    if plan.problem is not None or plan.cache is None:
        return "which is not enough alone"
    (line,) = capacity_of(plan.cache, (Tokens(plan.cache.max_model_len),))
    requests = "1 request" if line.requests == 1 else f"{line.requests:,} requests"
    verb = "fits" if line.requests == 1 else "fit"
    return (
        f"then {requests} of {plan.cache.max_model_len:,} tokens {verb} into"
        f" {format_bytes(plan.cache.kv_bytes)} of KV cache"
    )


def _weights(plan: CardPlan, terms: Terms) -> Iterator[Advice]:
    now, card = _weight_bytes(plan), plan.request.card
    if card is None or card.weights is not None:
        return
    tried = [(dtype, _planned(plan.request, weight_dtype=dtype)) for dtype in WEIGHT_DTYPES]
    smaller = [(dtype, other) for dtype, other in tried if other is not None and _weight_bytes(other) < now]
    for dtype, other in _enough(smaller):
        yield Advice(
            "QuantiseWeights",
            f"quantise the weights ({terms.weight_dtype.format(dtype)}): {format_bytes(_weight_bytes(other))} instead"
            f" of {format_bytes(now)}, {outcome(other)}",
            other,
        )


def _cache(plan: CardPlan, weights: tuple[Advice, ...], terms: Terms) -> Iterator[Advice]:
    alone = tuple(_cache_changes(plan, terms))
    enough = tuple(each for each in alone if each.plan.problem is None)
    if enough:
        yield from enough
        return
    for first in weights:
        both = [each for each in _cache_changes(first.plan, terms) if each.plan.problem is None]
        if both:
            dtype = first.plan.request.inputs.weight_dtype
            yield from (replace(each, message=f"with weights in {dtype}, {each.message}") for each in both)
            return
    yield from alone[:1]


def _cache_changes(plan: CardPlan, terms: Terms) -> Iterator[Advice]:
    yield from _kv_dtype(plan, terms)
    yield from _another_pool(plan, terms)
    yield from _shorter_context(plan, terms)


def _kv_dtype(plan: CardPlan, terms: Terms) -> Iterator[Advice]:
    dtype = HALF_KV_DTYPES.get(plan.request.inputs.engine, "fp8")
    other = _planned(_counted(plan), kv_dtype=dtype)
    if other is None or other.cache is None:
        return
    saved, term = "", terms.kv_dtype.format(dtype)
    if plan.cache is not None:
        if other.cache.bytes_per_token >= plan.cache.bytes_per_token:
            return
        saved = f"{other.cache.bytes_per_token:,} B per token instead of {plan.cache.bytes_per_token:,} B, "
    yield Advice("QuantiseKvCache", f"quantise the KV cache ({term}): {saved}{outcome(other)}", other)


def _another_pool(plan: CardPlan, terms: Terms) -> Iterator[Advice]:
    """Where its size is stated: what the other parts leave for it, or what the longest request needs."""
    card, cache = plan.request.card, plan.cache
    if card is None or cache is None or isinstance(plan.request.kv, KvBudget | KvRemainder):
        return
    rest = KvBudget() if card.margin_percent is None else KvRemainder()
    smaller, larger = (
        _tried(replace(_counted(plan), kv=rest)),
        _tried(replace(_counted(plan), kv=KvBytes(Bytes(cache.min_bytes)))),
    )
    for reason, words, other in (("ShrinkKvPool", "less", smaller), ("GrowKvPool", "more", larger)):
        if other is None or other.cache is None or (other.cache.kv_bytes < cache.kv_bytes) != (words == "less"):
            continue
        term = terms.kv_size.format(other.cache.kv_bytes)
        yield Advice(reason, f"give the KV cache {words} ({term}): {outcome(other)}", other)


def _shorter_context(plan: CardPlan, terms: Terms) -> Iterator[Advice]:
    now = plan.request.inputs.max_model_len or plan.model.max_positions
    other = _planned(plan.request, max_model_len=LONGEST)
    streams = plan.request.inputs.streams
    if now is None or other is None or other.cache is None or other.cache.max_model_len * streams >= now:
        return
    said = 1 if terms.whole_context else streams
    term = terms.max_model_len.format(other.cache.max_model_len * streams // said)
    yield Advice("ShortenContext", f"shorten the context ({term} instead of {now // said}): {outcome(other)}", other)


def _more_gpus(plan: CardPlan, terms: Terms) -> Iterator[Advice]:
    tensor = plan.request.inputs.tensor * 2
    tried = []
    while tensor <= MOST_GPUS:
        other = _planned(plan.request, tensor=tensor)
        if other is not None:
            tried.append((tensor, other))
        if other is not None and other.problem is None:
            break
        tensor *= 2
    for gpus, other in _enough(tried):
        weights = f"{format_bytes(_weight_bytes(other))} of weights on each, " if other.partition is not None else ""
        yield Advice("MoreGpus", f"more GPUs ({terms.tensor.format(gpus)}): {weights}{outcome(other)}", other)


def _enough(tried: list[tuple[_T, CardPlan]]) -> list[tuple[_T, CardPlan]]:
    fitting = [each for each in tried if each[1].problem is None]
    return fitting[:1] or tried[-1:]


def _counted(plan: CardPlan) -> PlanRequest:
    """The request with the parts that were counted for it: a change of the KV cache leaves them as they are."""
    card, parts = plan.request.card, plan.partition
    if card is None or parts is None:
        return plan.request
    known = replace(card, weights=parts.weights, activation=parts.activation)
    return replace(plan.request, card=known)


def _planned(request: PlanRequest, **changes: Any) -> CardPlan | None:
    return _tried(replace(request, inputs=replace(request.inputs, **changes)))


def _tried(request: PlanRequest) -> CardPlan | None:
    try:
        return plan_card(request)
    except PlanError:
        return None


def _weight_bytes(plan: CardPlan) -> int:
    return 0 if plan.partition is None else plan.partition.weights


def _brings(one: CardPlan, other: CardPlan) -> bool:
    """Whether it fits, or is nearer to it: fewer bytes too many, or more tokens."""
    if one.problem is None:
        return True
    if _excess(other):
        return _excess(one) < _excess(other)
    return not _excess(one) and _held(one) > _held(other)


def _excess(plan: CardPlan) -> int:
    return 0 if plan.partition is None else max(0, -plan.partition.free)


def _held(plan: CardPlan) -> tuple[int, int]:
    """More is better: tokens, and as many in less memory."""
    return (0, 0) if plan.cache is None else (plan.cache.tokens, -plan.cache.kv_bytes)
