"""What speculative decoding adds: layers of the drafter that keep a cache, and tokens drafted per step.

Decides from --speculative-config, or from the number of draft layers, which layers a drafter adds. Pure.

Invariants:

1. Draft layers come after the layers of the model, on the last pipeline stage.
2. A method that is not in the tables, or a drafter whose config is not given, is an error that names it.

It does not know the weights of a drafter. Source: vllm/config/speculative.py, vllm/config/vllm.py of 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvquota_api.memory.errors import EngineUnknownError, ModelConfigError
from kvquota_api.memory.inputs import EngineInputs
from kvquota_api.memory.models.layers import Attention, Cache, Latent, Layer, ModelShape
from kvquota_api.memory.models.reading import read_model
from kvquota_api.quoting import quoted

_LAYERLESS: Final = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
_OWN_MODEL: Final = frozenset({"eagle", "eagle3", "draft_model", "dflash"})
_EAGLE_LIKE: Final = frozenset({"eagle", "eagle3", "mtp", "dflash"})  # SpeculativeConfig.use_eagle
# Architectures of drafters (_SPECULATIVE_DECODING_MODELS in vllm/model_executor/models/registry.py).
_DRAFTER: Final = re.compile(r"P?[Ee]agle3?\w+|\w+Eagle3|DFlash\w+")
_SYNCHRONOUS: Final = frozenset({"ngram", "suffix", "medusa", "mlp_speculator"})  # VllmConfig.__post_init__


MAX_DRAFT_LAYERS: Final = 256  # as a ModelPool allows; the largest drafters are models of some 80 layers
MAX_DRAFTED_TOKENS: Final = 1024  # of one step: engines draft tens


@dataclass(frozen=True, slots=True)
class Speculation:
    """`method`: "" without speculation; `tokens`: drafted per step; `layers`: of the drafter, in order."""

    method: str = ""
    tokens: int = 0
    layers: tuple[Layer, ...] = ()

    @property
    def eagle_like(self) -> bool:
        """Drafts from the model's hidden states."""
        return self.method in _EAGLE_LIKE

    @property
    def synchronous(self) -> bool:
        """Turns asynchronous scheduling off."""
        return self.method in _SYNCHRONOUS

    @property
    def retained_tokens(self) -> int:
        """Tokens kept below a sliding window for drafters of several modules (num_prefill_lookahead_tokens - 1)."""
        several = self.method == "mtp" and min(len(self.layers), self.tokens) > 1
        return self.tokens - 1 if several else 0


def speculation_of(model: ModelShape, inputs: EngineInputs) -> Speculation:
    """What the inputs ask for; EngineUnknownError where the drafter cannot be told."""
    asked = inputs.speculative
    _check_bounds(inputs)
    if asked is None:
        return _by_count(model, inputs)
    tokens = _tokens(asked, inputs)
    method = _method(asked)
    if method in _LAYERLESS:
        if inputs.draft_layers:
            raise EngineUnknownError(
                f"draft layers: {inputs.draft_layers}, and a drafter of method {method} keeps none: leave one out"
            )
        return Speculation(method, tokens)
    if method == "mtp":
        return Speculation(method, tokens, _own_heads(model))
    return Speculation(method, tokens, _drafter(asked, model, inputs))


def _check_bounds(inputs: EngineInputs) -> None:
    if inputs.draft_layers > MAX_DRAFT_LAYERS:
        raise EngineUnknownError(
            f"draft layers: {inputs.draft_layers} is more than any drafter has: give a number from 0 to"
            f" {MAX_DRAFT_LAYERS}"
        )
    if inputs.speculative_tokens > MAX_DRAFTED_TOKENS:
        raise EngineUnknownError(
            f"speculative tokens: {inputs.speculative_tokens} is more than any engine drafts: give a number from 0 to"
            f" {MAX_DRAFTED_TOKENS}"
        )


