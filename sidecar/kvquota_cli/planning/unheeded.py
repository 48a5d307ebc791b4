"""What was asked for and changes nothing of a plan.

Decides by planning again without it. Pure.

Invariants:

1. Whatever is named here can be left out, and the plan has the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.planning import CardPlan, plan_card


@dataclass(frozen=True, slots=True)
class _Option:
    """`field` of EngineInputs; `why` it may change nothing; `nothing`: its value that asks for nothing."""

    field: str
    name: str
    why: str
    nothing: Any = None


# Of engines that take an option of vLLM only where a model or a card needs it. vLLM itself takes them all.
_OPTIONS: Final = (
    _Option("max_num_seqs", "max-num-seqs", "it sizes the activation of a card and recurrent state"),
    _Option("max_num_batched_tokens", "max-num-batched-tokens", "it sizes windows of llama.cpp only"),
    _Option("prefix_caching", "prefix-caching", "it decides what is kept, not how large the cache is"),
    _Option("speculative_tokens", "num-speculative-tokens", "of a drafter its layers are counted (draft-layers)", 0),
    _Option("hybrid_manager", "disable-hybrid-kv-cache-manager", "no layer is kept for a window only", nothing=True),
)
_DTYPE: Final = _Option("dtype", "dtype", "llama.cpp computes in the types of its file", "auto")


def unheeded(plan: CardPlan, asked: Collection[str]) -> tuple[str, ...]:
    """A sentence for every option that the plan would be the same without. `asked`: fields of EngineInputs that were
    asked for, and are not the engine's own."""
    if plan.request.inputs.engine == "vLLM":
        return ()
    return tuple(
        f"{option.name}: it changes nothing of this plan: {option.why}"
        for option in _given(plan)
        if option.field in asked and _same_without(plan, option)
    )


def _given(plan: CardPlan) -> Iterator[_Option]:
    inputs = plan.request.inputs
    options = (*_OPTIONS, _DTYPE) if inputs.engine == "LlamaCpp" else _OPTIONS
    return (each for each in options if getattr(inputs, each.field) != each.nothing)


def _same_without(plan: CardPlan, option: _Option) -> bool:
    inputs = replace(plan.request.inputs, **{option.field: option.nothing})
    try:
        other = plan_card(replace(plan.request, inputs=inputs))
    except PlanError:
        return False
    return (_numbers(other.cache), other.partition) == (_numbers(plan.cache), plan.partition)


def _numbers(cache: CachePlan | None) -> CachePlan | None:
    return None if cache is None else replace(cache, assumptions=(), warnings=())
