"""A plan as a ModelPool that is ready to apply.

Decides which fields of the spec say what was planned. The KV cache is stated in bytes: the pool is exactly the plan.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any, Final

import yaml

from kvquota_api.amounts import Bytes, format_quantity
from kvquota_api.memory.cache_plan import CachePlan
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.partition import Partition
from kvquota_api.memory.planning import Card, CardPlan, plan_cache
from kvquota_api.meta import API_VERSION
from kvquota_api.model_pool import ModelPool
from kvquota_api.validation import InvalidObjectError, parse_model_pool
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.planning.sources import ModelSource

MAX_ROUNDINGS: Final = 8  # blocks that an engine may lose when it divides its memory over several pools
MAX_NAME: Final = 63  # characters: a label's value, which the selector below needs too

_HEADER: Final = """\
# Planned by kvquota. Before you apply it: the selector must match the labels of your pods, and spec.model.name must be
# what clients send as "model".
"""


def pool_yaml(arguments: argparse.Namespace, source: ModelSource, plan: CardPlan) -> str:
    """The ModelPool as YAML. Raises CliError where the plan does not fit, or where a ModelPool cannot say it."""
    if plan.problem is not None or plan.undivided is not None or plan.cache is None:
        raise CliError(str(plan.problem or plan.undivided), ExitCode.NO_PLAN)
    card = plan.request.card
    if card is None:
        raise CliError("-o yaml needs --gpu-memory: a ModelPool states its card")
    if not plan.inputs.latent:
        raise CliError("a ModelPool cannot say --no-mla: convert the model's file anew, or leave -o yaml out")
    manifest = _manifest(source, plan, plan.cache, card, arguments.gpu_count)
    if arguments.context is not None:
        mix = [{"contextTokens": each, "weight": 1} for each in arguments.context]
        manifest["spec"]["workload"] = {"contextMix": mix}
    pool = _checked(manifest)
    return _HEADER + yaml.safe_dump(_written(pool), sort_keys=False, width=120, allow_unicode=True)


def _checked(manifest: dict[str, Any]) -> ModelPool:
    try:
        return parse_model_pool(manifest)
    except InvalidObjectError as error:
        raise CliError(f"a ModelPool cannot say this plan: {error}") from error


def _manifest(
    source: ModelSource, plan: CardPlan, cache: CachePlan, card: Card, gpu_count: int | None
) -> dict[str, Any]:
    if source.pool is not None:
        base = source.pool.as_written()
        base.pop("status", None)
        return _merged(base, _planned(plan, cache, card, gpu_count or source.pool.spec.gpu.count))
    name = _name(source.name)
    config = {"preset": source.preset} if source.preset is not None else {"inline": dict(source.config)}
    return _merged(
        {
            "apiVersion": API_VERSION,
            "kind": "ModelPool",
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"app": name}}, "model": {"name": source.name, "config": config}},
        },
        _planned(plan, cache, card, gpu_count),
    )


def _planned(plan: CardPlan, cache: CachePlan, card: Card, gpu_count: int | None) -> dict[str, Any]:
    inputs, parts = plan.inputs, plan.partition
    memory: dict[str, Any] = {"kvPool": {"bytes": format_quantity(_kv_bytes(plan, cache))}}
    for field, size in (("weights", card.weights), ("activation", card.activation), ("other", card.other)):
        if size is not None:
            memory[field] = format_quantity(size)
    if parts is not None:
        stated = card.margin_percent
        memory["safetyMarginPercent"] = _margin_percent(parts) if stated is None else stated
    return {
        "spec": {
            "model": _model(inputs, cache),
            "engine": _engine(inputs),
            "gpu": {
                "memory": format_quantity(card.memory),
                "count": gpu_count or inputs.tensor * inputs.pipeline * inputs.data,
                "platform": inputs.platform,
            },
            "memory": memory,
        }
    }


def _kv_bytes(plan: CardPlan, cache: CachePlan) -> Bytes:
    """Bytes of which the engine makes this very cache: what it takes, or more where it would round that down."""
    size = cache.kv_bytes
    inputs = replace(plan.inputs, max_model_len=cache.max_model_len * plan.inputs.streams)
    for _ in range(MAX_ROUNDINGS):
        again = plan_cache(plan.model, inputs, size)
        if again.blocks >= cache.blocks:
            break
        size += cache.bytes_per_block
    return Bytes(size)


def _model(inputs: EngineInputs, cache: CachePlan) -> dict[str, Any]:
    keys, _, values = inputs.kv_dtype.partition("/")
    return {
        "dtype": inputs.dtype,
        "weightDtype": inputs.weight_dtype,
        "kvCacheDtype": keys,
        **({"valueCacheDtype": values} if values else {}),
        "stateDtype": inputs.state_dtype,
        "maxModelLen": cache.max_model_len,
    }


def _engine(inputs: EngineInputs) -> dict[str, Any]:
    stated = {
        "type": inputs.engine,
        "version": inputs.version,
        "blockSize": inputs.block_tokens,
        "parallelism": {
            "tensor": inputs.tensor,
            "pipeline": inputs.pipeline,
            "data": inputs.data,
            "decodeContext": inputs.decode_context,
        },
        "maxNumSeqs": inputs.max_num_seqs,
        "maxNumBatchedTokens": inputs.max_num_batched_tokens,
        "slots": inputs.slots if inputs.engine == "LlamaCpp" else None,
        "unifiedKvCache": inputs.unified if inputs.engine == "LlamaCpp" else None,
        "prefixCaching": inputs.prefix_caching,
        "asyncScheduling": inputs.async_scheduling,
        "hybridKvCacheManager": None if inputs.hybrid_manager else False,
        "speculation": {
            "tokens": inputs.speculative_tokens,
            "draftLayers": inputs.draft_layers,
            **({} if inputs.speculative is None else {"config": dict(inputs.speculative)}),
        },
    }
    return {field: value for field, value in stated.items() if value is not None}


def _margin_percent(parts: Partition) -> int:
    """What the engine's budget leaves, rounded down, so that the parts still fit; a ModelPool leaves 50 % at most."""
    return min(50, parts.safety_margin * 100 // parts.card)


def _name(model: str) -> str:
    """A name that Kubernetes takes, from that of the model."""
    words = re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")
    return words[:MAX_NAME].strip("-") or "model"


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, mapping by mapping; how the KV cache was stated before gives way as a whole."""
    return base | {
        key: _merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key not in ("kvPool", "config")
        else value
        for key, value in changes.items()
    }


def _written(pool: ModelPool) -> dict[str, Any]:
    """As a user would write it: without what the API server fills in by itself."""
    stated = pool.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"apiVersion": pool.api_version, "kind": pool.kind, "metadata": stated["metadata"], "spec": stated["spec"]}