def _by_count(model: ModelShape, inputs: EngineInputs) -> Speculation:
    if inputs.draft_layers == 0:
        return Speculation("ngram_gpu", inputs.speculative_tokens) if inputs.speculative_tokens else Speculation()
    tokens = max(1, inputs.speculative_tokens)
    if len(model.draft_layers) == inputs.draft_layers:
        return Speculation("mtp", tokens, model.draft_layers)
    return Speculation("eagle", tokens, _like_the_model(model, inputs.draft_layers))


def _tokens(asked: Mapping[str, Any], inputs: EngineInputs) -> int:
    tokens = asked.get("num_speculative_tokens", inputs.speculative_tokens)
    if "num_speculative_tokens" not in asked and not tokens:
        raise EngineUnknownError("speculative config: num_speculative_tokens is missing: give a number of at least 1")
    if not isinstance(tokens, int) or not 1 <= tokens <= MAX_DRAFTED_TOKENS:
        raise EngineUnknownError(
            f"speculative config: num_speculative_tokens is {quoted(tokens)}: give a number from 1 to"
            f" {MAX_DRAFTED_TOKENS}"
        )
    return tokens


def _method(asked: Mapping[str, Any]) -> str:
    method = asked.get("method")
    if isinstance(method, str) and (method == "mtp" or method.endswith("_mtp")):
        return "mtp"
    if isinstance(method, str) and method in _LAYERLESS | _OWN_MODEL:
        return method
    known = ", ".join(sorted(_LAYERLESS | _OWN_MODEL | {"mtp"}))
    raise EngineUnknownError(f"speculative config: method {quoted(method)} is not known: use one of {known}")


def _own_heads(model: ModelShape) -> tuple[Layer, ...]:
    if model.draft_layers:
        return model.draft_layers
    raise ModelConfigError(
        f"{model.architecture} has no multi-token prediction layers in its config (num_nextn_predict_layers): "
        "use another speculative method"
    )


def _drafter(asked: Mapping[str, Any], model: ModelShape, inputs: EngineInputs) -> tuple[Layer, ...]:
    config = asked.get("model")
    if isinstance(config, Mapping):
        layers = tuple(layer for layer in read_model(_plain(config)).layers if layer)
        shared = "layer_types" not in config and _window_of_all(layers) is not None
        return _sliding_like(_window_of_all(model.layers), _never_sliding(layers) if shared else layers)
    if inputs.draft_layers:
        return _like_the_model(model, inputs.draft_layers)
    raise EngineUnknownError(
        f"speculative config: the drafter {quoted(config)} is not known: give its config as model, "
        "or the number of its layers as draft layers"
    )


def _sliding_like(window: int | None, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """A drafter's layers without a window take the one of all the model's layers: it is part of the cache's config."""
    return tuple(tuple(_slid(cache, window) for cache in layer) for layer in layers)


def _never_sliding(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The window of all layers of a drafter is not heard: the cache's config is the model's."""
    return tuple(tuple(_unslid(cache) for cache in layer) for layer in layers)


def _slid(cache: Cache, window: int | None) -> Cache:
    return replace(cache, window=window) if isinstance(cache, Attention) and cache.window is None else cache


def _unslid(cache: Cache) -> Cache:
    return replace(cache, window=None) if isinstance(cache, Attention) else cache


def _window_of_all(layers: tuple[Layer, ...]) -> int | None:
    """The window that all layers of attention share, None where they do not."""
    windows = {cache.window for layer in layers for cache in layer if isinstance(cache, Attention)}
    return windows.pop() if len(windows) == 1 else None


def _plain(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A drafter's config, read by its model type: its architecture is that of a model with a drafter's head."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else ""
    if isinstance(name, str) and _DRAFTER.fullmatch(name):
        return {field: value for field, value in config.items() if field != "architectures"}
    return config


def _like_the_model(model: ModelShape, count: int) -> tuple[Layer, ...]:
    """`count` layers with the full attention of the model."""
    for layer in reversed(model.layers):
        if any(isinstance(cache, Attention | Latent) and cache.window is None for cache in layer):
            return (layer,) * count
    raise EngineUnknownError(
        f"{model.architecture} has no layer of full attention for {count} draft layers to be like: "
        "give the drafter's config in the speculative config"
    )
