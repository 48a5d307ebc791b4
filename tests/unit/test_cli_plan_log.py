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
    monkeypatch.setenv("COLUMNS", "120")


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
    assert "on vllm 0.10.1.1 (cuda-sm80), 2 GPUs (tp 2) of 79.15 GiB" in out.splitlines()[0]
    assert out.partition("Beside the log of ")[2].splitlines() == [
        "vllm 0.10.1.1:",
        "  line 15:  loggedTokens: engine 450,192, plan 450,192, same",
        "  line 16:  concurrency: engine 27.48, plan 27.48, same, as it was rounded (+0.01%)",
        "  line 16:  maxModelLen: engine 16,384, plan 16,384, same",
        "  line 20:  kvBytes: engine 12.02 GiB, plan 12.02 GiB, same",
        "  line 20:  card: engine 79.15 GiB, plan 79.15 GiB, same",
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
    words = ("--model", "qwen3-8b", "--from-log", str(LOGS / "vllm-0.15.1-refused.log"), "-o", "json")
    code, out, err = run(capsys, *words)
    assert (code, err) in {(0, ""), (1, "")}
    assert [each["kind"] for each in json.loads(out)["log"]["refusals"]] == ["LengthAboveMemory"]


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
