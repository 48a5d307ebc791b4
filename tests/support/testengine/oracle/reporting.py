"""Write down what vLLM decided, in the form of the recorded rows."""

import importlib
from typing import Any

Document = dict[str, Any]

_SPEC_FIELDS = (
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "sliding_window",
    "attention_chunk_size",
    "page_size_padded",
    "num_speculative_blocks",
    "num_prefill_checkpoint_blocks",
    "mamba_cache_mode",
    "tokens_per_state",
    "mamba_type",
)


def resolved(engine: Any) -> Document:
    """What vLLM's configuration holds once it knows the layers and before it plans."""
    cache, scheduler, model = engine.cache_config, engine.scheduler_config, engine.model_config
    return {
        "cache_block_size": cache.block_size,
        "cache_dtype": cache.cache_dtype,
        "max_model_len": model.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "mamba_cache_mode": cache.mamba_cache_mode,
        "mamba_block_size": cache.mamba_block_size,
        "mamba_page_size_padded": cache.mamba_page_size_padded,
        "mamba_ssm_cache_dtype": cache.mamba_ssm_cache_dtype,
        "async_scheduling": scheduler.async_scheduling,
        "max_concurrent_batches": engine.max_concurrent_batches,
        "max_in_flight_tokens": engine.max_in_flight_tokens,
        "num_speculative_tokens": engine.num_speculative_tokens,
        "disable_hybrid_kv_cache_manager": scheduler.disable_hybrid_kv_cache_manager,
        "max_num_encoder_input_tokens": scheduler.max_num_encoder_input_tokens,
        "architecture": model.architecture,
        "dtype": _plain(model.dtype),
        "use_v2_model_runner": engine.use_v2_model_runner,
    }


def report(engine: Any, configs: list[Any], merged: Any) -> Document:
    """The plan: `configs` has one per pipeline stage, `merged` is what the scheduler works with."""
    planner: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
    groups = configs[0].kv_cache_groups
    used_length = engine.model_config.max_model_len
    result: Document = {
        "num_blocks": merged.num_blocks,
        "block_sizes": [group.kv_cache_spec.block_size for group in groups],
        "groups": _equal_ones_counted([_group(engine, configs, index) for index in range(len(groups))]),
        "max_model_len_used": used_length,
        "layout": engine.cache_config.kv_cache_layout,
    }
    if not groups:
        return result
    tokens, concurrency = planner.get_kv_cache_capacity(engine, merged)
    per_block = [planner._pool_bytes_per_block(engine, config.kv_cache_groups) for config in configs]
    needed = [
        planner._max_memory_usage_bytes_from_groups(engine, config.kv_cache_groups) + bytes_per_block
        for config, bytes_per_block in zip(configs, per_block, strict=True)
        if config.kv_cache_groups
    ]
    participating = [group.kv_cache_spec for group in merged.kv_cache_groups if group.kv_cache_spec.prefix_cacheable]
    engine.cache_config.block_size = min(
        spec.block_size for spec in participating or [group.kv_cache_spec for group in merged.kv_cache_groups]
    )
    scheduler_block, hash_block = planner.resolve_kv_cache_block_sizes(merged, engine)
    return result | {
        "page_bytes": _one_or_all([group.kv_cache_spec.page_size_bytes for group in groups]),
        "bytes_per_block": _one_or_all(per_block),
        "kv_cache_size_tokens": tokens,
        "max_concurrency": concurrency,
        "max_concurrency_logged": f"{concurrency:.2f}",
        "scheduler_block_size": scheduler_block,
        "hash_block_size": hash_block,
        "min_bytes_needed_one_request": max(needed),
    }


def _group(engine: Any, configs: list[Any], index: int) -> Document:
    interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    stages = [config.kv_cache_groups[index] for config in configs]
    spec = stages[0].kv_cache_spec
    layers = [len(stage.layer_names) for stage in stages]
    kind = interface.get_kv_cache_spec_kind(spec).value
    document: Document = {
        "kind": kind,
        "cls": type(spec).__name__,
        "block_size": spec.block_size,
        "page_bytes": spec.page_size_bytes,
    }
    document |= _mixture(spec) if hasattr(spec, "kv_cache_specs") else _fields(spec)
    document["layers"] = layers[0]
    if len(layers) > 1:
        document["layers_per_pp_stage"] = layers
    if any(stage.is_eagle_group for stage in stages):
        document["is_eagle_group"] = True
    needed = spec.max_memory_usage_bytes(engine)
    return document | {"blocks_per_request": -(-needed // spec.page_size_bytes)}


def _fields(spec: Any) -> Document:
    document = {name: _plain(getattr(spec, name)) for name in _SPEC_FIELDS if getattr(spec, name, None) is not None}
    if getattr(spec, "extra_retained_tokens", 0):
        document["extra_retained_tokens"] = spec.extra_retained_tokens
    if hasattr(spec, "shapes"):
        return document | {
            "shapes": [list(shape) for shape in spec.shapes],
            "dtypes": [_plain(dtype) for dtype in spec.dtypes],
        }
    return document | {"dtype": _plain(spec.dtype)}


def _mixture(spec: Any) -> Document:
    """A group of layers of one kind with pages of several sizes."""
    first = spec.first_spec
    kept = ("sliding_window", "extra_retained_tokens", "num_speculative_blocks", "num_prefill_checkpoint_blocks")
    document = {name: getattr(first, name) for name in kept if getattr(first, name, None) is not None}
    counts: dict[tuple[Any, ...], int] = {}
    for inner in spec.kv_cache_specs.values():
        key = (
            type(inner).__name__,
            inner.page_size_bytes,
            getattr(inner, "num_kv_heads", None),
            getattr(inner, "head_size", None),
        )
        counts[key] = counts.get(key, 0) + 1
    names = ("cls", "page_bytes", "num_kv_heads", "head_size")
    mixed = [dict(zip(names, key, strict=True)) | {"layers": count} for key, count in counts.items()]
    return document | {"first_spec_cls": type(first).__name__, "mixed": mixed}


def _equal_ones_counted(groups: list[Document]) -> list[Document]:
    counted: list[Document] = []
    for group in groups:
        if counted and {name: value for name, value in counted[-1].items() if name != "count"} == group:
            counted[-1]["count"] += 1
        else:
            counted.append(group | {"count": 1})
    return counted


def _one_or_all(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _plain(value: Any) -> Any:
    if isinstance(value, int | str | None) and not hasattr(value, "name"):
        return value
    if str(value).startswith("torch."):
        return str(value).removeprefix("torch.")
    return getattr(value, "name", str(value))
