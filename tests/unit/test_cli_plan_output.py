"""What `kvquota plan` prints, as whole values."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.memory.plan import plan_pool
from kvquota_api.memory.presets import load_preset
from kvquota_api.validation import parse_model_pool, validate
from kvquota_cli.__main__ import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STATED = (
    "--engine", "vllm", "--engine-version", "0.32", "--platform", "cuda-sm90", "--max-num-seqs", "256",
    "--max-num-batched-tokens", "8192", "--prefix-caching", "--async-scheduling", "--max-model-len", "32768",
    "--weights", "15GiB", "--activation", "5GiB", "--other", "1GiB",
)  # fmt: skip
"""All that a plan of a card depends on but for CACHE, so that nothing is assumed."""
CACHE = ("--block-size", "16", "--kv-dtype")


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(capsys, *words, "-o", "json")[1])
    return answer


CARD_AS_JSON = {
    "model": "llama-3.1-8b",
    "architecture": "LlamaForCausalLM",
    "engine": "vllm",
    "version": "0.32",
    "platform": "cuda-sm90",
    "parallelism": {"tensor": 1, "pipeline": 1, "data": 1, "decodeContext": 1},
    "fits": True,
    "problem": None,
    "maxModelLen": 32768,
    "bytesPerToken": 131072,
    "bytesPerBlock": 2097152,
    "blockTokens": 16,
    "blocks": 26112,
    "nullBlocks": 1,
    "kvBytes": 54760833024,
    "minBytes": 4297064448,
    "tokens": 417792,
    "loggedTokens": 417792,
    "concurrency": 12.75,
    "groups": [
        {
            "kind": "Full",
            "layers": 32,
            "pageBytes": 2097152,
            "blockTokens": 16,
            "windowTokens": None,
            "fixedBlocks": None,
            "blocksOfLongest": 2048,
        }
    ],
    "partition": {
        "card": 85899345920,
        "weights": 16106127360,
        "activation": 5368709120,
        "kvPool": 54760833024,
        "other": 1073741824,
        "safetyMargin": 8589934592,
        "free": 0,
    },
    "capacity": [
        {"contextTokens": 1024, "requests": 407, "blocksPerRequest": 64},
        {"contextTokens": 8192, "requests": 50, "blocksPerRequest": 512},
        {"contextTokens": 32768, "requests": 12, "blocksPerRequest": 2048},
    ],
    "advice": [
        {
            "reason": "QuantiseKvCache",
            "message": "quantise the KV cache (--kv-dtype fp8): 65,536 B per token instead of 131,072 B, then 25"
            " requests of 32,768 tokens fit into 51 GiB of KV cache",
            "fits": True,
            "blocks": 52224,
            "kvBytes": 54760833024,
            "maxModelLen": 32768,
            "concurrency": 25.5,
            "weights": 16106127360,
        }
    ],
    "assumptions": [],
    "warnings": [],
}


def test_a_plan_of_a_card_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-8b", "--gpu-memory", "80GiB", "--gpu-memory-utilization", "0.9", *STATED)
    assert answered(capsys, *words, *CACHE, "bf16") == CARD_AS_JSON


def test_a_plan_of_a_card_as_a_person_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-8b", "--gpu-memory", "80GiB", "--gpu-memory-utilization", "0.9", *STATED)
    assert run(capsys, *words, *CACHE, "fp8", "--context", "1k,8k,1m") == (
        0,
        """\
llama-3.1-8b (LlamaForCausalLM) on vllm 0.32 (cuda-sm90), 1 GPU of 80 GiB

███████████████▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░········
█ weights     15 GiB  19 %
▓ activation   5 GiB   6 %
▒ KV cache    51 GiB  64 %
░ other        1 GiB   1 %
· margin       8 GiB  10 %

KV cache: 52,224 blocks of 16 tokens, 1 MiB each on one GPU, 51 GiB together
holds 835,584 tokens of requests of 32,768 tokens (max-model-len): 25.50 of
them; 65,536 B per token
the engine logs a size of 835,584 tokens

