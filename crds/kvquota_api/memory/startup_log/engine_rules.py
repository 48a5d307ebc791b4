"""Causes of a difference that one engine has: flags that no plan takes, a count that a version gets wrong, old files.

Pure. Each rule is one of the chain of `causes`, with its invariants. Invariants of its own:

1. A flag is the cause only where it changes this very figure of this very model.
2. A count that a version gets wrong, or the form of a file, is the cause only where the figures are apart by exactly
   that.

It does not know flags that a plan takes: those are compared by `causes`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.models.layers import Latent
from kvquota_api.memory.sglang.planning import SLIDING_RATIO, STATE_RATIO
from kvquota_api.memory.startup_log.cases import Case, Figure
from kvquota_api.memory.startup_log.facts import Setting
from kvquota_api.memory.startup_log.figures import ratio
from kvquota_api.memory.vllm.versions import Release, release_of

_STAGES_COUNTED_SINCE: Final[Release] = (0, 19, 0)  # docs/memory.md R8: before, all layers were counted for a stage
_CLOSE: Final = Fraction(1, 1000)  # of the figure: one block or state more or less is far below it


def all_stages(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    """vLLM before 0.19 counts the layers of all pipeline stages as needed on one GPU (vLLM issue 34076)."""
    version, stages = case.facts.version, 1 if case.inputs is None else case.inputs.pipeline
    held = sum(group.layers for group in case.plan.groups)
    if case.facts.engine != "vLLM" or version is None or stages < 2 or case.model is None or not held:
        return None
    layers = len(case.model.layers)
    counted = figure.plan * layers / held
    if not _counts_all(version.value) or abs(figure.engine - counted) > figure.rounding + counted * _CLOSE:
        return None
    return (
        f"vLLM {version.value} (line {version.line}) counts all {layers} layers as needed on one GPU, and the"
        f" plan the {held} of one of {stages} pipeline stages, which are all that a GPU keeps (vLLM issue 34076): use"
        " 0.19.0 or newer"
    )


def _counts_all(version: str) -> bool:
    try:
        return release_of(version) < _STAGES_COUNTED_SINCE
    except EngineUnknownError:
        return False


def sliding_share(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    """SGLang's pool for sliding layers beside the pool for all others."""
    return _share(case, "swa_full_tokens_ratio", SLIDING_RATIO)


def state_share(case: Case, _: Figure, __: tuple[Figure, ...]) -> str | None:
    """SGLang's pool for recurrent state beside the KV cache: a share of it, or of as many sequences as it says."""
    if not _assumes(case, "mamba_full_memory_ratio"):
        return None
    states = next((cache for cache in case.facts.caches if cache.tokens is None and cache.sequences is not None), None)
    if states is None:
        return _share(case, "mamba_full_memory_ratio", STATE_RATIO)
    return (
        f"the engine keeps the states of {states.sequences} sequences (line {states.size.line}) and the plan of as many"
        f" as {float(STATE_RATIO):g} of the KV cache holds: plan with --max-num-seqs {states.sequences}"
        " --no-prefix-caching"
    )


def _share(case: Case, name: str, planned: Fraction) -> str | None:
    said = case.facts.setting(name)
    if said is None or not _assumes(case, name):
        return None
    value = _number(said)
    if value is None or value == planned:
        return None
    return (
        f"the engine was started with {name}={said.value} (line {said.line}) and the plan is for the default of"
        f" {float(planned):g}: it has no option for another"
    )


def whole_heads(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    """llama.cpp keeps every head of a file that was made without the tensors of latent attention."""
    if case.facts.engine != "LlamaCpp" or case.model is None or figure.subject != "kvBytes":
        return None
    latents = [cache for layer in case.model.layers for cache in layer if isinstance(cache, Latent)]
    kept = sum(cache.rank + cache.rope for cache in latents)
    whole = sum(
        cache.whole.kv_heads * (cache.whole.key_dim + cache.whole.value_dim) for cache in latents if cache.whole
    )
    counted = figure.plan * whole / kept if kept else Fraction(0)
    if not counted or abs(figure.engine - counted) > figure.rounding + counted * _CLOSE:
        return None
    return (
        f"the engine keeps keys and values of every head (line {figure.line}) and the plan latents: its GGUF file was"
        " made before April 2025, without the tensors of latent attention: plan with --no-mla"
    )


def _assumes(case: Case, name: str) -> bool:
    """Whether the plan needed that flag, took its default, and says so."""
    return any(each.startswith(f"{name.replace('_', '-')}:") for each in case.plan.assumptions)


def capped(case: Case, figure: Figure, _: tuple[Figure, ...]) -> str | None:
    """SGLang keeps no more tokens than it is told to, however many fit."""
    said = case.facts.setting("max_total_tokens")
    value = None if said is None else _number(said)
    tokens = figure.engine * (case.plan.block_tokens if figure.subject == "blocks" else 1)
    if said is None or value is None or figure.subject == "concurrency" or not tokens <= value < figure.plan:
        return None
    return (
        f"the engine was told to keep at most {int(value)} tokens (max_total_tokens, line {said.line}), whatever fits"
    )


def _number(setting: Setting) -> Fraction | None:
    digits = setting.value.replace(".", "", 1)
    return ratio(setting.value, setting.line).value if digits.isdecimal() and digits.isascii() else None
