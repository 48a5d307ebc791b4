"""The compiled sidecar has what its sources say: `make test-native` runs this, and the sidecar's other tests, on it."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvquota_sidecar import compiled
from kvquota_sidecar.proxy.head import Head
from kvquota_sidecar.proxy.request_ids import Name
from kvquota_sidecar.records import replace

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("admission", "estimate", "ledger", "proxy", "refusals", "telemetry")
INTERPRETED = {"estimate.bodies", "estimate.questions", "proxy.frames", "proxy.own_usage"}

pytestmark = pytest.mark.skipif(compiled.build() == "interpreted", reason="make test-native runs it")

RECORDS = """
import importlib, inspect, json, sys
from kvquota_sidecar.records import LeafValue, MutableLeaf, Value
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, (LeafValue, MutableLeaf, Value)) and cls.__module__ == name:
            fields = cls.__mypyc_attrs__ if hasattr(cls, "__mypyc_attrs__") else cls.__struct_fields__
            defaults = {key: repr(each.default) for key, each in inspect.signature(cls).parameters.items()}
            found[f"{name}.{cls.__name__}"] = [list(fields), defaults]
print(json.dumps(found))
"""


def modules() -> list[str]:
    """The names of all modules of the packages that are compiled, after "kvquota_sidecar."."""
    package = ROOT / "sidecar" / "kvquota_sidecar"
    paths = [path for name in PACKAGES for path in (package / name).rglob("*.py") if path.name != "__init__.py"]
    return sorted(".".join(path.relative_to(package).with_suffix("").parts) for path in paths)


def records(first_on_path: Path) -> dict[str, list[Any]]:
    """Of the sidecar in a folder: fields and defaults of every record, by its name."""
    names = [f"kvquota_sidecar.{name}" for name in modules() if name not in INTERPRETED]
    environ = {**os.environ, "PYTHONPATH": str(first_on_path)}
    argv = [sys.executable, "-c", RECORDS, *names]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


def test_exactly_the_modules_that_can_be_are_compiled() -> None:
    origins = {name: importlib.import_module(f"kvquota_sidecar.{name}").__file__ or "" for name in modules()}
    assert {name for name, origin in origins.items() if not origin.endswith(".so")} == INTERPRETED


def test_records_have_the_fields_and_defaults_that_their_sources_say() -> None:
    compiled_ones, sources = records(Path(str(compiled.__file__)).parents[1]), records(ROOT / "sidecar")
    assert {name: fields for name, (fields, _) in compiled_ones.items()} == {
        name: fields for name, (fields, _) in sources.items()
    }
    told = {name: defaults for name, (_, defaults) in compiled_ones.items() if defaults}  # literal ones
    assert len(told) > len(sources) / 2
    del told["kvquota_sidecar.proxy.head.Head"]  # it has a new dictionary each time, see below
    assert told == {name: sources[name][1] for name in told}


def test_records_are_equal_by_what_they_hold() -> None:
    first, other = Name("a", "b"), Name("a", "b")
    assert (first, hash(first), repr(first)) == (other, hash(other), "Name(own='a', given='b')")
    assert replace(first, own="c") == Name("c", "b") != first


def test_a_record_has_a_dictionary_of_its_own() -> None:
    first, other = (Head("GET", "/", "/", 1, (), None, keep_alive=True, expects_continue=False) for _ in range(2))
    first.notes["a"] = 1
    assert other.notes == {}
