"""The repository itself: what must never be in it, since it would break Python for everybody who stands in it."""

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from re._constants import POSSESSIVE_REPEAT
from re._parser import SubPattern, parse
from types import ModuleType
from typing import Any

import pytest

import kvquota_api
import kvquota_cli
import kvquota_operator
import kvquota_sidecar

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


def _modules() -> Iterator[ModuleType]:
    for package in (kvquota_api, kvquota_cli, kvquota_operator, kvquota_sidecar):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def _is_possessive(pattern: Any) -> bool:
    return any(op is POSSESSIVE_REPEAT or _holds_possessive(value) for op, value in pattern)


def _holds_possessive(value: Any) -> bool:
    if isinstance(value, SubPattern):
        return _is_possessive(value)
    return isinstance(value, tuple | list) and any(_holds_possessive(each) for each in value)


def test_no_expression_is_possessive_since_they_match_wrongly_in_pythons_that_people_have() -> None:
    """CPython gh-106052, mended in 3.11.5: there a key named twice goes unseen. Atomic groups are right."""
    patterns = {
        f"{module.__name__}.{name}": value.pattern
        for module in _modules()
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    }
    assert len(patterns) > 10
    assert [name for name, pattern in patterns.items() if _is_possessive(parse(pattern))] == []
