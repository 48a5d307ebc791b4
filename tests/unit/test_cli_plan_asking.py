"""What the options of `kvquota plan` ask for."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvquota_api.memory.errors import PlanError
from kvquota_api.memory.inputs import LONGEST, EngineInputs
from kvquota_api.memory.planning import Card, KvBudget, KvBytes, KvPercent, KvSize, PlanRequest
from kvquota_cli import options
from kvquota_cli.errors import CliError
from kvquota_cli.planning.asking import plan_request

GIB = 2**30
ALONE = PlanRequest({}, EngineInputs("vLLM"), KvBudget())
POOL = PlanRequest(
    {}, EngineInputs("vLLM", "0.32", tensor=2, max_num_seqs=256), KvPercent(45_00), Card(80 * GIB, margin_percent=8)
)


def asked(*words: str, base: PlanRequest = ALONE) -> PlanRequest:
    return plan_request(options.parser().parse_args(["plan", *words]), base)


def inputs(**changes: Any) -> EngineInputs:
    return EngineInputs(**{"engine": "vLLM", **changes})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), inputs(), id="nothing"),
        pytest.param(("--engine", "sglang"), inputs(engine="SGLang"), id="an engine"),
        pytest.param(("--engine-version", "0.20.1"), inputs(version="0.20.1"), id="a version"),
        pytest.param(
            ("--tp", "8", "--pp", "2", "--dp", "3", "--dcp", "4"),
            inputs(tensor=8, pipeline=2, data=3, decode_context=4),
            id="kinds of parallelism",
        ),
        pytest.param(
            ("--dtype", "half", "--weight-dtype", "nvfp4", "--kv-dtype", "fp8", "--mamba-ssm-dtype", "float32"),
            inputs(dtype="fp16", weight_dtype="nvfp4", kv_dtype="fp8", state_dtype="fp32"),
            id="types, in one spelling",
        ),
        pytest.param(
            ("--block-size", "32", "--max-num-batched-tokens", "2048", "--max-num-seqs", "3"),
            inputs(block_tokens=32, max_num_batched_tokens=2048, max_num_seqs=3),
            id="sizes of blocks and steps",
        ),
        pytest.param(("--max-model-len", "4096"), inputs(max_model_len=4096), id="a longest request"),
        pytest.param(("--max-model-len", "auto"), inputs(max_model_len=LONGEST), id="the longest request that fits"),
        pytest.param(("--max-model-len=-1",), inputs(max_model_len=LONGEST), id="the same in vLLM's words"),
        pytest.param(
            ("--prefix-caching", "--no-async-scheduling"),
            inputs(prefix_caching=True, async_scheduling=False),
            id="switches",
        ),
        pytest.param(("--disable-hybrid-kv-cache-manager",), inputs(hybrid_manager=False), id="every layer's past"),
        pytest.param(
            ("--num-speculative-tokens", "2", "--draft-layers", "1"),
            inputs(speculative_tokens=2, draft_layers=1),
            id="a drafter by its layers",
        ),
        pytest.param(
            ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'),
            inputs(speculative={"method": "mtp", "num_speculative_tokens": 2}, speculative_tokens=2),
            id="a drafter in vLLM's words",
        ),
        pytest.param(
            ("--speculative-config", '{"method": "mtp"}', "--num-speculative-tokens", "3"),
            inputs(speculative={"method": "mtp"}, speculative_tokens=3),
            id="a drafter and its tokens beside it",
        ),
        pytest.param(
            ("--speculative-config", '{"method": "mtp"}'), inputs(speculative={"method": "mtp"}), id="no tokens said"
        ),
        pytest.param(
            ("--engine", "llama.cpp", "--slots", "4", "--kv-unified", "--kv-dtype", "f16/q8_0"),
            inputs(engine="LlamaCpp", slots=4, unified=True, kv_dtype="fp16/q8_0"),
            id="slots of llama.cpp",
        ),
        pytest.param(("--slots", "1", "--dcp", "1"), inputs(slots=1), id="what says nothing is no contradiction"),
        pytest.param(
            ("--kv-dtype", "auto(bf16)", "--dtype", "BFLOAT16"),
            inputs(kv_dtype="bf16", dtype="bf16"),
            id="types of logs",
        ),
        pytest.param(("--kv-dtype", "fp8 (fp8_ds_mla)"), inputs(kv_dtype="fp8_ds_mla"), id="what became of a type"),
        pytest.param(("--kv-dtype", "fp8 (e4m3)"), inputs(kv_dtype="fp8_e4m3"), id="which half of a type"),
        pytest.param(("--kv-dtype", "fp8 e4m3"), inputs(kv_dtype="fp8 e4m3"), id="a type that nobody knows"),
    ],
)
def test_every_option_of_the_engine_is_passed_on(words: tuple[str, ...], expected: EngineInputs) -> None:
    assert asked("--kv-memory", "1GiB", *words).inputs == expected


@pytest.mark.parametrize(
    ("words", "kv", "card"),
    [
        pytest.param(("--kv-memory", "2GiB"), KvBytes(2 * GIB), None, id="bytes alone"),
        pytest.param(("--gpu-memory", "80GiB"), KvBudget(), Card(80 * GIB), id="a card, used as engines do by default"),
        pytest.param(
            ("--gpu-memory", "80GiB", "--gpu-memory-utilization", "0.9"),
            KvBudget(Fraction(9, 10)),
            Card(80 * GIB),
            id="a part of a card",
        ),
        pytest.param(
            ("--gpu-memory", "80GiB", "--gpu-memory-utilization", "0.9", "--kv-memory", "2GiB"),
            KvBytes(2 * GIB),
            Card(80 * GIB),
            id="bytes, which win over a part of the card",
        ),
        pytest.param(
            (
                "--gpu-memory",
                "80GiB",
                "--kv-memory",
                "2GiB",
                "--weights",
                "15GiB",
                "--activation",
                "6Gi",
                "--other",
                "1Gi",
            ),
            KvBytes(2 * GIB),
            Card(80 * GIB, 15 * GIB, 6 * GIB, GIB),
            id="every part of a card",
        ),
        pytest.param(("--engine", "llama.cpp"), KvBudget(), None, id="nothing, since llama.cpp says what it needs"),
    ],
)
def test_memory_is_a_card_or_bytes(words: tuple[str, ...], kv: KvSize, card: Card | None) -> None:
    request = asked(*words)
    assert (request.kv, request.card) == (kv, card)


def test_a_platform_wins_over_that_of_a_pool() -> None:
    pool = replace(POOL, platform="cuda-sm100")
    assert asked("--platform", "cuda-sm80", base=pool).platform == "cuda-sm80"
    assert asked(base=pool).platform == "cuda-sm100"


def test_an_engine_that_is_given_is_not_assumed() -> None:
    assumed = replace(ALONE, assumptions=("engine not given: vllm",))
    assert asked("--kv-memory", "1GiB", base=assumed).assumptions == ("engine not given: vllm",)
    assert asked("--kv-memory", "1GiB", "--engine", "vllm", base=assumed).assumptions == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), POOL, id="nothing"),
        pytest.param(("--tp", "4"), replace(POOL, inputs=replace(POOL.inputs, tensor=4)), id="other parallelism"),
        pytest.param(("--kv-memory", "2GiB"), replace(POOL, kv=KvBytes(2 * GIB)), id="other bytes"),
        pytest.param(
            ("--gpu-memory", "40GiB"), replace(POOL, card=Card(40 * GIB, margin_percent=8)), id="another card"
        ),
        pytest.param(
            ("--gpu-memory-utilization", "0.5"),
            replace(POOL, kv=KvBudget(Fraction(1, 2)), card=Card(80 * GIB)),
            id="a part of the card, which is the margin too",
        ),
    ],
)
def test_options_win_over_a_pool(words: tuple[str, ...], expected: PlanRequest) -> None:
    assert asked(*words, base=POOL) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param((), "how much memory is there? Give --gpu-memory", id="no memory"),
        pytest.param(("--gpu-memory-utilization", "0.9"), "how much memory is there?", id="a part of no card"),
        pytest.param(
            ("--kv-memory", "1GiB", "--slots", "4"),
            "--slots is for llama.cpp only, the engine is vllm: leave it out",
            id="slots of another engine",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--engine", "tensorrt-llm", "--mamba-ssm-dtype", "float32"),
            "--mamba-ssm-dtype is for vllm and sglang only, the engine is tensorrt-llm: leave it out",
            id="a type that the engine does not have",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--weights", "15GiB"),
            "--weights is a part of a card: give --gpu-memory too, or leave it out",
            id="weights of no card",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--activation", "1GiB"), "--activation is a part of a card", id="a step of no card"
        ),
        pytest.param(("--kv-memory", "1GiB", "--other", "1GiB"), "--other is a part of a card", id="other of no card"),
        pytest.param(
            ("--engine", "llama.cpp", "--gpu-memory-utilization", "0.5"),
            "--gpu-memory-utilization is a part of a card: give --gpu-memory too, or leave it out",
            id="a part of no card of llama.cpp",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--gpu-count", "2"),
            "--gpu-count is for -o yaml only, where it is the cards of a pod: leave it out",
            id="cards of a pod that is not printed",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--tp", "4", "--dcp", "3"),
            "--dcp 3 does not divide --tp 4: lower it, or raise --tp",
            id="tokens that cannot be shared out",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--speculative-config", "mtp"),
            "--speculative-config is not JSON: Expecting value",
            id="a drafter that is no JSON",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--speculative-config", "[]"),
            "--speculative-config must be a JSON object",
            id="a drafter that is no object",
        ),
        pytest.param(
            ("--kv-memory", "1GiB", "--speculative-config", '{"num_speculative_tokens": "2"}'),
            "--speculative-config: num_speculative_tokens '2' is not a whole number",
            id="tokens in words",
        ),
        pytest.param(
            (
                "--kv-memory", "1GiB", "--num-speculative-tokens", "1",
                "--speculative-config", '{"num_speculative_tokens": 2}',
            ),
            "--num-speculative-tokens 1 and --speculative-config say different numbers of tokens (2): keep one",
            id="two numbers of tokens",
        ),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_with_what_to_do(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(CliError) as raised:
        asked(*words)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("--tp", "1", "--tp", "2"), "--tp: --tp is one too many: it was given before", id="twice"),
        pytest.param(
            ("--prefix-caching", "--no-prefix-caching"),
            "--prefix-caching/--no-prefix-caching: --no-prefix-caching is one too many",
            id="on and off",
        ),
        pytest.param(
            ("--engine", "vllm", "--engine", "vllm"), "--engine: --engine is one too many", id="the same twice"
        ),
        pytest.param(("--engine", "tgi"), "--engine: invalid choice: 'tgi'", id="an engine that is not known"),
        pytest.param(("--kv-memory", "20GB"), "--kv-memory: '20GB': GB is a power of 1000 to some", id="two meanings"),
    ],
)
def test_a_wrong_option_is_named(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        asked(*words)
    assert f"kvquota plan: error: argument {says}" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tensorrt-llm"])
def test_every_engine_takes_all_options_where_they_ask_for_nothing(engine: str) -> None:
    words = (
        "--kv-memory 1GiB --gpu-memory 80GiB --engine-version 0.5.3 --tp 1 --pp 1 --dp 1 --dcp 1 --weight-dtype auto"
        " --kv-dtype auto --max-model-len auto --num-speculative-tokens 0 --draft-layers 0 --no-prefix-caching"
        " --no-async-scheduling --mamba-ssm-dtype auto --dtype auto --platform cuda-sm90 --slots 1 --no-kv-unified"
        " --context 1k,8k -o json"
    )
    assert asked("--engine", engine, *words.split()).kv == KvBytes(GIB)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--weight-dtype", "weightDtype: 'bogus' is not known; known are auto, fp32, bf16, fp16, fp8"),
        ("--dtype", "dtype 'bogus' is not known: use one of auto, fp32, bf16, fp16"),
    ],
)
def test_a_type_that_nobody_knows_is_refused_though_the_plan_needs_none(engine: str, option: str, says: str) -> None:
    with pytest.raises(PlanError) as raised:
        asked("--kv-memory", "1GiB", "--engine", engine, option, "bogus")
    assert str(raised.value).startswith(says)


def test_a_part_of_the_card_that_counts_for_nothing_is_said() -> None:
    sentence = "--gpu-memory-utilization counts for nothing beside --kv-memory, as in the engine"
    alone, both = asked("--kv-memory", "1GiB"), asked("--kv-memory", "1GiB", "--gpu-memory-utilization", "0.9")
    assert [sentence in request.assumptions for request in (alone, both)] == [False, True]
