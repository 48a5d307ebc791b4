"""What the options of `kvquota plan` ask for.

Decides the request from the options, on top of what a ModelPool states. Pure.

Invariants:

1. An option wins over the ModelPool, and the ModelPool over the engine's defaults.
2. Options that contradict each other, or that the engine does not have, are a CliError, a type that nobody knows is a
   PlanError: nothing is passed over. What an engine has, and what changes nothing, is a warning
   (`unheeded`; of vLLM its planner says so).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any, Final

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.parameters.formats import format_of
from kvquota_api.memory.planning import Card, KvBudget, KvBytes, KvSize, PlanRequest
from kvquota_api.quoting import quoted
from kvquota_cli.errors import CliError
from kvquota_cli.planning.dtypes import in_pool_words
from kvquota_cli.planning.flags import ENGINES, given

_FIELDS: Final = {
    "engine_version": "version",
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "dcp": "decode_context",
    "dtype": "dtype",
    "weight_dtype": "weight_dtype",
    "kv_dtype": "kv_dtype",
    "mamba_ssm_dtype": "state_dtype",
    "mla": "latent",
    "block_size": "block_tokens",
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "prefix_caching": "prefix_caching",
    "async_scheduling": "async_scheduling",
    "num_speculative_tokens": "speculative_tokens",
    "draft_layers": "draft_layers",
    "slots": "slots",
    "kv_unified": "unified",
}  # option to field of EngineInputs

# Options that only some engines have, with the value that says nothing: the others would pass over what they say.
_OF_ENGINES: Final = (
    ("slots", 1, ("LlamaCpp",)),
    ("kv_unified", False, ("LlamaCpp",)),
    ("mla", None, ("LlamaCpp",)),
    ("dcp", 1, ("vLLM",)),
    ("speculative_config", None, ("vLLM",)),
    ("async_scheduling", False, ("vLLM",)),
    ("mamba_ssm_dtype", "auto", ("vLLM", "SGLang")),
)
_PARTS: Final = {"gpu_memory": "memory", "weights": "weights", "activation": "activation", "other": "other"}
_COMPUTED: Final = ("auto", "fp32", "bf16", "fp16")  # types that engines compute in and keep state in
_NAMES: Final = {name: option for option, name in ENGINES.items()}


def engine_inputs(arguments: argparse.Namespace, base: EngineInputs) -> EngineInputs:
    """What the engine is started with. `base`: of the ModelPool, or the defaults. Raises CliError."""
    changes = {_FIELDS[name]: value for name, value in given(arguments, tuple(_FIELDS)).items()}
    if arguments.engine is not None:
        changes["engine"] = ENGINES[arguments.engine]
    if arguments.disable_hybrid_kv_cache_manager:
        changes["hybrid_manager"] = False
    if arguments.speculative_config is not None:
        changes |= _speculation(arguments)
    inputs = _in_one_spelling(replace(base, **changes))
    _check(arguments, inputs)
    return inputs


def asked_fields(arguments: argparse.Namespace) -> frozenset[str]:
    """The fields of EngineInputs that options were given for."""
    switched = {"hybrid_manager"} if arguments.disable_hybrid_kv_cache_manager else set()
    return frozenset({_FIELDS[name] for name in given(arguments, tuple(_FIELDS))} | switched)


def _in_one_spelling(inputs: EngineInputs) -> EngineInputs:
    """The inputs with every type as a ModelPool spells it."""
    return replace(
        inputs,
        dtype=in_pool_words(inputs.dtype),
        weight_dtype=in_pool_words(inputs.weight_dtype),
        kv_dtype=in_pool_words(inputs.kv_dtype),
        state_dtype=in_pool_words(inputs.state_dtype),
    )


def _check(arguments: argparse.Namespace, inputs: EngineInputs) -> None:
    for name, nothing, engines in _OF_ENGINES:
        if getattr(arguments, name) not in (None, nothing) and inputs.engine not in engines:
            option, having = f"--{name.replace('_', '-')}", " and ".join(_NAMES[each] for each in engines)
            raise CliError(f"{option} is for {having} only, the engine is {_NAMES[inputs.engine]}: leave it out")
    if arguments.gpu_count is not None and arguments.output != "yaml":
        raise CliError("--gpu-count is for -o yaml only, where it is the cards of a pod: leave it out")
    _check_types(inputs)
    if inputs.tensor % inputs.decode_context:
        raise CliError(f"--dcp {inputs.decode_context} does not divide --tp {inputs.tensor}: lower it, or raise --tp")


def _check_types(inputs: EngineInputs) -> None:
    """Types that no engine knows, also where this plan does not need them. Raises PlanError."""
    for option, dtype in (("dtype", inputs.dtype), ("mamba-ssm-dtype", inputs.state_dtype)):
        if dtype not in _COMPUTED:
            raise EngineUnknownError(f"{option} {quoted(dtype)} is not known: use one of {', '.join(_COMPUTED)}")
    if inputs.weight_dtype not in _COMPUTED:
        format_of(inputs.weight_dtype)


def _speculation(arguments: argparse.Namespace) -> dict[str, Any]:
    text = arguments.speculative_config
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"--speculative-config is not JSON: {error}; give the object that vLLM takes") from error
    if not isinstance(config, dict):
        raise CliError("--speculative-config must be a JSON object, as vLLM takes it: give {...}")
    stated, asked = config.get("num_speculative_tokens"), arguments.num_speculative_tokens
    if None not in (stated, asked) and stated != asked:
        raise CliError(
            f"--num-speculative-tokens {asked} and --speculative-config say different numbers of tokens ({stated}):"
            " keep one of them"
        )
    tokens = stated if asked is None else asked
    if tokens is None:
        return {"speculative": config}
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise CliError(f"--speculative-config: num_speculative_tokens {tokens!r} is not a whole number: correct it")
    return {"speculative": config, "speculative_tokens": tokens}


def plan_request(arguments: argparse.Namespace, base: PlanRequest) -> PlanRequest:
    """The whole request. `base`: of the ModelPool, or of the model alone. Raises CliError."""
    inputs = engine_inputs(arguments, base.inputs)
    card = _card(arguments, base.card)
    platform = base.platform if arguments.platform is None else arguments.platform
    kv = _kv(arguments, base, inputs, card)
    assumed = base.assumptions if arguments.engine is None else ()
    if arguments.kv_memory is not None and arguments.gpu_memory_utilization is not None:
        assumed = (*assumed, "--gpu-memory-utilization counts for nothing beside --kv-memory, as in the engine")
    return replace(base, inputs=inputs, card=card, platform=platform, kv=kv, assumptions=assumed)


def _card(arguments: argparse.Namespace, base: Card | None) -> Card | None:
    if base is None and arguments.gpu_memory is None:
        _refuse_parts(arguments)
        return None
    card = base or Card(arguments.gpu_memory)
    changes = {
        field: getattr(arguments, name) for name, field in _PARTS.items() if getattr(arguments, name) is not None
    }
    if arguments.gpu_memory_utilization is not None and arguments.kv_memory is None:
        changes["margin_percent"] = None
    return replace(card, **changes)


def _refuse_parts(arguments: argparse.Namespace) -> None:
    """Parts of a card that nobody named."""
    for name in _PARTS:
        if getattr(arguments, name) is not None:
            raise CliError(f"--{name} is a part of a card: give --gpu-memory too, or leave it out")


def _kv(arguments: argparse.Namespace, base: PlanRequest, inputs: EngineInputs, card: Card | None) -> KvSize:
    if arguments.kv_memory is not None:
        return KvBytes(arguments.kv_memory)
    if arguments.gpu_memory_utilization is not None and card is not None:
        return KvBudget(arguments.gpu_memory_utilization)
    if arguments.gpu_memory_utilization is not None and inputs.engine == "LlamaCpp":
        raise CliError("--gpu-memory-utilization is a part of a card: give --gpu-memory too, or leave it out")
    if card is None and inputs.engine != "LlamaCpp" and not isinstance(base.kv, KvBytes):
        raise CliError(
            "how much memory is there? Give --gpu-memory (of the card, as in 79.18GiB) or --kv-memory (of the KV cache)"
        )
    return base.kv
