"""hatch_build.py: when what was compiled is compiled again."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("sidecar/kvquota_sidecar/records.py", "crds/kvquota_api/meta.py", "hatch_build.py", "pyproject.toml")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module in a repository that has next to nothing in it."""
    spec = importlib.util.spec_from_file_location("hatch_build_under_test", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for each in SOURCES:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("A = 1\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "SOURCES", tmp_path / "sidecar")
    return module


@pytest.mark.parametrize("path", [*SOURCES, "sidecar/kvquota_sidecar/ledger/new.py"])
def test_every_source_counts(build: ModuleType, tmp_path: Path, path: str) -> None:
    before = build.digest_of_sources()
    assert build.digest_of_sources() == before
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("A = 2\n")
    assert build.digest_of_sources() != before


def test_what_was_compiled_of_the_same_sources_stays(build: ModuleType, tmp_path: Path) -> None:
    """`make native` and the wheel that is built after it share one compilation."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "compiled.so").write_text("")
    (folder / build.MADE_OF).write_text(build.digest_of_sources())
    build.compile_into(folder)
    assert sorted(each.name for each in folder.iterdir()) == sorted([build.MADE_OF, "compiled.so"])
