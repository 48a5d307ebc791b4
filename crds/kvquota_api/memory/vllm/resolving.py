"""What vLLM sets where nothing was given: the defaults of a version and platform, as its config holds them.

Decides every setting that the KV cache depends on, and says which were defaults. Pure.

Invariants:

1. What was given is never replaced, except where vLLM itself does so; then `warnings` says it.
2. Every default is one sentence in `assumptions`.

It does not know the layers' sizes. Sources: vllm/engine/arg_utils.py `get_batch_defaults` and
`_set_default_max_num_seqs_and_batched_tokens_args`, vllm/config/vllm.py, vllm/platforms/cpu.py of 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from kvquota_api.memory.errors import EngineUnknownError
from kvquota_api.memory.inputs import LONGEST, EngineInputs, Platform
from kvquota_api.memory.models.layers import Attention, Dtype, ModelShape, Quantisation
from kvquota_api.memory.vllm.backends import DEFAULT_BLOCK
from kvquota_api.memory.vllm.dtypes import KvFormat, compute_dtype, kv_format
from kvquota_api.memory.vllm.speculation import Speculation, speculation_of
from kvquota_api.memory.vllm.traits import Traits, traits_of
from kvquota_api.memory.vllm.versions import Rules, guesses, rules_of

_T = TypeVar("_T", int, bool, str)

_MODELOPT_SCHEMES: Final = frozenset({"fp8", "nvfp4"})  # MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP

CONFIG_DTYPES: Final[Mapping[Dtype, str]] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

# (max_num_batched_tokens, max_num_seqs) of a server, of a Python program (get_batch_defaults): cards of 70 GiB and more
# but for the A100, of 160 GiB and more, and the rest; for the CPU times the number of processes.
_SERVER: Final[Mapping[Platform, tuple[int, int]]] = {
    "cuda-sm80": (2048, 256),
    "cuda-sm90": (8192, 1024),
    "cuda-sm100": (16384, 1024),
    "cpu": (2048, 128),
}
_PROGRAM: Final[Mapping[Platform, tuple[int, int]]] = {
    "cuda-sm80": (8192, 256),
    "cuda-sm90": (16384, 1024),
    "cuda-sm100": (16384, 1024),
    "cpu": (4096, 256),
}
_LEAST_MLA_BATCH: Final = 2048  # tokens; SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS, used for latents on the CPU

_PACKED_WIDTH: Final = 576  # elements of a latent that plain "fp8" packs; others have to ask for fp8_ds_mla
_NO_FP8: Final = frozenset({"cuda-sm80"})  # Triton's backends take fp8 from compute capability 8.9 on
CPU_BLOCK: Final = 128  # tokens; CpuPlatform.check_and_update_config
CPU_RECORD_BLOCK: Final = 256  # tokens; the same, for DeepSeek-V4
_UNKNOWN_LENGTH: Final = 2048  # tokens; _get_and_verify_max_len

# Models that are never hybrids (IsAttentionFree in vllm/model_executor/models); others of state layers only are.
_ATTENTION_FREE: Final = frozenset({"MambaForCausalLM", "FalconMambaForCausalLM", "Mamba2ForCausalLM"})

# Models whose config says a type of the state that vLLM does not read (Qwen3_5ForConditionalGenerationConfig does).
_OWN_STATE_DTYPE: Final = frozenset({"Qwen3NextForCausalLM"})

# Models that CPUs do not serve: diffusion needs the new runner, and only Triton's attention has `supports_alibi_sqrt`,
# which has to be asked for on GPUs.
_GPU_ONLY: Final = frozenset({"DiffusionGemmaForBlockDiffusion", "Step1ForCausalLM"})
_TRITON_ONLY: Final = frozenset({"Step1ForCausalLM"})

# Models whose attention is not told of the cache's config (vllm/model_executor/models/falcon.py).
_OWN_KV_DTYPE: Final = frozenset({"FalconForCausalLM", "RWForCausalLM"})


@dataclass(frozen=True, slots=True)
class Settings:
    """vLLM's config before planning. Tokens, types by vLLM's names; `block`: the block size asked for, None: not given.

    `batches`: steps that may be in flight at once; `encoder_tokens`: budget of an encoder; `fit_longest`: the longest
    `max_model_len` that fits is looked for; `aligned_states`: states are kept at block boundaries for prefix caching.
    """

    rules: Rules
    traits: Traits
    speculation: Speculation
    platform: Platform
    compute: str
    kv: KvFormat
    recurrent: str
    block: int | None
    max_model_len: int
    fit_longest: bool
    batched_tokens: int
    sequences: int
    encoder_tokens: int
    batches: int
    prefix_caching: bool
    aligned_states: bool
    hybrid_manager: bool
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def in_flight(self) -> int:
        """Tokens scheduled but not settled (VllmConfig.max_in_flight_tokens)."""
        return self.batched_tokens * (self.batches if self.rules.counts_steps_in_flight else 1)


class _Notes:
    """Sentences gathered while settings are resolved."""

    def __init__(self) -> None:
        self.assumptions: list[str] = []
        self.warnings: list[str] = []

    def default(self, name: str, value: _T, why: str) -> _T:
        self.assumptions.append(f"{name} not given: {value}, {why}")
        return value


def settle(model: ModelShape, inputs: EngineInputs) -> Settings:
    """All settings; EngineUnknownError, ModelConfigError where one cannot be told."""
    _check_sizes(inputs)
    notes = _Notes()
    rules = _rules(inputs, notes)
    traits = traits_of(model)
    _check_supported(model, traits, inputs, notes)
    speculation = _speculation(model, inputs, notes)
    length = _max_model_len(model, inputs, notes)
    compute = _compute(model, inputs, notes)
    prefix = _prefix_caching(model, traits, inputs, rules, notes)
    at_once = 0 if rules.chunked_prefill and not model.encoder_decoder else length
    batched, sequences = _batch(length, at_once, inputs, notes)
    encoder = batched
    if _reference_mla(traits, inputs.platform):
        batched = max(length, _LEAST_MLA_BATCH)
    return Settings(
        rules=rules,
        traits=traits,
        speculation=speculation,
        platform=inputs.platform,
        compute=compute,
        kv=_kv(model, traits, compute, inputs, notes),
        recurrent=_recurrent(model, traits, inputs, notes),
        block=_block(traits, inputs, notes),
        max_model_len=length,
        fit_longest=inputs.max_model_len == LONGEST,
        batched_tokens=batched,
        sequences=sequences,
        encoder_tokens=encoder,
        batches=_batches(speculation, rules, inputs, notes),
        prefix_caching=prefix,
        aligned_states=prefix and traits.states,
        hybrid_manager=_hybrid_manager(model, speculation, rules, inputs, notes),
        assumptions=tuple(notes.assumptions),
        warnings=tuple(notes.warnings),
    )


def _rules(inputs: EngineInputs, notes: _Notes) -> Rules:
    if inputs.version is None:
        notes.default("engine version", "0.32", "the version whose rules are planned by")
    else:
        notes.assumptions.extend(guesses(inputs.version))
    return rules_of(inputs.version)


def _speculation(model: ModelShape, inputs: EngineInputs, notes: _Notes) -> Speculation:
    if inputs.speculative_tokens and inputs.speculative is None and not inputs.draft_layers:
        notes.assumptions.append("the drafter keeps no cache of its own: give its layers, or the speculative config")
    return speculation_of(model, inputs)


def _check_sizes(inputs: EngineInputs) -> None:
    """Sizes that vLLM's own config refuses."""
    sizes = {
        "tensor parallel size": inputs.tensor,
        "pipeline parallel size": inputs.pipeline,
        "decode context parallel size": inputs.decode_context,
        "block size": inputs.block_tokens,
        "max_model_len": None if inputs.max_model_len == LONGEST else inputs.max_model_len,
        "max_num_batched_tokens": inputs.max_num_batched_tokens,
        "max_num_seqs": inputs.max_num_seqs,
    }
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise EngineUnknownError(f"{name} is {size}: give a number of at least 1")