Requests that fit at the same time, by length: 1k: 815 sessions, 8k: 101, 1m: 0
(longer than max-model-len)
""",
        "",
    )


def test_a_plan_that_does_not_fit_has_its_ways_out_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-70b", "--gpu-memory", "80GiB", *STATED[:-6], "--activation", "5GiB")
    code, out, err = run(capsys, *words, "--other", "1GiB")
    problem = (
        "the parts of one card sum to 143.82 GiB, 63.82 GiB more than its 80 GiB: weights 131.42 GiB + activation 5 GiB"
        " + kvPool 0 B + other 1 GiB + safetyMargin 6.4 GiB"
    )
    assert (code, err) == (3, f"kvquota: {problem}\n")
    assert out.split("\n\n")[1].splitlines()[:2] == [
        "█████████████████████████████████████████████████████████████████████████▓▓▓░···",
        "                                            ▲ the card ends here: 80 GiB",
    ]
    ways = out.partition("Ways out, in this order:\n")[2].partition("\n\n")[0]
    assert (
        ways
        == """\
 1.  quantise the weights (--weight-dtype int4): 37.04 GiB instead of 131.42
     GiB, then 3 requests of 32,768 tokens fit into 30.56 GiB of KV cache
 2.  with weights in int4, quantise the KV cache (--kv-dtype fp8): 163,840 B per
     token instead of 327,680 B, then 6 requests of 32,768 tokens fit into 30.56
     GiB of KV cache
 3.  more GPUs (--tp 4): 32.86 GiB of weights on each, then 13 requests of
     32,768 tokens fit into 34.74 GiB of KV cache"""
    )


def test_of_bytes_alone_only_the_cache_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "gpt-oss-20b", "--kv-memory", "8GiB", *STATED[:-6])
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.splitlines()[:9] == [
        "gpt-oss-20b (GptOssForCausalLM) on vllm 0.32 (cuda-sm90), 1 GPU",
        "",
        "KV cache: 21,845 blocks of 16 tokens, 384 KiB each on one GPU, 8 GiB together",
        "holds 232,332 tokens of requests of 32,768 tokens (max-model-len): 7.09 of them;",
        "24,576 B per token",
        "the engine logs a size of 232,332 tokens",
        "  Sliding: 12 layers, 16 tokens in a block, window 16,511",
        "  Full: 12 layers, 16 tokens in a block",
        "",
    ]


def test_bytes_that_hold_no_longest_request_are_answered_with_what_the_engine_makes_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--model", "llama-3.1-8b", "--kv-memory", "2.89GiB", *STATED[:-6])
    code, out, err = run(capsys, *words, "-o", "json")
    said = json.loads(out)
    assert (code, err, said["fits"], said["blocks"]) == (0, "", False, 1479)
    assert said["problem"]["reason"] == "PoolTooSmall"
    assert [each["reason"] for each in said["advice"]] == ["QuantiseKvCache", "ShortenContext", "MoreGpus"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(
            ("--engine-version", "0.2"), "vLLM 0.2: rules from before 0.6.0 are not known", id="an old engine"
        ),
        pytest.param(("--kv-dtype", "fp7"), "KV cache dtype 'fp7' is not known", id="a type"),
        pytest.param(("--tp", "3"), "total number of attention heads (32) must be divisible", id="parallelism"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence_and_exit_code_3(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--model", "llama-3.1-8b", "--kv-memory", "8GiB", *words)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert says in err


def test_an_architecture_that_is_not_known_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NobodyForCausalLM"], "model_type": "nobody"}')
    code, out, err = run(capsys, "--model", str(tmp_path), "--kv-memory", "8GiB", "-o", "json")
    assert (code, out) == (3, "")
    assert "NobodyForCausalLM" in err


def test_weights_that_cannot_be_counted_are_a_warning_beside_bytes_that_are_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {key: value for key, value in load_preset("llama-3.1-8b").items() if key != "intermediate_size"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--model", str(tmp_path), "--gpu-memory", "80GiB", "--kv-memory", "8GiB", "--max-model-len", "8192")
    code, out, err = run(capsys, *words, "-o", "json")
    said = json.loads(out)
    assert (code, err, said["blocks"], said["partition"], len(said["warnings"])) == (0, "", 4096, None, 1)
    assert said["warnings"][0].startswith("the card is not divided into its parts: intermediate_size: ")
    assert run(capsys, *words, "-o", "yaml")[0] == 3


def test_no_model_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--kv-memory", "8GiB") == (
        2,
        "",
        "kvquota: which model? Give --model a config.json, a file with a ModelPool, or the name of a preset\n",
    )


POOL_AS_YAML = """\
# Planned by kvquota. Before you apply it: the selector must match the labels of your pods, and spec.model.name must be
# what clients send as "model".
apiVersion: kvquota.dev/v1alpha1
kind: ModelPool
metadata:
  name: llama-3-1-8b
spec:
  selector:
    matchLabels:
      app: llama-3-1-8b
  model:
    name: llama-3.1-8b
    config:
      preset: llama-3.1-8b
    maxModelLen: 32768
  engine:
    type: vLLM
    version: '0.32'
    parallelism:
      tensor: 2
    maxNumSeqs: 256
    maxNumBatchedTokens: 8192
    prefixCaching: true
    asyncScheduling: true
  gpu:
    memory: '85018877624'
    count: 2
    platform: cuda-sm90
  memory:
    kvPool:
      bytes: 51468Mi
    weights: 15Gi
    activation: 5Gi
    other: 1Gi
    safetyMarginPercent: 9
  workload:
    contextMix:
    - contextTokens: 1024
      weight: 1
    - contextTokens: 8192
      weight: 1
