"""Ask vLLM's own functions for the plan of one row: what the engine does from arguments to the size that it logs."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testengine.oracle.building import build_stage, layers_of, part, specs_of
from testengine.oracle.reporting import report, resolved

Document = dict[str, Any]

# What a row calls otherwise than vLLM does.
_RENAMED = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dcp": "decode_context_parallel_size"}
# Classes that come with a model's own code and derive from a known one, of which they keep the defaults.
_DERIVED = {"mimo": "Qwen2Config"}
_NOT_ARGUMENTS = ("platform", "num_speculative_tokens")


def plan(config: Document, arguments: Document) -> Document:
    """`resolved` and `result` of a row; raises what vLLM raises where it refuses."""
    _know_kind(config)
    with folder_with(config) as folder:
        usage = part("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
        engine = engine_arguments(folder, arguments).create_engine_config(usage_context=usage)
        stages = [build_stage(engine, stage) for stage in range(engine.parallel_config.pipeline_parallel_size)]
    return _plan_stages(stages)


def _know_kind(config: Document) -> None:
    """Let a model type be read whose class comes with the model's own code: its fields as they stand, no defaults."""
    kind = config.get("model_type")
    known = part("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if kind is None or kind in known or kind in part("vllm.transformers_utils.config")._CONFIG_REGISTRY:
        return
    base: Any = getattr(part("transformers"), _DERIVED.get(kind, "PretrainedConfig"))

    class FieldsAsTheyStand(base):  # type: ignore[misc]  # its base is found at run time
        model_type = kind

        def __init__(self, **fields: Any) -> None:
            if blocks := fields.pop("block_configs", None):
                self.block_configs = [_attributes(block) for block in blocks]
            super().__init__(**fields)

    part("transformers").AutoConfig.register(kind, FieldsAsTheyStand)


def _attributes(value: Any) -> Any:
    """Nested fields as attributes, as the classes of such models have the ones of their layers."""
    if not isinstance(value, dict):
        return value
    return _Attributes({name: _attributes(inner) for name, inner in value.items()})


class _Attributes(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


@contextmanager
def folder_with(config: Document) -> Iterator[Path]:
    """A folder that vLLM takes for a model: its config.json and nothing else."""
    with tempfile.TemporaryDirectory(prefix="kvquota-oracle-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder


def engine_arguments(folder: Path, arguments: Document) -> Any:
    """The arguments of a row as vLLM's own, for the model whose config is in the folder."""
    named = {_RENAMED.get(name, name): value for name, value in arguments.items() if name not in _NOT_ARGUMENTS}
    if "speculative_config" in named:
        named["speculative_config"] = _speculation(folder, named["speculative_config"])
    named |= {"model": str(folder), "tokenizer": str(folder), "skip_tokenizer_init": True, "load_format": "dummy"}
    return part("vllm.engine.arg_utils").EngineArgs(**named)


def _speculation(folder: Path, wanted: Document) -> Document:
    """The drafter's own config in a folder of its own, as vLLM wants it."""
    if not isinstance(wanted.get("model"), dict):
        return wanted
    drafter = folder / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps(wanted["model"]), encoding="utf-8")
    return wanted | {"model": str(drafter)}


def _plan_stages(stages: list[Any]) -> Document:
    engine = stages[0]
    built = [specs_of(stage) for stage in stages]
    specs = [found for found, _ in built]
    _before_planning(engine, stages, specs)
    before = resolved(engine)
    bytes_per_rank = engine.cache_config.kv_cache_memory_bytes
    with part("vllm.config").set_current_vllm_config(engine):
        planner = part("vllm.v1.core.kv_cache_utils")
        available = [bytes_per_rank if any(specs) else 0] * len(specs)
        configs = planner.get_kv_cache_configs(engine, specs, available)
        merged = planner.generate_scheduler_kv_cache_config(configs)
        result = report(engine, configs, merged)
    result["backends"] = _backends(stages)
    if shared := sum(count for _, count in built):
        result["kv_shared_layers"] = shared
    return {"resolved": before, "result": result}


def _before_planning(engine: Any, stages: list[Any], specs: list[dict[str, Any]]) -> None:
    """What the engine core does between the layers and the plan."""
    part("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(engine)
    everything = [spec for found in specs for spec in found.values()]
    if any(getattr(spec, "non_causal", False) for spec in everything):
        engine.scheduler_config.enable_chunked_prefill = False
        engine.cache_config.enable_prefix_caching = False
    layouts = part("vllm.v1.attention.backends.utils")
    supported = []
    for stage in stages:
        with part("vllm.config").set_current_vllm_config(stage):
            backends = part("vllm.v1.worker.worker_base").get_current_attn_backends(stage)
            supported.append([layout.name for layout in layouts.get_supported_kv_cache_layouts(backends)])
    layouts.resolve_kv_cache_layout(engine, supported, everything)


def _backends(stages: list[Any]) -> list[str]:
    names: dict[str, None] = {}
    for stage in stages:
        with part("vllm.config").set_current_vllm_config(stage):
            for layer in layers_of(stage).values():
                names[layer.get_attn_backend().__name__] = None
    return list(names)
