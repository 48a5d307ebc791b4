"""The engine of a pool, as the spec states it: how it is or will be started.

Decides the fields, their bounds and what they can decide about each other. Pure. What an engine takes for a field that
is left out is decided by `kvquota_api.memory`, by engine, version and platform.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt

from kvquota_api.resource import Model, Port, TokenCount
from kvquota_api.rules import Rule
from kvquota_api.served_model import FreeForm
from kvquota_api.words import ContainerName, Printable

EngineType = Literal["vLLM", "SGLang", "LlamaCpp", "TensorRTLLM", "OpenAI"]
Devices = Annotated[StrictInt, Field(ge=1, le=1024)]
Sequences = Annotated[StrictInt, Field(ge=1, le=65536)]


class Parallelism(Model):
    """How the model is spread over GPUs."""

    tensor: Devices = 1
    """GPUs that share each layer."""
    pipeline: Devices = 1
    """Stages that the layers are divided into."""
    data: Devices = 1
    """Copies of the model in one pod, each with a KV pool of its own."""
    decode_context: Devices = 1
    """GPUs of one tensor group that share the tokens of a sequence; divides tensor."""

    @property
    def gpus(self) -> int:
        """GPUs that one pod needs."""
        return self.tensor * self.pipeline * self.data

    rules = (
        Rule(
            cel="self.tensor % self.decodeContext == 0",
            message="decodeContext must divide tensor: lower decodeContext or raise tensor",
            holds=lambda each: each.tensor % each.decode_context == 0,
            field="decodeContext",
        ),
    )


class Speculation(Model):
    """Speculative decoding."""

    tokens: Annotated[StrictInt, Field(ge=0, le=64)] = 0
    """Tokens that are guessed per step; 0: none, or as many as config says."""
    draft_layers: Annotated[StrictInt, Field(ge=0, le=256)] = 0
    """Layers of the draft model that keep KV of their own, like the model's layers; 0: none, or what config says."""
    config: FreeForm | None = None
    """The drafter in vLLM's own words, as --speculative-config takes it: method, num_speculative_tokens, and as model
    the drafter's config.json. Default: no drafter beyond draftLayers."""


class Engine(Model):
    """The engine that serves the model, as it is or will be started."""

    type: EngineType
    """Kind of engine. OpenAI: any other that speaks the OpenAI protocol; nothing is known of its memory."""
    version: Printable | None = None
    """Version of the engine, as in "0.32". Default: the newest that kvquota knows."""
    container: ContainerName | None = None
    """Name of the engine's container. Default: the pod's only container."""
    port: Port = 8000
    """Port that the engine serves on, as the pod's spec says."""
    block_size: Annotated[StrictInt, Field(ge=1, le=65536)] | None = None
    """Tokens in one KV block. Default: that of the engine."""
    parallelism: Parallelism = Parallelism()
    """How the model is spread over GPUs."""
    max_num_seqs: Sequences | None = None
    """Sequences in one step. Default: that of the engine."""
    max_num_batched_tokens: TokenCount | None = None
    """Tokens in one step (llama.cpp: --ubatch-size). Default: that of the engine."""
    slots: Sequences | None = None
    """llama.cpp only (--parallel): sequences that are served at the same time, each with room for maxModelLen tokens;
    with unifiedKvCache they share room for maxModelLen tokens. Default: 1."""
    unified_kv_cache: StrictBool | None = None
    """llama.cpp only (--kv-unified): whether the slots share one cache, so that one of them can hold more than its
    part. Default: false."""
    prefix_caching: StrictBool | None = None
    """Whether the engine keeps blocks of finished requests for prefix hits. Default: that of the engine for this
    model."""
    async_scheduling: StrictBool | None = None
    """vLLM only (--async-scheduling): whether the next step is prepared while one runs, so that tokens of two steps are
    in flight. Default: that of the engine."""
    hybrid_kv_cache_manager: StrictBool | None = None
    """Whether layers that look back over a window only keep only that. false: they keep every token (vLLM:
    --disable-hybrid-kv-cache-manager, llama.cpp: --swa-full). Default: that of the engine for this model."""
    speculation: Speculation = Speculation()
    """Speculative decoding."""
    plugin: Literal["Off", "Measure", "Enforce"] = "Off"
    """kvquota inside vLLM. "Off" (with quotes): nothing runs there. Measure: exact accounting. Enforce: quotas hold in
    its scheduler."""

    rules = (
        Rule(
            cel="self.plugin == 'Off' || self.type == 'vLLM'",
            message='the plugin runs inside vLLM only: set plugin "Off" (with quotes) or type vLLM',
            holds=lambda engine: engine.plugin == "Off" or engine.type == "vLLM",
            field="plugin",
        ),
        Rule(
            cel="!has(self.slots) || self.type == 'LlamaCpp'",
            message="slots are llama.cpp's: set type LlamaCpp, or leave them out and say maxNumSeqs",
            holds=lambda engine: engine.slots is None or engine.type == "LlamaCpp",
            field="slots",
        ),
        Rule(
            cel="!has(self.unifiedKvCache) || self.type == 'LlamaCpp'",
            message="unifiedKvCache is llama.cpp's: leave it out or set type LlamaCpp",
            holds=lambda engine: engine.unified_kv_cache is None or engine.type == "LlamaCpp",
            field="unifiedKvCache",
        ),
        Rule(
            cel="!has(self.asyncScheduling) || self.type == 'vLLM'",
            message="asyncScheduling is vLLM's: leave it out or set type vLLM",
            holds=lambda engine: engine.async_scheduling is None or engine.type == "vLLM",
            field="asyncScheduling",
        ),
        Rule(
            cel="!has(self.speculation.config) || self.type == 'vLLM'",
            message="speculation.config is in vLLM's words: say tokens and draftLayers instead, or set type vLLM",
            holds=lambda engine: engine.speculation.config is None or engine.type == "vLLM",
            field="speculation.config",
        ),
    )
