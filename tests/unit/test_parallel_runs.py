"""A run with several workers gives all tests of a costly part to one of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_runs import SHARED_PARTS

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0

TESTS = """
import os
import pytest

@pytest.mark.{part}
@pytest.mark.parametrize("number", range(20))
def test_it(number):
    with open("workers", "a") as stream:
        stream.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


@pytest.mark.parametrize("part", SHARED_PARTS)
def test_tests_of_a_shared_part_run_in_one_worker(tmp_path: Path, part: str) -> None:
    (tmp_path / "test_them.py").write_text(TESTS.format(part=part))
    settings = ["-c", str(ROOT / "pyproject.toml"), "-p", "parallel_runs", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-n", "2", "--dist", "loadgroup", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "20 passed" in done.stdout
    assert len(set((tmp_path / "workers").read_text().split())) == 1
