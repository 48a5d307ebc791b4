"""What the benchmarks do not begin with, because nothing would be measured, and that they need no environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
OPERATOR = BENCH / "operatorbench"
PASS = OPERATOR / "pass_speed.py"
SOAK = BENCH / "soak.py"


def run(program: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """As a person starts it, who did not set what make sets; `more` of it is set."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ | more)


@pytest.mark.parametrize(
    ("program", "arguments", "says"),
    [
        pytest.param(BENCH, "--rounds 0", "argument --rounds: '0' is not a whole number from 1", id="no round"),
        pytest.param(BENCH, "--tests ,", "argument --tests: nothing is named; name some of L1,", id="no test"),
        pytest.param(OPERATOR, "--pods 0", "argument --pods: '0' is not a whole number from 1", id="no pod"),
        pytest.param(OPERATOR, "--quotas 0", "argument --quotas: '0' is not a whole number from 1", id="no quota"),
        pytest.param(OPERATOR, "--edits -1", "argument --edits: '-1' is not a whole number from 0", id="edits"),
        pytest.param(OPERATOR, "--scope-pool 101", "'101' is not a whole percent: give 0 to 100", id="more than all"),
        pytest.param(OPERATOR, "--port 65536", "argument --port: '65536' is not a port: give 1 to", id="no port"),
        pytest.param(OPERATOR, "--seconds 0", "'0' is not a number of seconds above 0", id="no time"),
        pytest.param(OPERATOR, "--seconds nan", "'nan' is not a number of seconds above 0", id="no number"),
        pytest.param(OPERATOR, "--patience soon", "'soon' is not a number of seconds above 0", id="a word"),
        pytest.param(OPERATOR, "--pods 3 --pools 4", "--pools 4 is more than there are pods or quotas", id="pools"),
        pytest.param(PASS, "0 1", "argument pods: '0' is not a whole number from 1", id="a pool without pods"),
        pytest.param(PASS, "a b", "argument pods: 'a' is not a whole number from 1", id="a word for pods"),
    ],
)
def test_what_would_measure_nothing_is_refused(program: Path, arguments: str, says: str) -> None:
    done = run(program, *arguments.split())
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param("--seconds 0", "argument --seconds: '0' is not a number of seconds above 0", id="no time"),
        pytest.param("--rate inf", "'inf' is not a number of requests a second above 0", id="no end of requests"),
        pytest.param("--every nan", "argument --every: 'nan' is not a number of seconds above 0", id="no number"),
    ],
)
def test_a_soak_without_a_load_is_refused(arguments: str, says: str) -> None:
    done = run(SOAK, *arguments.split(), PYTHONPATH=str(BENCH.parent / "support"))
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]


def test_one_pool_is_measured() -> None:
    done = run(PASS, "2", "1")
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "2 pods"), done.stderr


def test_a_python_without_the_product_is_told_what_to_run(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "found.json"), "--log", str(tmp_path / "log"))
    isolated = [sys.executable, "-S", str(OPERATOR), *out]
    done = subprocess.run(isolated, capture_output=True, text=True, check=False, timeout=60, env={})
    assert done.returncode == 1
    assert done.stderr.startswith("this Python has no module ")
    assert done.stderr.endswith(": run `make bench-operator`, whose Python has all of them\n")
