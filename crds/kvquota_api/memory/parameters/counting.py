"""The parameters of a model, tensor by tensor, from its config.json.

Decides which family's rules hold, by `model_type`, else by `architectures`. Pure.

Invariants:

1. A family that is not known is an UnknownArchitectureError that says what to state instead; no count is guessed.
2. The counts are those of the model classes that engines load (tests/data/memory/parameters.json has what those say of
   themselves).

It does not know how the weights are stored or spread: see `checkpoint` and `per_gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kvquota_api.memory.errors import ModelConfigError, UnknownArchitectureError
from kvquota_api.memory.models.families.table import BY_ARCHITECTURE
from kvquota_api.memory.models.fields import Fields
from kvquota_api.memory.parameters.families import (
    compressed,
    dense,
    gemma,
    latent,
    moe,
    nas,
    nemotron,
    older,
    recurrent,
    shared,
    vision,
)
from kvquota_api.memory.parameters.tensors import ParameterCount, Tensors
from kvquota_api.quoting import quoted

Family = Callable[[Fields], ParameterCount]
Tower = Callable[[Fields, int], Tensors]

FAMILIES: Final[Mapping[str, Family]] = {
    **{name: partial(dense.count, family=family) for name, family in dense.FAMILIES.items()},
    "afmoe": shared.afmoe,
    "bamba": recurrent.bamba,
    "bloom": older.bloom,
    "cohere2_moe": moe.cohere2_moe,
    "deepseek_v2": latent.deepseek,
    "deepseek_v3": latent.deepseek,
    "deepseek_v32": latent.deepseek,
    "deepseek_v4": compressed.deepseek_v4,
    "dots1": shared.dots1,
    "ernie4_5_moe": moe.ernie4_5_moe,
    "exaone_moe": shared.exaone_moe,
    "falcon": older.falcon,
    "falcon_h1": recurrent.falcon_h1,
    "falcon_mamba": recurrent.mamba,
    "gemma3n_text": gemma.gemma3n,
    "gemma4_text": gemma.gemma4,
    "glm4_moe": moe.glm4_moe,
    "glm4_moe_lite": latent.deepseek,
    "glm_moe_dsa": latent.deepseek,
    "gpt2": older.gpt2,
    "gpt_bigcode": older.gpt_bigcode,
    "gpt_oss": moe.gpt_oss,
    "gptj": older.gptj,
    "granitemoe": moe.granite_moe,
    "granitemoehybrid": recurrent.granite_hybrid,
    "granitemoeshared": moe.granite_moe,
    "jamba": recurrent.jamba,
    "kimi_k2": latent.deepseek,
    "kimi_linear": latent.kimi_linear,
    "lfm2": recurrent.lfm2,
    "lfm2_moe": recurrent.lfm2_moe,
    "llama4_text": moe.llama4,
    "mamba": recurrent.mamba,
    "mamba2": recurrent.mamba2,
    "mimo_v2_flash": moe.mimo_v2,
    "minicpm3": latent.minicpm3,
    "minimax_m2": moe.minimax_m2,
    "minimax_m3_text": moe.minimax_m3,
    "mixtral": moe.mixtral,
    "nemotron-nas": nas.nemotron_nas,
    "nemotron_h": nemotron.nemotron_h,
    "olmoe": moe.olmoe,
    "opt": older.opt,
    "phimoe": moe.phimoe,
    "qwen2_moe": moe.qwen2_moe,
    "qwen3_5_moe_text": recurrent.qwen_hybrid,
    "qwen3_5_text": recurrent.qwen_hybrid,
    "qwen3_moe": moe.qwen3_moe,
    "qwen3_next": recurrent.qwen_hybrid,
    "qwen3_vl_moe_text": moe.qwen3_moe,
    "solar_open": shared.solar_open,
    "whisper": older.whisper,
    "zamba2": recurrent.zamba2,
}

# Of a model with a vision tower: the family of its language part where `text_config` does not say, and the tower.
SEEING: Final[Mapping[str, tuple[str, Tower]]] = {
    "gemma3": ("gemma3_text", vision.siglip),
    "gemma4": ("gemma4_text", vision.gemma4),
    "kimi_k25": ("kimi_k2", vision.kimi_k25),
    "kimi_k3": ("kimi_linear", vision.kimi_k3),
    "llama4": ("llama4_text", vision.llama4),
    "minimax_m3_vl": ("minimax_m3_text", vision.minimax_m3),
    "mistral3": ("mistral", vision.pixtral),
    "qwen2_5_vl": ("qwen2_5_vl_text", vision.qwen2_5_vl),
    "qwen2_vl": ("qwen2_vl_text", vision.qwen2_vl),
    "qwen3_5": ("qwen3_5_text", vision.qwen3_vl),
    "qwen3_5_moe": ("qwen3_5_moe_text", vision.qwen3_vl),
    "qwen3_vl": ("qwen3_vl_text", vision.qwen3_vl),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", vision.qwen3_vl),
}
_HEAD: Final = re.compile(r"(?:For[A-Z]|LMHead)\w*$")  # the end of an architecture's name: what the model is for
INSTEAD: Final = "or state the size of all weights on one GPU instead (--weights, spec.memory.weights)"
NO_VISION: Final = "the vision tower is not counted among the weights: vision_config is missing"


def count_parameters(config: Mapping[str, Any]) -> ParameterCount:
    """All weights of the model. Raises UnknownArchitectureError, ModelConfigError; both name the field."""
    fields = Fields(config)
    model_type = config.get("model_type") or _type_of_architecture(fields)
    seeing = SEEING.get(model_type) if isinstance(model_type, str) else None
    try:
        return _language(fields, model_type) if seeing is None else _seeing(fields, *seeing)
    except ModelConfigError as error:
        raise ModelConfigError(f"{error}, {INSTEAD}") from error


def _type_of_architecture(fields: Fields) -> str | None:
    """The type that the architecture's name says, of those that its family has; None where that is none or several."""
    name = fields.sequence("architectures")[0] if fields.says("architectures") else None
    if not isinstance(name, str) or name not in BY_ARCHITECTURE:
        return None
    types = BY_ARCHITECTURE[name].types
    called = _squeezed(_HEAD.sub("", name))
    named = [each for each in types if _squeezed(each.removesuffix("_text")) == called]
    found = named or types
    return found[0] if len(found) == 1 else None


def _squeezed(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _language(fields: Fields, model_type: object) -> ParameterCount:
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnknownArchitectureError(
            f"{fields.path}model_type: the planner cannot count the weights of {quoted(model_type)}: state their size"
            " on one GPU instead (--weights, spec.memory.weights), as an engine's log or the checkpoint's files give it"
        )
    return family(fields)


def _seeing(fields: Fields, text_type: str, tower: Tower) -> ParameterCount:
    """A model with a vision tower; the language part may stand in the config itself, as older configs have it."""
    if fields.has("audio_config"):
        raise UnknownArchitectureError(
            "audio_config: the planner cannot count the weights of an audio tower: state the size of all weights on one"
            " GPU"
        )
    inner = fields.part("text_config") if fields.has("text_config") else replace(fields, path="")
    tied = inner.values.get("tie_word_embeddings", fields.values.get("tie_word_embeddings"))
    inner = replace(inner, values={**inner.values, "tie_word_embeddings": tied})
    stated = inner.values.get("model_type") if fields.has("text_config") else None
    text = _language(inner, text_type if stated is None else stated)
    if not fields.has("vision_config"):
        return replace(text, assumptions=(*text.assumptions, NO_VISION))
    own = tower(fields.part("vision_config"), inner.count("hidden_size"))
    return replace(text, first=(*text.first, *own))
