"""`kvquota plan --from-log`: where plan and engine differ."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.validation import validate
from kvquota_cli.__main__ import main

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"
TP2 = LOGS / "vllm-0.10.1-v1-tp2.log"
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
AGREES = """\
(EngineCore pid=1) INFO Initializing a V1 LLM engine (v0.32.0) with config: model='{model}', max_seq_len=8192
(Worker pid=2) Available KV cache memory: 10.0 GiB
(EngineCore pid=1) GPU KV cache size: {tokens} tokens, Maximum concurrency for 8,192 tokens per request: 10.00x
"""


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def log(folder: Path, text: str) -> str:
    file = folder / "engine.log"
    file.write_text(text)
    return str(file)


def test_what_the_log_says_is_planned_and_laid_beside_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", model, "--from-log", str(TP2), "--platform", "cuda-sm80")
    assert (code, err) == (0, "")
    assert "on vllm 0.10.1.1 (cuda-sm80), 2 GPUs (tp 2) of 79.15 GiB" in " ".join(out.split())
    assert out.partition("Beside the log of ")[2].splitlines() == [
        "vllm 0.10.1.1, model Qwen/Qwen2-7B-Instruct:",
        "  line 15:  loggedTokens: engine 450,192, plan 450,192, same",
        "  line 16:  concurrency: engine 27.48, plan 27.48, same, as it was rounded (+0.01%)",
        "  line 16:  maxModelLen: engine 16,384, plan 16,384, taken from the log",
        "  line 20:  kvBytes: engine 12.02 GiB, plan 12.02 GiB, taken from the log",
        "  line 20:  card: engine 79.15 GiB, plan 79.15 GiB, taken from the log",
        "  line 9:  weights: engine 7.12 GiB, plan 7.09 GiB, different (+0.41%): an estimate",
        "  line 20:  activation: engine 215.04 MiB, plan 1.54 GiB, different (-86.33%): an estimate",
    ]


def test_the_same_as_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = AGREES.format(model="meta-llama/Llama-3.1-8B-Instruct", tokens="90,112")
    code, out, _ = run(capsys, "--from-log", log(tmp_path, text), "-o", "json")
    said = json.loads(out)
    assert (code, said["model"], said["version"], said["loggedTokens"], said["fits"]) == (
        1,
        "llama-3.1-8b",
        "0.32.0",
        81_920,
        True,
    )
    found: dict[str, Any] = said["log"]
    assert {key: found[key] for key in ("engine", "version", "starts", "agrees", "refusals", "outOfMemory")} == {
        "engine": "vllm",
        "version": "0.32.0",
        "starts": 1,
        "agrees": False,
        "refusals": [],
        "outOfMemory": [],
    }
    tokens = next(each for each in found["differences"] if each["subject"] == "loggedTokens")
    assert tokens == {
        "subject": "loggedTokens",
        "engine": 90_112,
        "plan": 81_920,
        "rounding": tokens["rounding"],
        "relative": 0.1,
        "verdict": "Different",
        "cause": tokens["cause"],
        "line": 3,
    }


def test_a_flag_wins_over_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = AGREES.format(model="meta-llama/Llama-3.1-8B", tokens="81,920")
    words = ("--from-log", log(tmp_path, text), "-o", "json")
    assert run(capsys, *words)[0] == 0
    code, out, _ = run(capsys, *words, "--kv-dtype", "fp8")
    assert (code, json.loads(out)["loggedTokens"]) == (1, 163_840)


def test_what_differs_is_said_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = AGREES.format(model="meta-llama/Llama-3.1-8B", tokens="40,960")
    code, out, _ = run(capsys, "--from-log", log(tmp_path, text))
    assert code == 1
    assert "  line 3:  loggedTokens: engine 40,960, plan 81,920, different (-50.00%): " in out


def test_a_pool_is_made_of_what_the_engine_was_started_with(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", model, "--from-log", str(TP2), "-o", "yaml")
    spec = yaml.safe_load(out)["spec"]
    assert code == 0
    assert (spec["engine"]["parallelism"], spec["model"]["maxModelLen"], spec["engine"]["version"]) == (
        {"tensor": 2},
        16_384,
        "0.10.1.1",
    )
    assert validate(yaml.safe_load(out)) == []


def test_a_refusal_is_said_and_its_memory_planned(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--from-log", str(LOGS / "vllm-0.15.1-refused.log"))
    assert (code, err) == (1, "")
    assert out.partition("Beside the log of ")[2].splitlines() == [
        "vllm 0.15.1, model Qwen/Qwen3-30B-A3B:",
        "  line 3:  minBytes: engine 24 GiB, plan 12 GiB, different (+99.99%): vLLM 0.15.1 (line 1) counts",
        "  all 48 layers as needed on one GPU, and the plan the 24 of one of 2 pipeline stages, which are all",
        "  that a GPU keeps (vLLM issue 34076): use 0.19.0 or newer",
        "  line 3:  the engine refused to start: its longest request needs more KV cache than there is",
        "  (262,144 tokens at most in a request, 24 GiB needed, 3.18 GiB available, 34,736 tokens would fit)",
    ]


WRONG_MODELS = {
    "vLLM": ("vllm-0.10.1-v1-tp2.log", "qwen2.5-7b", "llama-3.1-8b"),
    "SGLang": ("sglang-early.log", "llama-3.1-8b", "llama-3.1-70b"),
    "llama.cpp": ("llamacpp-b3600-old.log", "llama-3.1-8b", "llama-3.1-405b"),
    "TensorRT-LLM": ("tensorrt-llm-0.13.log", "llama-2-7b", "llama-3.1-8b"),
}


@pytest.mark.parametrize(("name", "right", "wrong"), WRONG_MODELS.values(), ids=WRONG_MODELS)
def test_a_log_agrees_with_its_own_model_only(
    name: str, right: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [run(capsys, "--model", model, "--from-log", str(LOGS / name))[0] for model in (right, wrong)]
    assert codes == [0, 1]


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        pytest.param(
            "llama-3.1-8b", "the log is of another model, Qwen/Qwen3-32B: plan with --model qwen3-32b", id="a preset"
        ),
        pytest.param("qwen3-32b", None, id="its own"),
    ],
)
def test_a_log_that_names_another_model_says_so(
    model: str, cause: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", model, "--from-log", str(LOGS / "vllm-0.33.0-kubectl-wrapped.log"), "-o", "json")
    differences = json.loads(run(capsys, *words)[1])["log"]["differences"]
    (size,) = [each for each in differences if each["subject"] == "loggedTokens"]
    assert size["cause"] == cause


def test_a_log_of_llama_cpp_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--model", "llama-3.1-405b", "--from-log", str(LOGS / "llamacpp-b3600-old.log"))
    assert out.partition("Beside the log of ")[2].splitlines() == [
        "llama.cpp 3600:",
        "  line 16:  kvBytes: engine 512 MiB, plan 1.97 GiB, different (-74.60%): the engine's model has 32",
        "  layers (line 4) and the plan's 126: plan with the engine's model",
    ]


def test_a_budget_that_an_option_states_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-8b", "--from-log", str(LOGS / "sglang-early.log"))
    _, out, _ = run(capsys, *words, "--kv-memory", "6GiB", "--gpu-memory", "80GiB")
    assert "  line 3:  kvBytes: engine 5 GiB, plan 6 GiB, different (-16.67%): the plan was told 6 GiB" in out
    _, out, _ = run(capsys, *words)
    assert "  line 3:  kvBytes: engine 5 GiB, plan 5 GiB, taken from the log" in out


def test_a_length_and_a_block_of_an_option_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-2-7b", "--from-log", str(LOGS / "tensorrt-llm-0.13.log"))
    _, out, _ = run(capsys, *words)
    assert "  line 17:  blockTokens: engine 64, plan 64, taken from the log" in out
    _, out, _ = run(capsys, *words, "--block-size", "64")
    assert "  line 17:  blockTokens: engine 64, plan 64, same" in out
    _, out, _ = run(capsys, "--model", "qwen2.5-7b", "--from-log", str(TP2), "--max-model-len", "16384")
    assert "  line 16:  maxModelLen: engine 16,384, plan 16,384, same" in out


def test_a_card_of_an_option_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "qwen2.5-7b", "--from-log", str(TP2))
    code, out, _ = run(capsys, *words, "--gpu-memory", "79.15GiB")
    assert (code, "  line 20:  card: engine 79.15 GiB, plan 79.15 GiB, same" in out) == (0, True)
    assert run(capsys, *words, "--gpu-memory", "80GiB")[0] == 1


def test_where_no_cache_can_be_planned_nothing_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "llama-3.1-70b", "--from-log", str(TP2), "--kv-memory", "1MiB", "--max-model-len", "auto")
    code, out, _ = run(capsys, *words, "-o", "json")
    assert (code, json.loads(out)["log"]["agrees"], json.loads(out)["log"]["differences"]) == (1, None, [])


def test_a_part_that_an_option_states_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = AGREES.format(model="meta-llama/Llama-3.1-8B", tokens="81,920") + (
        "(Worker pid=2) Free memory on device (79.0/79.18 GiB) on startup. Desired GPU memory utilization is"
        " (0.85, 67.3 GiB).\n"
    )
    _, out, _ = run(capsys, "--from-log", log(tmp_path, text), "--gpu-memory-utilization", "0.9", "-o", "json")
    (budget,) = [each for each in json.loads(out)["log"]["differences"] if each["subject"] == "kvBytes"]
    assert (budget["verdict"], budget["cause"]) == (
        "Different",
        "the engine may use 0.85 of the card (line 4) and the plan 0.9: plan with --gpu-memory-utilization 0.85",
    )


def test_estimates_that_are_apart_are_no_disagreement(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--from-log", str(LOGS / "vllm-0.33.0-kubectl-wrapped.log"), "-o", "json")
    code, out, _ = run(capsys, *words)
    said = json.loads(out)["log"]
    apart = [each["subject"] for each in said["differences"] if each["verdict"] == "Different"]
    assert (code, said["agrees"], apart) == (0, True, ["weights", "activation"])


CRASHED = (
    "  line 9:  card: engine 23.64 GiB, plan 23.64 GiB, taken from the log",
    "  The log has no figure that the plan has by a rule: nothing was compared.",
    "  line 9:  the engine refused to start: other processes hold too much of the card (21.28 GiB needed,",
    "  3.1 GiB available)",
    "  line 10:  the engine refused to start: its KV cache has no room for the state of as many sequences",
    "  as it may run (184 fit, 256 sequences)",
)


def test_where_nothing_is_compared_nothing_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--from-log", str(LOGS / "vllm-crash-loop.log"))
    code, out, _ = run(capsys, *words)
    assert code == 1
    assert tuple(out.partition("Beside the log of ")[2].splitlines()[1:]) == CRASHED
    said = json.loads(run(capsys, *words, "-o", "json")[1])["log"]
    assert (said["agrees"], said["differences"][0]["verdict"]) == (None, "TakenFromLog")


NO_ROOM = "its longest request is longer than its KV cache (29,000 tokens at most in a request, 23,648 fit)"
UNPLANNED = {
    "no memory, as a table": (
        "vllm-0.6.3-refused.log",
        "table",
        [
            "  line 15:  the engine refused to start: its longest request is longer than its KV cache (29,000",
            "  tokens at most in a request, 23,648 fit)",
        ],
    ),
    "no memory, as comments of a YAML": (
        "vllm-0.6.3-refused.log",
        "yaml",
        [
            "# line 15:  the engine refused to start: its longest request is longer than its KV cache (29,000",
            "# tokens at most in a request, 23,648 fit)",
        ],
    ),
    "no model": (
        "sglang-refused.log",
        "table",
        ["  line 3:  the engine refused to start: weights and activation leave nothing for its KV cache"],
    ),
    "nothing refused, as a YAML": ("tensorrt-llm-old.log", "yaml", []),
}


@pytest.mark.parametrize(("name", "output", "says"), UNPLANNED.values(), ids=UNPLANNED)
def test_why_an_engine_did_not_start_is_said_where_nothing_can_be_planned(
    name: str, output: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "--from-log", str(LOGS / name), "-o", output)
    assert (code, out.splitlines(), err.count("\n")) == (2, says, 1)


def test_a_program_reads_why_an_engine_did_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--from-log", str(LOGS / "vllm-0.6.3-refused.log"), "-o", "json")
    refused = {"kind": "LengthAboveCapacity", "figures": NO_ROOM, "line": 15}
    assert (code, json.loads(out)) == (2, {"log": {"refusals": [refused], "outOfMemory": []}})


@pytest.mark.parametrize(
    ("text", "words", "code", "says"),
    [
        pytest.param("nothing of an engine\n", (), 3, "no line of it is of an engine's start", id="another log"),
        pytest.param(
            AGREES.format(model="org/another", tokens="1"),
            (),
            2,
            "--from-log needs --model too: give the config.json of the model that the log calls org/another",
            id="a model that is no preset",
        ),
        pytest.param(
            "Available KV cache memory: 10.0 GiB\nGPU KV cache size: 16 tokens\n",
            (),
            2,
            "--from-log needs --model too: the log does not say which model it is of",
            id="no model",
        ),
        pytest.param(
            AGREES.format(model="m", tokens="1"),
            ("--model", "llama-3.1-8b", "--engine", "sglang"),
            2,
            "--engine sglang: the log is of vllm: leave --engine out",
            id="another engine",
        ),
    ],
)
def test_what_cannot_be_compared_is_told(
    text: str, words: tuple[str, ...], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(capsys, "--from-log", log(tmp_path, text), *words)
    assert (found, out) == (code, "")
    assert says in err


def test_a_log_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--from-log", "/nowhere.log") == (
        2,
        "",
        "kvquota: --from-log /nowhere.log: cannot be read: No such file or directory; name a file that is there\n",
    )


def test_the_lengths_that_a_pool_states_are_counted_beside_a_log_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", "qwen2.5-7b", "--tp", "2", "--gpu-memory", "79.15GiB", "--context", "1k,3000", "-o", "yaml")
    pool = tmp_path / "pool.yaml"
    pool.write_text(run(capsys, *words)[1])
    said = json.loads(run(capsys, "--model", str(pool), "--from-log", str(TP2), "-o", "json")[1])
    assert [each["contextTokens"] for each in said["capacity"]] == [1024, 3000]