def _check_supported(model: ModelShape, traits: Traits, inputs: EngineInputs, notes: _Notes) -> None:
    """Models that vLLM serves nowhere, or not on this platform."""
    declared = model.quantisation
    if declared is not None and not traits.latent and _refused(declared):
        raise EngineUnknownError(
            f"vLLM takes a {declared.method} scheme of the KV cache in fp8 only, not {declared.kv_scheme}: "
            "use a checkpoint without it"
        )
    if model.architecture in _GPU_ONLY and inputs.platform == "cpu":
        raise EngineUnknownError(f"vLLM does not serve {model.architecture} on CPUs: use a GPU")
    if model.architecture in _TRITON_ONLY:
        notes.warnings.append(
            f"{model.architecture} needs vLLM's Triton attention (--attention-backend TRITON_ATTN): vLLM refuses it "
            "with the default"
        )


def _refused(declared: Quantisation) -> bool:
    """Schemes that `CompressedTensorsKVCacheMethod` does not take."""
    return not declared.method.startswith("modelopt") and declared.kv_scheme not in {None, "fp8"}


def _reference_mla(traits: Traits, platform: Platform) -> bool:
    """Latents on a CPU without AMX: no chunked prefill, no prefix caching."""
    return platform == "cpu" and traits.latent


def _max_model_len(model: ModelShape, inputs: EngineInputs, notes: _Notes) -> int:
    """The length asked for, or that of the model (_get_and_verify_max_len)."""
    given, most = inputs.max_model_len, model.max_positions
    if given is not None and given != LONGEST:
        if most is not None and given > most:
            notes.warnings.append(
                f"max_model_len {given} is longer than the {most} positions of the model: vLLM refuses it"
            )
        return given
    if most is None and given is None and model.architecture in _ATTENTION_FREE:
        return notes.default("max_model_len", _UNKNOWN_LENGTH, "what vLLM takes where the config has none")
    if most is None:
        raise EngineUnknownError(f"{model.architecture}: the config names no longest length: give max_model_len")
    usual = most if model.usual_positions is None else model.usual_positions
    return usual if given == LONGEST else notes.default("max_model_len", usual, "the positions of the model")


