"""`kvquota plan` as a program: what it imports, what it prints where, and that `kvquota check` takes what it plans."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("--model", "gpt-oss-20b", "--kv-memory", "8GiB", "--max-model-len", "8192", "-o", "json")


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvquota_cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


# The heavy packages, and the networking of the standard library: a plan needs none of them.
FORBIDDEN = (
    "torch",
    "kopf",
    "aiohttp",
    "jwt",
    "kubernetes",
    "uvloop",
    "http.client",
    "urllib.request",
    "asyncio",
)
IMPORTED = """\
import sys
from kvquota_cli.__main__ import main
code = main(sys.argv[1:])
print([name for name in {forbidden!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(LIGHT, id="of bytes"),
        pytest.param(("--model", "llama-3.1-8b", "--gpu-memory", "80GiB"), id="of a card, as a table"),
        pytest.param(("--model", "examples/modelpool.yaml", "--pool", "llama-8b", "-o", "yaml"), id="of a pool"),
    ],
)
def test_a_plan_imports_no_engine_no_operator_and_no_network(words: tuple[str, ...]) -> None:
    code = IMPORTED.format(forbidden=FORBIDDEN)
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


def test_a_plan_of_a_config_does_not_load_what_reads_pools() -> None:
    code = IMPORTED.format(forbidden=("pydantic", "yaml", "rich"))
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", *LIGHT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


def test_json_is_on_stdout_alone_and_the_same_every_time() -> None:
    one, other = (run("plan", *LIGHT, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert (one.returncode, one.stderr, one.stdout) == (0, "", other.stdout)
    assert json.loads(one.stdout)["blocks"] == 21_845


def test_a_reason_is_on_stderr_and_the_ways_out_on_stdout() -> None:
    done = run("plan", "--model", "llama-3.1-70b", "--gpu-memory", "80GiB")
    assert done.returncode == 3
    assert done.stderr.startswith("kvquota: the parts of one card sum to ")
    assert done.stderr.count("\n") == 1
    assert "Ways out, in this order:" in done.stdout


def test_there_are_no_colours_where_nobody_sees_them() -> None:
    assert "\x1b[" not in run("plan", "--model", "llama-3.1-8b", "--gpu-memory", "80GiB", FORCE_COLOR="1").stdout


def test_an_output_that_cannot_show_blocks_gets_letters() -> None:
    done = run("plan", "--model", "llama-3.1-8b", "--gpu-memory", "80GiB", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\nW weights " in done.stdout


def test_a_pool_that_was_planned_is_one_that_check_takes(tmp_path: Path) -> None:
    planned = run("plan", "--model", "qwen3-8b", "--gpu-memory", "80GiB", "-o", "yaml")
    (tmp_path / "pool.yaml").write_text(planned.stdout)
    checked = run("check", str(tmp_path))
    assert (checked.returncode, checked.stdout) == (0, "all good in 1 ModelPool\n")


def test_help_has_every_option_and_exit_code() -> None:
    done = run("plan", "--help")
    assert done.returncode == 0
    for words in ("--model FILE|PRESET", "--kv-memory SIZE", "--from-log FILE", "exit codes:", "3  no plan:"):
        assert words in done.stdout
