"""Why a figure of an engine differs from the plan's, as far as its log tells.

Decides the cause: a chain of rules, of which the first that applies is the cause. Pure. Invariants:

1. A cause is said only where the log has a line for it or the two figures are apart by exactly that; there is no cause
   by elimination.
2. A cause names both values.

It does not know causes that leave no trace in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

from kvquota_api.amounts import format_bytes
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.startup_log.cases import Case, Figure, Subject
from kvquota_api.memory.startup_log.engine_rules import all_stages, capped, sliding_share, state_share, whole_heads
from kvquota_api.memory.startup_log.stating import facts_to_inputs, kv_memory, memory_fraction
from kvquota_api.quoting import quoted

Rule = Callable[[Case, Figure, tuple[Figure, ...]], str | None]

_CLOSE_BYTES: Final = 2**30 // 50  # two figures of one part: logs round both to 0.01 GiB
_FLAGS: Final = {  # of EngineInputs, those that change a cache, as a person knows them
    "tensor": "--tp",
    "pipeline": "--pp",
    "decode_context": "--dcp",
    "dtype": "--dtype",
    "kv_dtype": "--kv-dtype",
    "state_dtype": "--mamba-ssm-dtype",
    "block_tokens": "--block-size",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "prefix_caching": "--prefix-caching",
    "async_scheduling": "--async-scheduling",
    "hybrid_manager": "the hybrid KV cache manager",
    "speculative_tokens": "--num-speculative-tokens",
    "slots": "--slots",
    "unified": "one cache for all slots",
}
_NEEDED_FLAGS: Final = {"max_model_len": "--max-model-len", **_FLAGS}  # llama.cpp takes what its context needs
_ALIASES: Final = {  # types that have more than one name; latents of fp8 are packed where the engine decides so
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "f16": "float16",
    "f32": "float32",
    "fp8_e4m3": "fp8",
    "fp8_ds_mla": "fp8",
}
_UNSAID: Final = (None, "auto")  # of EngineInputs: left to the engine, so no contradiction


_QUANTISED_PART: Final = Fraction(4, 5)  # 8-bit weights take 0.5 to 0.7 of 16-bit ones, as what is not quantised stays
_WEIGHT_FLAGS: Final = ("tensor", "pipeline", "dtype", "speculative_tokens")  # those of them that change the weights


def cause_of(case: Case, figure: Figure, figures: tuple[Figure, ...]) -> str | None:
    """One sentence, or None where the log does not tell. `figures`: all of the comparison."""
    for rule in _RULES[figure.subject]:
        cause = rule(case, figure, figures)
        if cause is not None:
            return cause
    return None


def _overridden(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    notice = case.facts.notice("BlocksOverridden")
    if notice is None or notice.value is None:
        return None
    return f"the engine was told to take {int(notice.value.value)} blocks (line {notice.line}), whatever fits"


def _other_length(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    longest = case.longest
    if longest is None or longest.value == case.plan.max_model_len:
        return None
    return (
        f"the engine counts requests of {longest.value} tokens (line {longest.line}) and the plan of "
        f"{case.plan.max_model_len}: plan with --max-model-len {longest.value}"
    )


def _cut_length(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    notice = case.facts.notice("LengthReduced")
    if notice is None:
        return None
    return f"the engine cut its longest request to what fits (line {notice.line}): plan with --max-model-len auto"


def _other_flags(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    return _flags_apart(case, _NEEDED_FLAGS if case.facts.engine == "LlamaCpp" else _FLAGS)


def _other_model(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    """vLLM and SGLang print the architecture, of a drafter too; llama.cpp the layers."""
    if case.model is None:
        return None
    named = [each for each in case.facts.settings if each.name == "architecture"]
    if named and case.model.architecture not in [each.value for each in named]:
        return (
            f"the engine's model is a {quoted(named[0].value)} (line {named[0].line}) and the plan's a"
            f" {quoted(case.model.architecture)}: plan with the engine's model"
        )
    said, layers = case.facts.setting("n_layer"), len(case.model.layers)
    if said is None or not said.value.isdecimal() or int(said.value) == layers:
        return None
    return (
        f"the engine's model has {said.value} layers (line {said.line}) and the plan's {layers}: plan with the"
        " engine's model"
    )


def _other_weight_flags(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    return _flags_apart(case, _WEIGHT_FLAGS)


def _quantised(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    """Weights far smaller than planned, of which the log says that they are quantised."""
    said = case.facts.setting("quantization")
    if said is None or figure.engine > figure.plan * _QUANTISED_PART:
        return None
    return f"the engine loads them quantised by {quoted(said.value)} (line {said.line}): plan with --weight-dtype"


def _flags_apart(case: Case, names: Iterable[str]) -> str | None:
    """Flags of which log and plan each say something else."""
    if case.inputs is None:
        return None
    said = facts_to_inputs(case.facts)
    apart = [_flag(name, said[name], getattr(case.inputs, name)) for name in names if _apart(case.inputs, said, name)]
    return f"the plan was made for other flags: {', '.join(apart)}" if apart else None


def _apart(inputs: EngineInputs, said: dict[str, Any], name: str) -> bool:
    engine, planned = said.get(name), getattr(inputs, name)
    return engine not in _UNSAID and planned not in _UNSAID and _meant(engine) != _meant(planned)


def _meant(value: Any) -> object:
    """Types by one name, of llama.cpp keys and values each."""
    return [_ALIASES.get(each, each) for each in value.split("/")] if isinstance(value, str) else value


def _flag(name: str, engine: object, planned: object) -> str:
    return f"{_NEEDED_FLAGS[name]} is {_shown(engine)} for the engine and {_shown(planned)} for the plan"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return quoted(value)


def _other_block(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    block = case.block_tokens
    if block is None or case.planned_block(block.value) == block.value:
        return None
    return (
        f"the engine uses blocks of {block.value} tokens (line {block.line}) and the plan of "
        f"{case.planned_block(block.value)}"
    )


def _packed(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    notice = case.facts.notice("PackedLatent")
    if notice is None or case.inputs is None or case.inputs.kv_dtype.startswith("fp8"):
        return None
    return (
        f"the engine packs latents into 656 bytes (fp8_ds_mla, line {notice.line}) and the plan is for "
        f"{case.inputs.kv_dtype}: plan with --kv-dtype fp8_ds_mla"
    )


def _padding(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    """Layers that only fill up groups: other ones mean that the engine cut the layers into other groups. Each kind of
    layer has a line, and each of several engines has all of them."""
    last = case.facts.notice("PaddingLayers")
    if last is None:
        return None
    notices = [each for each in case.facts.notices if each.kind == last.kind and each.rank == last.rank]
    engine = sum(int(each.value.value) for each in notices if each.value is not None)
    widest = max((group.layers for group in case.plan.groups), default=0)
    planned = sum(widest - group.layers for group in case.plan.groups)
    if engine == planned:
        return None
    return f"the engine fills up its groups with {engine} layers (line {last.line}) and the plan with {planned}"


def _several_gpus(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    """What one side counts for one rank and the other for all over which the tokens are spread."""
    said = facts_to_inputs(case.facts)
    for name, what in (("decode_context", "decode-context"), ("data", "data-parallel")):
        ranks = said.get(name) or (getattr(case.inputs, name) if case.inputs is not None else 1)
        if ranks > 1 and _close(figure.engine, figure.plan * ranks, figure.rounding * ranks):
            return f"the engine counts all {ranks} {what} ranks and the plan one of them"
        if ranks > 1 and _close(figure.engine * ranks, figure.plan, figure.rounding * ranks):
            return f"the engine counts one of {ranks} {what} ranks and the plan all of them"
    return None


def _close(left: Fraction, right: Fraction, rounding: Fraction) -> bool:
    return abs(left - right) <= rounding + right / 1000


def _other_meaning(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    """vLLM printed blocks // groups x the smallest block up to 0.20.1, since then concurrency x longest request."""
    plan = case.plan
    old = Fraction(plan.blocks // max(len(plan.groups), 1) * plan.block_tokens)
    new = Fraction(int(plan.concurrency * plan.max_model_len))
    for meaning, text in (
        (old, "blocks divided by groups, as up to 0.20.1"),
        (new, "longest requests, as since 0.20.2"),
    ):
        if meaning != figure.plan and abs(meaning - figure.engine) <= figure.rounding:
            return f"the pool is the same: the engine prints it in {text}; set the version of the engine"
    return None


def _other_budget(case: Case, _: Figure, figures: tuple[Figure, ...]) -> str | None:
    budget = next((each for each in figures if each.subject == "kvBytes"), None)
    if budget is None or case.facts.engine == "LlamaCpp" or abs(budget.engine - budget.plan) <= budget.rounding:
        return None
    return (
        f"the engine has {format_bytes(int(budget.engine))} for its cache (line {budget.line}) and the plan "
        f"{format_bytes(int(budget.plan))}"
    )


def _other_width(_: Case, figure: Figure, figures: tuple[Figure, ...]) -> str | None:
    """Twice or half the blocks in the same memory."""
    budget = next((each for each in figures if each.subject == "kvBytes"), None)
    if budget is None or not figure.plan or abs(budget.engine - budget.plan) > budget.rounding:
        return None
    for factor, words in ((2, "twice"), (Fraction(1, 2), "half")):
        if _close(figure.engine, figure.plan * factor, figure.rounding * factor):
            return f"the engine keeps {words} as much in the same memory: compare --kv-dtype and --tp"
    return None


def _needs(case: Case, figure: Figure, figures: tuple[Figure, ...]) -> str | None:
    """What llama.cpp takes follows from its model and flags, not from what is left."""
    if case.facts.engine != "LlamaCpp":
        return None
    rules = (_other_model, _other_flags, whole_heads)
    return next((cause for rule in rules if (cause := rule(case, figure, figures)) is not None), None)


def _told(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    told, budget = case.facts.setting("kv_cache_memory_bytes"), kv_memory(case.facts)
    if told is None or budget is None or budget.line != told.line:
        return None
    return f"the engine was told the size of its cache (line {told.line}): plan with --kv-memory {budget.bytes}"


def _other_part(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    said, planned = memory_fraction(case.facts), case.memory.part
    if said is None or planned is None or abs(said.value - planned) <= said.rounding:
        return None
    return (
        f"the engine may use {float(said.value):g} of the card (line {said.line}) and the plan {float(planned):g}: plan"
        f" with --gpu-memory-utilization {float(said.value):g}"
    )


def _other_card(_: Case, figure: Figure, __: tuple[Figure, ...]) -> str | None:
    """The plan's card is another one only where it was told so."""
    return (
        f"the plan was told {format_bytes(int(figure.plan))} and the engine's smallest card has"
        f" {format_bytes(int(figure.engine))} (line {figure.line}): plan without --gpu-memory"
    )


def _stated(case: Case, figure: Figure, __: tuple[Figure, ...]) -> str | None:
    """A size that the plan was given, and neither comes to nor has from the log."""
    if case.memory.kv is None:
        return None
    return (
        f"the plan was told {format_bytes(int(figure.plan))} and the engine has {format_bytes(int(figure.engine))}"
        f" (line {figure.line}): plan without --kv-memory"
    )


def _parts_apart(_: Case, figure: Figure, figures: tuple[Figure, ...]) -> str | None:
    """What of the other parts is as much more as the cache is less: one part, or all of them."""
    parts = [each for each in figures if each.subject in _PART_NAMES]
    for chosen in (*((part,) for part in parts), tuple(parts)):
        more = sum((part.engine - part.plan for part in chosen), Fraction(0))
        rounding = sum((part.rounding for part in chosen), figure.rounding + _CLOSE_BYTES)
        if chosen and abs(more + figure.engine - figure.plan) <= rounding:
            return "the difference is that of " + " and ".join(
                _part(part) for part in chosen if part.engine != part.plan
            )
    return None


def _part(part: Figure) -> str:
    return (
        f"{_PART_NAMES[part.subject]}: {format_bytes(int(part.engine))} (line {part.line}), "
        f"planned {format_bytes(int(part.plan))}"
    )


def _graphs_aside(case: Case, figure: Figure, figures: tuple[Figure, ...]) -> str | None:
    """Memory that the engine sets aside for CUDA graphs, of which the plan says nothing."""
    if any(each.subject == "graphs" for each in figures):
        return None
    for rank in case.facts.ranks:
        aside = rank.estimated_graphs
        if aside is not None and _is_less_by(figure, aside.bytes, aside.rounding):
            return f"the engine sets {format_bytes(aside.bytes)} aside for CUDA graphs (line {aside.line})"
    return None


def _held_by_others(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    for rank in case.facts.ranks:
        if rank.total is None or rank.free is None:
            continue
        held = rank.total.bytes - rank.free.bytes
        if _is_less_by(figure, held, rank.total.rounding + rank.free.rounding):
            return f"{format_bytes(held)} of the card were in use before the engine started (line {rank.free.line})"
    return None


def _is_less_by(figure: Figure, size: int, rounding: int) -> bool:
    return size > 0 and abs(figure.plan - figure.engine - size) <= figure.rounding + rounding + _CLOSE_BYTES


_PART_NAMES: Final[dict[Subject, str]] = {
    "weights": "weights",
    "activation": "activation",
    "nonTorch": "memory outside PyTorch",
    "graphs": "CUDA graphs",
}
_SHAPE: Final[tuple[Rule, ...]] = (
    _other_model,
    _other_flags,
    _other_block,
    _packed,
    _padding,
    sliding_share,
    state_share,
    capped,
)
_RULES: Final[dict[Subject, Iterable[Rule]]] = {
    "blocks": (_overridden, *_SHAPE, _several_gpus, _other_budget, _other_width),
    "loggedTokens": (_overridden, _other_length, *_SHAPE, _several_gpus, _other_meaning, _other_budget, _other_width),
    "concurrency": (_overridden, _other_length, *_SHAPE, _several_gpus, _other_budget, _other_width),
    "maxModelLen": (_cut_length,),
    "blockTokens": (_other_flags,),
    "kvBytes": (_needs, _told, _stated, _other_part, _parts_apart, _graphs_aside, _held_by_others),
    "minBytes": (all_stages, *_SHAPE),
    "card": (_other_card,),
    "weights": (_other_weight_flags, _quantised),
    "activation": (),
    "nonTorch": (),
    "graphs": (),
}