def _compute(model: ModelShape, inputs: EngineInputs, notes: _Notes) -> str:
    if inputs.dtype != "auto":
        return compute_dtype(inputs.dtype, "dtype")
    if model.dtype is None or model.dtype == "fp32":
        return notes.default("dtype", "bfloat16", "what vLLM takes where the config says float32 or nothing")
    return CONFIG_DTYPES[model.dtype]


def _block(traits: Traits, inputs: EngineInputs, notes: _Notes) -> int | None:
    """The block asked for; what the default is without what layers ask for beyond it."""
    if inputs.block_tokens is None:
        own = usual_block(traits, inputs.platform)
        notes.default("block size", own, f"the default on {inputs.platform} where no layer asks for another")
    return inputs.block_tokens


def usual_block(traits: Traits, platform: Platform) -> int:
    """The block size where none is given, before layers ask for another."""
    if platform == "cpu" and traits.records:
        return CPU_RECORD_BLOCK
    return CPU_BLOCK if platform == "cpu" and not traits.latent else DEFAULT_BLOCK


def _kv(model: ModelShape, traits: Traits, compute: str, inputs: EngineInputs, notes: _Notes) -> KvFormat:
    name = inputs.kv_dtype
    if traits.records:
        return kv_format(_record_dtype(name, notes))
    if name == "auto":
        name = _declared(model, traits, compute, inputs, notes)
    elif model.architecture in _OWN_KV_DTYPE:
        notes.warnings.append(
            f"{model.architecture} keeps its KV cache in {compute}: vLLM ignores the KV cache dtype {name}"
        )
        name = compute
    if traits.sparse_width == _PACKED_WIDTH and name == "fp8" and inputs.platform == "cuda-sm90":
        return kv_format("fp8_ds_mla")  # the form that FLASHMLA_SPARSE takes (_canonicalize_sparse_mla_kv_cache_dtype)
    if name.startswith("fp8") and inputs.platform in _NO_FP8 and traits.attends:
        notes.warnings.append(f"KV cache dtype {name}: vLLM refuses fp8 on GPUs of compute capability below 8.9")
    return _stored(kv_format(name), traits, inputs.platform, notes)


def _stored(kv: KvFormat, traits: Traits, platform: Platform, notes: _Notes) -> KvFormat:
    """The CPU's backend has no packing of its own (`customize_spec`): a byte for every value."""
    if kv.name == "nvfp4" and traits.latent:
        raise EngineUnknownError("nvfp4 KV cache is not supported with MLA: use another KV cache dtype")
    if platform != "cpu" or not kv.scaled:
        return kv
    notes.warnings.append(f"KV cache dtype {kv.name}: attention on CPUs does not know it: use auto or fp8")
    return replace(kv, packed=False)


def _declared(model: ModelShape, traits: Traits, compute: str, inputs: EngineInputs, notes: _Notes) -> str:
    """What "auto" is: the checkpoint's own scheme, GLM's sparse latents in fp8 on sm100, else the compute type."""
    scheme = _scheme(model.quantisation, traits) if model.quantisation else None
    if scheme is not None:
        return notes.default("kv_cache_dtype", scheme, "what the checkpoint declares")
    if model.architecture == "GlmMoeDsaForCausalLM" and inputs.platform == "cuda-sm100":
        return notes.default("kv_cache_dtype", "fp8_e4m3", "what vLLM takes for this model on Blackwell")
    return notes.default("kv_cache_dtype", compute, "the type that the model computes in")


def _scheme(declared: Quantisation, traits: Traits) -> str | None:
    """The KV scheme that vLLM takes from a checkpoint, None where it passes over what the config says.

    ModelOpt's is looked up by name (resolve_kv_cache_dtype_string); of any other tool's only `Attention` takes notice:
    latents (`MLAAttention`) stay as they are.
    """
    if declared.method.startswith("modelopt"):
        return declared.kv_scheme if declared.kv_scheme in _MODELOPT_SCHEMES else None
    return None if traits.latent else declared.kv_scheme


