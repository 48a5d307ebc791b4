"""What is asked for and changes nothing of a plan is said."""

import json

import pytest

from kvquota_cli.__main__ import main

SAME = "it changes nothing of this plan"


def warned(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["plan", *words, "-o", "json"]) == 0
    warnings: list[str] = json.loads(capsys.readouterr().out)["warnings"]
    return warnings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ("--engine", "llama.cpp", "--max-num-seqs", "3"),
            f"max-num-seqs: {SAME}: it sizes the activation of a card and recurrent state",
            id="sequences of llama.cpp, which has slots",
        ),
        pytest.param(
            ("--engine", "llama.cpp", "--prefix-caching"),
            f"prefix-caching: {SAME}: it decides what is kept, not how large the cache is",
            id="prefixes of llama.cpp",
        ),
        pytest.param(
            ("--engine", "llama.cpp", "--dtype", "float16"),
            f"dtype: {SAME}: llama.cpp computes in the types of its file",
            id="a type of llama.cpp",
        ),
        pytest.param(
            ("--engine", "tensorrt-llm", "--num-speculative-tokens", "3"),
            f"num-speculative-tokens: {SAME}: of a drafter its layers are counted (draft-layers)",
            id="guesses without a drafter",
        ),
        pytest.param(
            ("--engine", "sglang", "--max-num-batched-tokens", "512"),
            f"max-num-batched-tokens: {SAME}: it sizes windows of llama.cpp only",
            id="tokens of a step of SGLang",
        ),
        pytest.param(
            ("--engine", "sglang", "--disable-hybrid-kv-cache-manager"),
            f"disable-hybrid-kv-cache-manager: {SAME}: no layer is kept for a window only",
            id="windows of a model without any",
        ),
    ],
)
def test_an_option_that_changes_nothing_is_a_warning(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in warned(capsys, "--model", "llama-3.1-8b", "--kv-memory", "20GiB", *words)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ("--engine", "vllm", "--prefix-caching", "--dtype", "bfloat16"), id="vLLM takes all of its options"
        ),
        pytest.param(("--engine", "sglang"), id="nothing is asked for"),
        pytest.param(
            ("--engine", "sglang", "--max-num-seqs", "7", "--gpu-memory", "79GiB"), id="sequences size the activation"
        ),
        pytest.param(
            ("--engine", "llama.cpp", "--model", "gemma-2-9b", "--disable-hybrid-kv-cache-manager"),
            id="windows that are kept whole",
        ),
    ],
)
def test_an_option_that_changes_something_is_no_warning(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = () if "--model" in words else ("--model", "llama-3.1-8b")
    size = ("--max-model-len", "8192", "--kv-memory", "20GiB")
    assert not [each for each in warned(capsys, *model, *size, *words) if SAME in each]
