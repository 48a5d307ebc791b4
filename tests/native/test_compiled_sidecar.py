"""The compiled sidecar has what its sources say: `make test-native` runs this, and the sidecar's other tests, on it."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvquota_sidecar import compiled

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("admission", "estimate", "ledger", "proxy", "refusals", "telemetry")
INTERPRETED = {"estimate.bodies", "estimate.questions", "proxy.frames", "proxy.own_usage"}

pytestmark = pytest.mark.skipif(compiled.build() == "interpreted", reason="make test-native runs it")

RECORDS = """
import importlib, json, msgspec, pathlib, sys
OPTIONS = [name for name in dir(msgspec.structs.StructConfig) if not name.startswith("_")]
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, msgspec.Struct) and cls.__module__ == name:
            options = {each: repr(getattr(cls.__struct_config__, each)) for each in OPTIONS}
            found[f"{name}.{cls.__name__}"] = [cls.__struct_fields__, repr(cls.__struct_defaults__), options]
print(json.dumps(found))
"""


def modules() -> list[str]:
    """The names of all modules of the packages that are compiled, after "kvquota_sidecar."."""
    package = ROOT / "sidecar" / "kvquota_sidecar"
    paths = [path for name in PACKAGES for path in (package / name).rglob("*.py") if path.name != "__init__.py"]
    return sorted(".".join(path.relative_to(package).with_suffix("").parts) for path in paths)


def records(first_on_path: Path) -> dict[str, object]:
    """Of the sidecar in a folder: fields, defaults and options of every record, by its name."""
    argv = [
        sys.executable,
        "-c",
        RECORDS,
        *(f"kvquota_sidecar.{name}" for name in modules() if name not in INTERPRETED),
    ]
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": str(first_on_path)}, capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_exactly_the_modules_that_can_be_are_compiled() -> None:
    origins = {name: importlib.import_module(f"kvquota_sidecar.{name}").__file__ or "" for name in modules()}
    assert {name for name, origin in origins.items() if not origin.endswith(".so")} == INTERPRETED


def test_records_do_not_change_and_have_the_defaults_that_their_sources_say() -> None:
    there = Path(str(compiled.__file__)).parents[1]
    assert records(there) == records(ROOT / "sidecar")
