"""What the injector appends to the arguments of other projects' pods, read by vLLM's own parser."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testengine.environment import engine_python

pytestmark = pytest.mark.engine

INJECTED = Path(__file__).parents[1] / "data" / "manifests" / "injected"
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

def parse(words):
    try:
        return vars(make_arg_parser(FlexibleArgumentParser(prog="vllm serve")).parse_args(words))
    except SystemExit:
        return None

parsed = {name: parse(words) for name, words in json.load(sys.stdin).items()}
print(json.dumps(parsed, default=str))
"""
PLANNED: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 18000,
    "kv_cache_memory_bytes": 38_654_705_664,
    "max_model_len": 32_768,
    "scheduling_policy": "priority",
    "enable_prompt_tokens_details": True,
}
STATED: dict[str, dict[str, Any]] = {
    "plain-vllm": {"block_size": 16, "max_num_seqs": 256, "max_num_batched_tokens": 8192},
    "production-stack": {},
    "kserve": {"max_num_seqs": 64},
    "kserve-tls": {"ssl_certfile": None, "ssl_keyfile": None},
    "llmkube-vllm": {},
}
BEHIND = "behind a bare --"


def words_of(name: str) -> list[str]:
    """The arguments of the engine in a pod as it comes out, without the program that they are for."""
    containers = yaml.safe_load((INJECTED / f"{name}.yaml").read_text())["spec"]["containers"]
    [engine] = [each for each in containers if "18000" in each.get("args", [])]
    words = [*engine.get("command", []), *engine["args"]]
    options = (at for at, word in enumerate(words) if word.startswith("--"))
    return words[words.index("serve") + 1 :] if "serve" in words else words[min(options) :]


@pytest.fixture(scope="module")
def parsed() -> dict[str, Any]:
    """What vLLM makes of the arguments, by manifest; None where it refuses them."""
    asked = {name: words_of(name) for name in STATED} | {BEHIND: ["m", "--", "--host", "127.0.0.1"]}
    done = subprocess.run(
        [engine_python(), "-c", PARSE], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=300
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", STATED)
def test_vllm_reads_the_appended_arguments_as_they_are_meant(parsed: dict[str, Any], name: str) -> None:
    wanted = PLANNED | STATED[name]
    assert parsed[name] is not None, "refused"
    assert {field: parsed[name][field] for field in wanted} == wanted


def test_vllm_does_not_read_what_is_appended_behind_a_bare_double_dash(parsed: dict[str, Any]) -> None:
    """So such a pod is refused."""
    assert parsed[BEHIND] is None
