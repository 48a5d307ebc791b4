"""The repository itself: what must never be in it, since it would break Python for everybody who stands in it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", ["operator/__init__.py", "operator/operator.py", "tests/operator"])
def test_nothing_shadows_the_operator_module_of_the_standard_library(path: str) -> None:
    assert not (ROOT / path).exists()


def test_python_started_in_the_root_imports_its_own_operator_module() -> None:
    code = "import operator, sys; assert operator.add(1, 2) == 3; print(operator.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "operator")


def test_test_files_have_unique_names_since_they_are_imported_by_them() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_test_folders_are_no_packages() -> None:
    packages = [path for path in (ROOT / "tests").rglob("__init__.py") if "support" not in path.parts]
    assert packages == []


def test_lock_files_pin_with_hashes_and_name_no_host() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert re.search(r"https?://", text) is None, lock.name
        pinned = re.findall(r"^[a-z0-9][^\s]*==", text, re.MULTILINE)
        assert len(pinned) > 0, lock.name
        blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
        assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == [], lock.name
