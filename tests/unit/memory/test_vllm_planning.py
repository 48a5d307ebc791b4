"""Plans of vLLM: settings by version and platform, what is refused, and what a plan says of too little memory."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.amounts import Tokens
from kvquota_api.memory.blocks import LayerGroup, blocks_for
from kvquota_api.memory.cache_plan import CacheGroup, CachePlan
from kvquota_api.memory.errors import EngineUnknownError, PoolTooSmallError
from kvquota_api.memory.inputs import LONGEST, EngineInputs, Platform
from kvquota_api.memory.models.layers import (
    Attention,
    CompressorState,
    CrossAttention,
    Dtype,
    GatedDeltaState,
    Indexer,
    KimiDeltaState,
    Latent,
    Layer,
    Mamba1State,
    Mamba2State,
    ModelShape,
    PoolTail,
    Quantisation,
    Record,
)
from kvquota_api.memory.vllm import plan_cache
from kvquota_api.memory.vllm.resolving import Settings, settle

GIB = 1 << 30
FULL: Layer = (Attention(8, 128, 128),)
SLIDING: Layer = (Attention(8, 128, 128, window=512),)
CHUNKED: Layer = (Attention(8, 128, 128, chunk=2048),)
CROSS: Layer = (Attention(8, 128, 128), CrossAttention(8, 128, 128))
LATENT: Layer = (Latent(512, 64),)
SPARSE: Layer = (Indexer(128), Latent(512, 64, sparse=True))
MAMBA_1: Layer = (Mamba1State(8192, 16, 4),)
MAMBA_2: Layer = (Mamba2State(128, 64, 128, 1, 4),)
DELTA: Layer = (GatedDeltaState(16, 32, 128, 128, 4),)
KIMI: Layer = (KimiDeltaState(32, 128, 4),)
RECORDS: Layer = (Record(512, 64, window=128), Record(512, 64, 128), CompressorState(1024, 128, 128))


def shape(*layers: Layer, name: str = "LlamaForCausalLM", **more: Any) -> ModelShape:
    parts: dict[str, Any] = {
        "architecture": name,
        "model_type": "llama",
        "layers": layers,
        "draft_layers": (),
        "heads": 32,
        "vocabulary": 1024,
        "max_positions": 32768,
        "dtype": "bf16",
    }
    return ModelShape(**(parts | more))


def asked(**more: Any) -> EngineInputs:
    parts: dict[str, Any] = {"engine": "vLLM", "version": "0.32.0", "max_model_len": 8192}
    return EngineInputs(**(parts | more))


def blocks_at(plan: CachePlan, length: int) -> list[int]:
    return [blocks_for([group.cost], Tokens(length)) for group in plan.groups]


def test_plan_says_everything_of_a_dense_model() -> None:
    given = asked(max_num_batched_tokens=8192, max_num_seqs=64, prefix_caching=True, async_scheduling=True)
    assert plan_cache(shape(FULL, FULL), given, GIB) == CachePlan(
        blocks=8192,
        null_blocks=1,
        block_tokens=16,
        bytes_per_token=8192,
        bytes_per_block=131072,
        kv_bytes=GIB,
        tokens=131072,
        logged_tokens=131072,
        concurrency=Fraction(16),
        max_model_len=8192,
        min_bytes=513 * 131072,
        groups=(CacheGroup("Full", 2, 131072, LayerGroup(kind="Full", block_tokens=16)),),
        assumptions=(
            "kv_cache_dtype not given: bfloat16, the type that the model computes in",
            "block size not given: 16, the default on cuda-sm90 where no layer asks for another",
        ),
    )


@pytest.mark.parametrize(
    ("model", "platform", "block"),
    [
        pytest.param(shape(FULL), "cuda-sm80", 16, id="GPUs take small blocks"),
        pytest.param(shape(FULL), "cpu", 128, id="CPUs larger ones"),
        pytest.param(shape(LATENT), "cpu", 16, id="but for latents"),
        pytest.param(shape(RECORDS), "cpu", 256, id="and for records"),
    ],
)
def test_a_block_size_that_was_not_given_is_that_of_the_platform(
    model: ModelShape, platform: Platform, block: int
) -> None:
    said = settle(model, asked(platform=platform)).assumptions
    assert [each for each in said if each.startswith("block size")] == [
        f"block size not given: {block}, the default on {platform} where no layer asks for another"
    ]
    given = settle(model, asked(platform=platform, block_tokens=32)).assumptions
    assert not [each for each in given if each.startswith("block size")]


def test_what_was_not_given_is_an_assumption() -> None:
    plan = plan_cache(shape(FULL, dtype=None), EngineInputs(engine="vLLM"), GIB)
    assert plan.assumptions == (
        "engine version not given: 0.32, the version whose rules are planned by",
        "max_model_len not given: 32768, the positions of the model",
        "dtype not given: bfloat16, what vLLM takes where the config says float32 or nothing",
        "prefix caching not given: True, the default for this kind of model",
        "max_num_batched_tokens not given: 8192, the default on cuda-sm90",
        "max_num_seqs not given: 1024, the default on cuda-sm90",
        "kv_cache_dtype not given: bfloat16, the type that the model computes in",
        "block size not given: 16, the default on cuda-sm90 where no layer asks for another",
        "asynchronous scheduling not given: True, the default of this version",
    )


def test_version_that_was_never_compared_is_an_assumption() -> None:
    assert "vLLM 0.25.0 is planned by the rules of 0.32" in settle(shape(FULL), asked(version="0.25.0")).assumptions


@pytest.mark.parametrize(
    ("model", "given", "blocks"),
    [
        pytest.param(shape(FULL), {}, [512], id="full attention"),
        pytest.param(shape(SLIDING), {}, [513], id="a window smaller than the tokens in flight costs a block more"),
        pytest.param(shape(SLIDING), {"max_num_batched_tokens": 1024}, [161], id="with two steps in flight"),
        pytest.param(
            shape(SLIDING), {"max_num_batched_tokens": 1024, "async_scheduling": False}, [97], id="with one in flight"
        ),
        pytest.param(shape(SLIDING), {"max_num_batched_tokens": 1024, "version": "0.25.1"}, [97], id="before 0.26"),
        pytest.param(
            shape(SLIDING, SLIDING), {"max_num_batched_tokens": 1024, "pipeline": 2}, [225], id="with two stages three"
        ),
        pytest.param(shape(CHUNKED), {"max_num_batched_tokens": 1024}, [256], id="chunks"),
        pytest.param(shape(FULL, SLIDING), {"hybrid_manager": False}, [512], id="without the hybrid manager"),
        pytest.param(shape(FULL, SLIDING), {"version": "0.9.2"}, [512], id="before there was one"),
        pytest.param(shape(FULL, CHUNKED), {"version": "0.9.2"}, [512], id="chunks before there was one"),
        pytest.param(
            shape(CROSS, encoder_decoder=True),
            {"max_model_len": 448},
            [28, 512],
            id="cross attention: the encoder's budget",
        ),
        pytest.param(shape(MAMBA_1, name="MambaForCausalLM"), {}, [1], id="pure Mamba keeps one state"),
        pytest.param(shape(MAMBA_1, name="MambaForCausalLM"), {"prefix_caching": True}, [2], id="two for prefixes"),
        pytest.param(shape(MAMBA_2), {}, [3], id="Mamba-2 one more for checkpoints"),
        pytest.param(shape(MAMBA_2), {"prefix_caching": False}, [1], id="but not without prefixes"),
        pytest.param(shape(KIMI), {}, [2], id="Kimi's delta without"),
        pytest.param(shape((KimiDeltaState(32, 128, 4, bounded=True),)), {}, [3], id="with a bounded gate one more"),
        pytest.param(
            shape((KimiDeltaState(32, 128, 4, bounded=True),)), {"platform": "cuda-sm80"}, [2], id="but not on Ampere"
        ),
        pytest.param(shape(DELTA, FULL), {"version": "0.27.1"}, [1, 31], id="hybrids before 0.28 keep one state"),
        pytest.param(
            shape(DELTA, FULL),
            {"version": "0.20.0", "prefix_caching": True},
            [2, 31],
            id="two where prefixes are asked for",
        ),
        pytest.param(
            shape(MAMBA_2),
            {
                "version": "0.20.0",
                "prefix_caching": True,
                "speculative": {"method": "ngram", "num_speculative_tokens": 1},
            },
            [3],
            id="Mamba-2 of old versions with drafts",
        ),
        pytest.param(
            shape(DELTA, FULL),
            {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
            [5, 29],
            id="one more for each drafted token",
        ),
        pytest.param(shape(FULL, heads=32), {"tensor": 16, "decode_context": 2}, [256], id="two GPUs share the tokens"),
    ],
)
def test_blocks_of_a_request(model: ModelShape, given: Mapping[str, Any], blocks: list[int]) -> None:
    plan = plan_cache(model, asked(**given), GIB)
    assert blocks_at(plan, plan.max_model_len) == blocks


@pytest.mark.parametrize(
    ("model", "given", "tokens"),
    [
        pytest.param(shape(FULL), {}, 16, id="16 on CUDA"),
        pytest.param(shape(FULL), {"platform": "cpu"}, 128, id="128 on the CPU"),
        pytest.param(shape(FULL), {"platform": "cpu", "block_tokens": 64}, 64, id="as asked"),
        pytest.param(shape(LATENT), {"platform": "cpu", "block_tokens": 64}, 16, id="16 for latents on the CPU"),
        pytest.param(shape(LATENT), {"platform": "cuda-sm100"}, 32, id="32 for latents on Blackwell"),
        pytest.param(shape(SPARSE), {}, 64, id="64 with an indexer"),
        pytest.param(shape(RECORDS), {"platform": "cpu"}, 8, id="8 where compressors are the smallest"),
        pytest.param(shape(DELTA, FULL), {}, 272, id="as large as the state"),
        pytest.param(shape(DELTA, FULL), {"block_tokens": 512}, 512, id="never smaller than asked"),
        pytest.param(shape(KIMI, LATENT), {}, 1920, id="multiples of 128 for latents beside state"),
        pytest.param(shape(KIMI, LATENT), {"version": "0.11.1"}, 1920, id="of 64 in old versions"),
    ],
)
def test_tokens_of_the_smallest_block(model: ModelShape, given: Mapping[str, Any], tokens: int) -> None:
    assert plan_cache(model, asked(**given), GIB).block_tokens == tokens


@pytest.mark.parametrize(
    ("model", "given", "size"),
    [
        pytest.param(shape(FULL), {}, 65536, id="bfloat16"),
        pytest.param(shape(FULL), {"kv_dtype": "fp8"}, 32768, id="fp8"),
        pytest.param(shape(FULL), {"dtype": "float32", "platform": "cpu"}, 8 * 131072, id="float32"),
        pytest.param(shape(FULL, dtype="fp16"), {}, 65536, id="float16 as the config says"),
        pytest.param(shape(FULL), {"tensor": 4}, 16384, id="heads are spread"),
        pytest.param(shape(FULL), {"tensor": 16}, 8192, id="heads are repeated"),
        pytest.param(shape(LATENT), {"tensor": 4}, 18432, id="latents are not spread"),
        pytest.param(shape(SPARSE), {"kv_dtype": "fp8"}, 64 * (656 + 132), id="sparse latents in fp8 are packed"),
        pytest.param(
            shape(SPARSE, name="GlmMoeDsaForCausalLM"),
            {"platform": "cuda-sm100"},
            64 * (576 + 132),
            id="GLM on Blackwell keeps them in fp8 by itself",
        ),
        pytest.param(
            shape(FULL, quantisation=Quantisation("modelopt", "fp8")),
            {},
            32768,
            id="what ModelOpt declares",
        ),
        pytest.param(
            shape(FULL, quantisation=Quantisation("modelopt", "int8")),
            {},
            65536,
            id="ModelOpt's scheme that vLLM does not know",
        ),
        pytest.param(
            shape(LATENT, quantisation=Quantisation("modelopt", "fp8")),
            {},
            64 * 576,
            id="what ModelOpt declares of latents",
        ),
        pytest.param(
            shape(FULL, quantisation=Quantisation("compressed-tensors", "fp8")),
            {},
            32768,
            id="what another tool declares",
        ),
        pytest.param(
            shape(FULL, quantisation=Quantisation("compressed-tensors", None)), {}, 65536, id="quantised weights only"
        ),
        pytest.param(
            shape(LATENT, quantisation=Quantisation("compressed-tensors", "fp8")),
            {},
            16 * 576 * 2,
            id="another tool's scheme is not for latents",
        ),
        pytest.param(shape(FULL, name="FalconForCausalLM"), {"kv_dtype": "fp8"}, 65536, id="Falcon ignores it"),
        pytest.param(shape(RECORDS), {"kv_dtype": "fp8"}, 65 * 576, id="records are packed"),
    ],
)
def test_bytes_of_a_block(model: ModelShape, given: Mapping[str, Any], size: int) -> None:
    assert plan_cache(model, asked(**given), GIB).bytes_per_block == size


@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        pytest.param(
            shape(FULL),
            {"tensor": 3},
            r"attention heads \(32\) must be divisible by tensor parallel size \(3\)",
            id="heads",
        ),
        pytest.param(
            shape((Attention(12, 128, 128),), heads=24),
            {"tensor": 8},
            "12 KV heads cannot be spread over",
            id="KV heads",
        ),
        pytest.param(
            shape(FULL),
            {"tensor": 4, "decode_context": 3},
            "4 must be divisible by decode context parallel size 3",
            id="dcp",
        ),
        pytest.param(
            shape(FULL),
            {"tensor": 8, "decode_context": 2},
            "size 2 needs a tensor parallel size of that many times the 8 KV heads, not 8",
            id="dcp beyond the repeated heads",
        ),
        pytest.param(
            shape(FULL, heads=48),
            {"tensor": 48, "decode_context": 4},
            "6 query heads per KV head must be divisible by decode context parallel size 4",
            id="dcp that does not divide query heads",
        ),
        pytest.param(
            shape((Attention(1, 128, 128, window=512),)),
            {"tensor": 2, "decode_context": 2},
            "does not support sliding windows: use a decode context parallel size of 1",
            id="dcp with windows",
        ),
        pytest.param(
            shape(FULL, quantisation=Quantisation("compressed-tensors", "int8")),
            {},
            "vLLM takes a compressed-tensors scheme of the KV cache in fp8 only, not int8: use a checkpoint without it",
            id="declared scheme",
        ),
        pytest.param(
            shape(LATENT),
            {"kv_dtype": "nvfp4", "platform": "cpu"},
            "nvfp4 KV cache is not supported with MLA: use another KV cache dtype",
            id="latents in nvfp4",
        ),
        pytest.param(
            shape(FULL, name="Step1ForCausalLM"),
            {"platform": "cpu"},
            "vLLM does not serve Step1ForCausalLM on CPUs: use a GPU",
            id="model that CPUs do not serve",
        ),
        pytest.param(
            shape(MAMBA_2, MAMBA_2, name="Mamba2ForCausalLM"),
            {"pipeline": 2},
            "pipeline parallelism is not supported for Mamba2ForCausalLM: use one stage",
            id="stages of a model that takes one",
        ),
        pytest.param(
            shape(FULL, SLIDING, (), (), name="Gemma4ForCausalLM"),
            {"pipeline": 2},
            "layers of Gemma4ForCausalLM would read the cache of layers on another pipeline stage",
            id="layers that share across stages",
        ),
        pytest.param(shape(()), {}, "keeps no KV cache", id="a model that keeps nothing"),
        pytest.param(
            shape(RECORDS), {"kv_dtype": "bfloat16"}, "kept in fp8 only, not in bfloat16: use", id="wide records"
        ),
        pytest.param(
            shape((Record(256, 64, window=128),)),
            {},
            "records of 256 elements are not known for vLLM",
            id="other records",
        ),
        pytest.param(
            shape((Record(512, 64, window=128), CompressorState(1024, 16, 16))),
            {},
            "a compressor of 16 tokens is not known for vLLM: it has 4 or 128",
            id="other compressors",
        ),
        pytest.param(
            shape(RECORDS),
            {"block_tokens": 64},
            "a block of 64 tokens does not hold a record of 128",
            id="small blocks",
        ),
        pytest.param(
            shape(FULL, max_positions=None),
            {"max_model_len": LONGEST},
            "no longest length: give max_model_len",
            id="length",
        ),
        pytest.param(
            shape(KIMI, LATENT), {"platform": "cpu"}, "not taken by CPU_MLA: vLLM does not serve", id="Kimi on CPU"
        ),
        pytest.param(
            shape(MAMBA_1, RECORDS),
            {},
            "recurrent state beside compressed records is not known",
            id="state beside records",
        ),
        pytest.param(
            shape(MAMBA_1, name="MambaForCausalLM"),
            {"version": "0.20.0", "prefix_caching": True},
            "Mamba layers in vLLM 0.20.0 kept a state for every block, whose size is not known",
            id="a state for every block",
        ),
        pytest.param(
            shape(FULL),
            {"async_scheduling": True, "speculative": {"method": "ngram", "num_speculative_tokens": 3}},
            "does not work with ngram speculation",
            id="asynchronous n-grams",
        ),
    ],
)
def test_what_vllm_refuses_is_refused(model: ModelShape, given: Mapping[str, Any], text: str) -> None:
    with pytest.raises(EngineUnknownError, match=text):
        plan_cache(model, asked(**given), GIB)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("tensor", "tensor parallel size"),
        ("pipeline", "pipeline parallel size"),
        ("decode_context", "decode context parallel size"),
        ("block_tokens", "block size"),
        ("max_model_len", "max_model_len"),
        ("max_num_batched_tokens", "max_num_batched_tokens"),
        ("max_num_seqs", "max_num_seqs"),
    ],
)
def test_sizes_below_one_are_refused(flag: str, name: str) -> None:
    with pytest.raises(EngineUnknownError, match=f"{name} is 0: give a number of at least 1"):
        plan_cache(shape(FULL), asked(**{flag: 0}), GIB)


def settings(model: ModelShape, **given: Any) -> Settings:
    return settle(model, asked(**given))


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        pytest.param({}, (8192, 1024), id="a server on Hopper"),
        pytest.param({"server_context": False}, (16384, 1024), id="a program on Hopper"),
        pytest.param({"platform": "cuda-sm80"}, (2048, 256), id="a server on Ampere"),
        pytest.param({"platform": "cuda-sm100"}, (16384, 1024), id="a server on Blackwell"),
        pytest.param({"platform": "cpu", "tensor": 2}, (4096, 256), id="two processes on the CPU"),
        pytest.param({"max_num_seqs": 1, "max_model_len": 4000}, (4000, 1), id="no more than the sequences can fill"),
        pytest.param({"max_num_batched_tokens": 512}, (512, 512), id="no more sequences than tokens"),
        pytest.param({"version": "0.6.3", "max_model_len": 20000}, (20000, 1024), id="whole prompts before chunks"),
    ],
)
def test_batch_defaults(given: Mapping[str, Any], batch: tuple[int, int]) -> None:
    found = settings(shape(FULL), **given)
    assert (found.batched_tokens, found.sequences) == batch


def test_latents_on_the_cpu_take_whole_prompts_and_cache_no_prefixes() -> None:
    found = settings(shape(LATENT), platform="cpu", prefix_caching=True, max_num_batched_tokens=512)
    assert (found.batched_tokens, found.encoder_tokens, found.prefix_caching) == (8192, 512, False)


@pytest.mark.parametrize(
    ("model", "given", "recurrent"),
    [
        pytest.param(shape(MAMBA_2), {}, "auto", id="the family's own"),
        pytest.param(shape(MAMBA_2, state_dtype="fp32"), {}, "float32", id="what the config says"),
        pytest.param(
            shape(DELTA, name="Qwen3NextForCausalLM", state_dtype="fp32"), {}, "auto", id="what the config says in vain"
        ),
        pytest.param(
            shape(MAMBA_2, state_dtype="fp32"), {"state_dtype": "bfloat16"}, "bfloat16", id="what was asked for"
        ),
        pytest.param(shape(MAMBA_2), {"platform": "cpu"}, "float32", id="float32 on the CPU"),
        pytest.param(shape(DELTA), {"platform": "cpu", "state_dtype": "float16"}, "float16", id="unless asked for"),
        pytest.param(
            shape(MAMBA_2, FULL, model_type="falcon_h1"),
            {"platform": "cpu", "state_dtype": "bfloat16"},
            "float32",
            id="which Falcon-H1 is not heard for",
        ),
        pytest.param(shape(FULL), {"platform": "cpu"}, "auto", id="nothing without state"),
    ],
)
def test_type_of_recurrent_state(model: ModelShape, given: Mapping[str, Any], recurrent: str) -> None:
    assert settings(model, **given).recurrent == recurrent


@pytest.mark.parametrize(
    ("given", "batches"),
    [
        pytest.param({}, 2, id="asynchronously two"),
        pytest.param({"platform": "cpu"}, 1, id="one on the CPU"),
        pytest.param({"async_scheduling": False, "pipeline": 2}, 2, id="one for each stage"),
        pytest.param({"pipeline": 2}, 3, id="and one more asynchronously"),
        pytest.param({"version": "0.12.0"}, 1, id="not by default in old versions"),
        pytest.param({"speculative": {"method": "suffix", "num_speculative_tokens": 2}}, 1, id="not with suffixes"),
    ],
)
def test_steps_in_flight(given: Mapping[str, Any], batches: int) -> None:
    assert settings(shape(FULL, FULL), **given).batches == batches


@pytest.mark.parametrize(
    ("model", "given", "warning"),
    [
        pytest.param(
            shape(FULL, name="Step1ForCausalLM"),
            {},
            "Step1ForCausalLM needs vLLM's Triton attention (--attention-backend TRITON_ATTN): vLLM refuses it with "
            "the default",
            id="attention that has to be asked for",
        ),
        pytest.param(
            shape(FULL),
            {"max_model_len": 40000},
            "max_model_len 40000 is longer than the 32768 positions of the model: vLLM refuses it",
            id="longer than the model",
        ),
        pytest.param(
            shape(FULL, name="FalconForCausalLM"),
            {"kv_dtype": "fp8"},
            "FalconForCausalLM keeps its KV cache in bfloat16: vLLM ignores the KV cache dtype fp8",
            id="a type that is ignored",
        ),
        pytest.param(
            shape(FULL),
            {"kv_dtype": "nvfp4", "platform": "cpu"},
            "KV cache dtype nvfp4: attention on CPUs does not know it: use auto or fp8",
            id="a type that the CPU does not know",
        ),
        pytest.param(
            shape(FULL),
            {"kv_dtype": "fp8", "platform": "cuda-sm80"},
            "KV cache dtype fp8: vLLM refuses fp8 on GPUs of compute capability below 8.9",
            id="fp8 on Ampere",
        ),
        pytest.param(
            shape(FULL, CHUNKED, draft_layers=(FULL,)),
            {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
            "chunked attention with a drafter: vLLM keeps local layers like full ones",
            id="chunks with a drafter",
        ),
    ],
)
def test_what_vllm_does_by_itself_is_a_warning(model: ModelShape, given: Mapping[str, Any], warning: str) -> None:
    assert plan_cache(model, asked(**given), GIB).warnings == (warning,)


def test_request_that_does_not_fit_is_a_warning_with_the_ways_out() -> None:
    plan = plan_cache(shape(FULL), asked(max_model_len=32768), 100 << 20)
    assert plan.warnings == (
        "one request of max_model_len 32768 needs 0.13 GiB of KV cache, there are 0.10 GiB: "
        "set max_model_len to 25584, the longest that fits, or give more memory, or spread the model over more GPUs",
    )
    assert (plan.blocks, plan.concurrency, plan.min_bytes) == (1600, Fraction(1600, 2048), 2049 * 65536)


def test_memory_for_nothing_gives_a_plan_of_nothing() -> None:
    plan = plan_cache(shape(FULL), asked(), -5)
    assert (plan.blocks, plan.kv_bytes, plan.concurrency, plan.tokens) == (0, 0, Fraction(0), 0)
    assert plan.warnings == (
        "one request of max_model_len 8192 needs 0.03 GiB of KV cache, there are -0.00 GiB: "
        "give more memory, or spread the model over more GPUs",
    )


@pytest.mark.parametrize(
    ("kv_bytes", "length"),
    [
        pytest.param(GIB, 32768, id="all positions of the model where they fit"),
        pytest.param(100 << 20, 25584, id="one block is left free"),
        pytest.param(2 * 65536, 16, id="one block"),
    ],
)
def test_longest_length_that_fits(kv_bytes: int, length: int) -> None:
    assert plan_cache(shape(FULL), asked(max_model_len=LONGEST), kv_bytes).max_model_len == length


@pytest.mark.parametrize(
    ("model", "given", "length"),
    [
        pytest.param(shape(FULL), None, 32768, id="the positions of the model"),
        pytest.param(shape(FULL, usual_positions=4096), None, 4096, id="those before they were stretched"),
        pytest.param(shape(FULL, usual_positions=4096), LONGEST, 4096, id="also where the longest is wanted"),
        pytest.param(
            shape(MAMBA_1, name="MambaForCausalLM", max_positions=None), None, 2048, id="2048 for Mamba, which has none"
        ),
    ],
)
def test_length_that_was_not_given(model: ModelShape, given: int | None, length: int) -> None:
    assert plan_cache(model, asked(max_model_len=given), GIB).max_model_len == length


def test_not_even_one_token_is_an_error_where_the_longest_is_wanted() -> None:
    with pytest.raises(
        PoolTooSmallError, match="not even one token fits: 131072 bytes of KV cache are needed, there are 9"
    ):
        plan_cache(shape(FULL), asked(max_model_len=LONGEST), 9)


def test_size_logged_by_old_versions_counts_blocks_by_groups() -> None:
    model, given = shape(SLIDING, SLIDING, FULL), asked(max_num_batched_tokens=1024)
    old, new = (plan_cache(model, replace(given, version=version), GIB) for version in ("0.20.1", "0.32.0"))
    assert (old.blocks, old.logged_tokens) == (16384, 16384 // 3 * 16)
    assert (new.blocks, new.logged_tokens) == (16384, int(16384 / 834 * 8192))


def test_old_size_is_multiplied_where_gpus_share_tokens() -> None:
    plan = plan_cache(shape(LATENT), asked(version="0.20.1", tensor=8, decode_context=8), GIB)
    assert plan.logged_tokens == plan.blocks * 16 * 8


@pytest.mark.parametrize(("dtype", "name"), [("fp32", "bfloat16"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_compute_type_follows_the_config(dtype: Dtype, name: str) -> None:
    assert settings(shape(FULL, dtype=dtype)).compute == name


def test_plan_of_stages_is_that_of_the_widest() -> None:
    plan = plan_cache(shape(FULL, FULL, FULL), asked(pipeline=2), GIB)
    assert (plan.bytes_per_block, plan.bytes_per_token, plan.groups[0].layers) == (131072, 8192, 2)


def test_stages_of_a_model_that_shares_within_them_are_planned() -> None:
    model = shape(FULL, SLIDING, FULL, SLIDING, (), name="Gemma4ForCausalLM")
    assert plan_cache(model, asked(pipeline=2), GIB).blocks == 8192


def test_stage_of_state_layers_only_keeps_blocks_of_its_own() -> None:
    plan = plan_cache(shape(DELTA, DELTA, DELTA, FULL), asked(pipeline=2), GIB)
    blocks = [(group.kind, group.cost.block_tokens) for group in plan.groups]
    assert blocks == [("State", 16), ("State", 16), ("State", 272), ("Full", 272)]


def test_pooled_indexer_keeps_its_open_pool_in_a_ring() -> None:
    layer: Layer = (Indexer(128, 16), PoolTail(128, 16), Latent(512, 0, sparse=True))
    plan = plan_cache(shape(layer, (KimiDeltaState(64, 128, 4, bounded=True),)), asked(), 4 * GIB)
    assert [(group.kind, group.cost.block_tokens) for group in plan.groups] == [
        ("Latent", 4608),
        ("Ring", 16),
        ("State", 4608),
    ]