def _record_dtype(asked: str, notes: _Notes) -> str:
    """DeepSeek-V4 takes its packed fp8 form only (_resolve_dsv4_kv_cache_dtype)."""
    if asked == "auto":
        return notes.default("kv_cache_dtype", "fp8_ds_mla", "the only one of this model")
    if asked.startswith("fp8"):
        return "fp8_ds_mla"
    raise EngineUnknownError(
        f"compressed records are kept in fp8 only, not in {asked}: use the KV cache dtype auto or fp8"
    )


def _recurrent(model: ModelShape, traits: Traits, inputs: EngineInputs, notes: _Notes) -> str:
    asked = inputs.state_dtype
    if asked != "auto":
        asked = compute_dtype(asked, "state dtype")
    elif model.state_dtype is not None and model.architecture not in _OWN_STATE_DTYPE:
        asked = CONFIG_DTYPES[model.state_dtype]
    if inputs.platform != "cpu" or not traits.states or asked == "float32":
        return asked
    if traits.linear and asked != "auto":
        return asked
    notes.assumptions.append("recurrent state is kept in float32: what vLLM does on CPUs with AVX512-BF16")
    return "float32"


def _prefix_caching(model: ModelShape, traits: Traits, inputs: EngineInputs, rules: Rules, notes: _Notes) -> bool:
    if _reference_mla(traits, inputs.platform):
        return False
    if inputs.prefix_caching is not None:
        _check_every_state(traits, inputs, rules)
        return inputs.prefix_caching
    supported = model.architecture not in _ATTENTION_FREE and not model.encoder_decoder and rules.chunked_prefill
    if traits.states and not rules.caches_state_prefixes:
        supported = False
    return notes.default("prefix caching", supported, "the default for this kind of model")


def _check_every_state(traits: Traits, inputs: EngineInputs, rules: Rules) -> None:
    """Mamba layers of old versions kept a state for every block (mamba_cache_mode "all"), of their kernel's chunks."""
    drafts = inputs.speculative is not None or inputs.speculative_tokens or inputs.draft_layers
    if inputs.prefix_caching and traits.mamba and not rules.caches_state_prefixes and not drafts:
        raise EngineUnknownError(
            f"prefix caching of Mamba layers in vLLM {inputs.version} kept a state for every block, whose size is not "
            "known: leave prefix caching out, or use a version from 0.28 on"
        )


def _batch(length: int, at_once: int, inputs: EngineInputs, notes: _Notes) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs; `at_once`: tokens of a prompt that cannot be cut into chunks."""
    tokens, sequences = (_SERVER if inputs.server_context else _PROGRAM)[inputs.platform]
    if inputs.platform == "cpu":
        world = inputs.tensor * inputs.pipeline
        tokens, sequences = tokens * world, sequences * world
    sequences = inputs.max_num_seqs or sequences
    if inputs.max_num_batched_tokens is None:
        tokens = min(sequences * length, max(at_once, tokens))
        notes.default("max_num_batched_tokens", tokens, f"the default on {inputs.platform}")
    else:
        tokens = inputs.max_num_batched_tokens
    if inputs.max_num_seqs is None:
        sequences = notes.default("max_num_seqs", min(sequences, tokens), f"the default on {inputs.platform}")
    if sequences > tokens:
        notes.warnings.append(f"max_num_seqs {sequences} is more than max_num_batched_tokens {tokens}: vLLM refuses it")
    return tokens, sequences


def _batches(speculation: Speculation, rules: Rules, inputs: EngineInputs, notes: _Notes) -> int:
    """Steps in flight at once (VllmConfig.max_concurrent_batches)."""
    if not _asynchronous(speculation, rules, inputs, notes):
        return inputs.pipeline
    return inputs.pipeline + 1


def _asynchronous(speculation: Speculation, rules: Rules, inputs: EngineInputs, notes: _Notes) -> bool:
    if inputs.platform == "cpu":
        return False
    if inputs.async_scheduling is not None:
        if inputs.async_scheduling and speculation.synchronous:
            raise EngineUnknownError(
                f"asynchronous scheduling does not work with {speculation.method} speculation: leave one of them out"
            )
        return inputs.async_scheduling
    able = rules.async_default and not speculation.synchronous
    return notes.default("asynchronous scheduling", able, "the default of this version")


def _hybrid_manager(
    model: ModelShape, speculation: Speculation, rules: Rules, inputs: EngineInputs, notes: _Notes
) -> bool:
    chunks = any(isinstance(cache, Attention) and cache.chunk for layer in model.layers for cache in layer)
    if chunks and speculation.eagle_like:
        notes.warnings.append("chunked attention with a drafter: vLLM keeps local layers like full ones")
        return False
    return inputs.hybrid_manager and rules.hybrid_manager