"""


def test_a_plan_as_a_pool_that_is_ready_to_apply(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-8b", "--gpu-memory", "79.18GiB", "--gpu-memory-utilization", "0.9", *STATED)
    code, out, _ = run(capsys, *words, "--tp", "2", "--context", "1k,8k", "-o", "yaml")
    assert (code, out) == (0, POOL_AS_YAML)
    assert validate(yaml.safe_load(out)) == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--model", "llama-3.1-8b"), id="a plain model"),
        pytest.param(("--model", "gpt-oss-120b", "--tp", "2"), id="a model of several groups"),
        pytest.param(("--model", "qwen3-8b", "--kv-dtype", "bfloat16", "--dtype", "half"), id="types in vLLM's words"),
        pytest.param(("--model", "qwen3-8b", "--max-model-len", "auto"), id="the longest request that fits"),
        pytest.param(
            ("--model", str(EXAMPLES / "modelpool.yaml"), "--pool", "llama-8b", "--kv-dtype", "fp8"),
            id="a changed pool",
        ),
        pytest.param(
            ("--model", "llama-3.1-8b", "--engine", "llama.cpp", "--slots", "4", "--max-model-len", "32768"),
            id="slots of llama.cpp",
        ),
        pytest.param(
            ("--model", "gemma-3-4b", "--engine", "llama.cpp", "--kv-dtype", "q8_0/q4_0", "--kv-unified"),
            id="two types of llama.cpp",
        ),
        pytest.param(
            ("--model", "gpt-oss-20b", "--engine", "sglang", "--tp", "2"),
            id="pools of SGLang that round down",
        ),
    ],
)
def test_a_pool_that_was_printed_is_planned_as_it_was(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    card = () if "--pool" in words else ("--gpu-memory", "80GiB")
    planned = answered(capsys, *words, *card)
    printed = yaml.safe_load(run(capsys, *words, *card, "-o", "yaml")[1])
    plan = plan_pool(parse_model_pool(printed))
    assert (plan.cap_blocks, plan.bytes_per_block, plan.max_model_len, plan.partition.kv_pool) == (
        planned["blocks"],
        planned["bytesPerBlock"],
        planned["maxModelLen"],
        planned["kvBytes"],
    )


def test_a_pool_that_the_engine_would_refuse_is_printed_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--model", "llama-3.1-8b", "--gpu-memory", "79.18GiB", "--max-model-len", "131073", "-o", "yaml"
    )
    assert (code, yaml.safe_load(out)["spec"]["model"]["maxModelLen"]) == (0, 131_073)
    assert err == (
        "kvquota: warning: max_model_len 131073 is longer than the 131072 positions of the model: vLLM refuses it\n"
    )


def test_the_lengths_of_a_pools_workload_are_counted_unless_others_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool.yaml"
    words = ("--model", "llama-3.1-8b", "--gpu-memory", "79.18GiB", "--max-model-len", "32768")
    pool.write_text(run(capsys, *words, "--context", "1k,3000", "-o", "yaml")[1])
    printed = answered(capsys, "--model", str(pool))["capacity"]
    asked = answered(capsys, "--model", str(pool), "--context", "2k")["capacity"]
    assert [[each["contextTokens"] for each in lines] for lines in (printed, asked)] == [[1024, 3000], [2048]]


def test_a_pool_as_it_is_gives_the_plan_of_the_operator(capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(capsys, "--model", str(EXAMPLES / "modelpool.yaml"), "--pool", "llama-8b")
    assert (said["model"], said["blocks"], said["partition"]["safetyMargin"], said["capacity"][-1]) == (
        "llama-8b",
        18_432,
        80 * 2**30 * 8 // 100,
        {"contextTokens": 32_768, "requests": 8, "blocksPerRequest": 2_048},
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(
            ("--kv-memory", "17GiB"), 2, "-o yaml needs --gpu-memory: a ModelPool states its card", id="no card"
        ),
        pytest.param(("--gpu-memory", "16GiB"), 3, "the parts of one card sum to", id="a card that is too small"),
        pytest.param(
            ("--gpu-memory", "80GiB", "--gpu-count", "1", "--tp", "2"),
            2,
            "a ModelPool cannot say this plan: spec.gpu.count: tensor times pipeline times data is more than gpu.count",
            id="too few cards",
        ),
        pytest.param(
            ("--gpu-memory", "80GiB", "--activation", "1GiB", "--max-num-seqs", "65537"),
            2,
            "a ModelPool cannot say this plan: spec.engine.maxNumSeqs: 65537 must be at most 65536",
            id="more sequences than a pool can say",
        ),
    ],
)
def test_what_a_pool_cannot_say_is_told(
    words: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(capsys, "--model", "llama-3.1-8b", *words, "-o", "yaml")
    assert (found, out) == (code, "")
    assert err.startswith(f"kvquota: {says}")


@pytest.mark.parametrize("width", [40, 60, 200])
def test_no_line_is_wider_than_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for model in ("gemma-3-27b", "llama-3.1-70b", "qwen3-next-80b-a3b"):
        _, out, _ = run(capsys, "--model", model, "--gpu-memory", "80GiB")
        assert max(map(len, out.splitlines())) <= width
