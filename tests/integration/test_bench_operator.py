"""The benchmark of the operator runs to its end on a handful of pods, and writes what it promises."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.apiserver

BENCH = Path(__file__).parents[1] / "bench" / "operatorbench"
FIGURES = (
    *("observedP95Seconds", "statusP95Seconds", "statusWritesPerSecondPeak", "statusWritesPerSecondIdle"),
    *("editInForce250PodsSeconds", "editOfAPoolQuotaInForceSeconds", "cpuCores", "rssMiB", "coldStartSeconds"),
)


def test_the_bench_measures_a_handful_of_pods(tmp_path: Path) -> None:
    out = tmp_path / "operator.json"
    size = ["--pods=6", "--quotas=4", "--pools=2", "--seconds=8", "--edits=2", "--patience=90", "--scope-pool=50"]
    command = [sys.executable, str(BENCH), *size, "--out", str(out), "--log", str(tmp_path / "operator.log")]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert (found["pods"], found["quotas"], found["conditions"]["quotasOfScopePool"]) == (6, 4, 2)
    assert {name: found[name] for name in FIGURES if not isinstance(found[name], int | float)} == {}
    steady, idle = found["steady"], found["idle"]
    assert steady["steps"] > 0
    assert steady["callsWithAWrongToken"] == 0
    assert set(steady["cores"]) == {"operator", "sidecars", "etcd", "kube-apiserver", "strangers"}
    assert 0 < found["observedP95Seconds"] <= found["statusP95Seconds"]
    assert (idle["statusWritesPerSecond"], idle["right"]) == (0, True)
