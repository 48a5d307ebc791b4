"""The layers of a model as vLLM makes them, on torch's meta device: shapes without memory."""

import copy
import importlib
from typing import Any

from testengine.oracle.ranks import stand_at

Specs = dict[str, Any]

_READ_AS_NUMBERS = ("item", "tolist", "__float__", "__int__", "__bool__")


def part(name: str) -> Any:
    """A module of vLLM or torch, which are there only in the engine's environment."""
    return importlib.import_module(name)


def build_stage(engine: Any, stage: int) -> Any:
    """The configuration of one pipeline stage, its layers registered and its block size decided."""
    config = copy.deepcopy(engine)
    stand_at(config.parallel_config, stage)
    part("vllm.v1.worker.workspace").init_workspace_manager(part("torch").device("meta"))
    with part("vllm.config").set_current_vllm_config(config):
        _build(config, config.model_config)
        _build_drafter(config)
    part("vllm.platforms").current_platform.update_block_size_for_backend(config)
    return config


def specs_of(config: Any) -> tuple[Specs, int]:
    """What each layer of a built stage wants of the cache, and how many layers use the cache of another one."""
    specs: Specs = {}
    shared = 0
    customize = part("vllm.v1.worker.utils").customize_attention_spec
    for name, layer in layers_of(config).items():
        if getattr(layer, "kv_sharing_target_layer_name", None):
            shared += 1
            continue
        spec = layer.get_kv_cache_spec(config)
        if not spec:
            continue
        if isinstance(spec, part("vllm.v1.kv_cache_interface").AttentionSpec):
            spec = customize(layer.get_attn_backend(), spec)
        specs[name] = spec
    return specs, shared


def layers_of(config: Any) -> dict[str, Any]:
    base = part("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    found: dict[str, Any] = part("vllm.config.vllm").get_layers_from_vllm_config(config, base)
    return found


def card_as_meta() -> Any:
    """A mode in which every tensor that is asked for on a card is made on the meta device."""
    mode: Any = part("torch.overrides").TorchFunctionMode
    torch = part("torch")

    def moved(value: Any) -> Any:
        return "meta" if isinstance(value, int) or str(value).startswith("cuda") else value

    class CardAsMeta(mode):  # type: ignore[misc]  # its base is found at run time
        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, named = getattr(function, "__name__", ""), dict(kwargs or {})
            if "device" in named:
                named["device"] = moved(named["device"])
            if name == "cpu":
                return args[0]
            if name == "to":
                args = tuple("meta" if isinstance(value, str | torch.device) else value for value in args)
            if name in _READ_AS_NUMBERS and args[0].is_meta:
                # Only scales, slopes and thresholds are read while layers are made; no shape depends on them.
                return torch.ones(args[0].shape, device="cpu").tolist()
            return function(*args, **named)

    return CardAsMeta()


def _build(config: Any, model: Any, prefix: str = "") -> None:
    torch = part("torch")
    utils = part("vllm.model_executor.model_loader.utils")
    with part("vllm.utils.torch_utils").set_default_torch_dtype(model.dtype), torch.device("meta"), card_as_meta():
        utils.initialize_model(vllm_config=config, model_config=model, prefix=prefix)


def _build_drafter(config: Any) -> None:
    """The drafter of speculative decoding, whose layers join those of the model on the last stage."""
    speculation = config.speculative_config
    if speculation is None or speculation.draft_model_config is None or speculation.use_ngram():
        return
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1 and parallel.rank // parallel.tensor_parallel_size + 1 < (
        parallel.pipeline_parallel_size
    ):
        return
    replace = part("vllm.config").replace
    if speculation.uses_draft_model():
        drafter = replace(
            config,
            model_config=speculation.draft_model_config,
            quant_config=None,
            parallel_config=replace(speculation.draft_parallel_config, rank=parallel.rank),
        )
        _build(drafter, drafter.model_config, "draft_model")
        return
    _build(speculation.apply_draft_overrides(config), speculation.draft_model_config)
