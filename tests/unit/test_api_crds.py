"""The CRDs that are in the repository, and how they are made."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.crd import MODEL_POOLS, RESOURCES, TENANT_QUOTAS, Resource, custom_resource_definition
from kvquota_api.crdgen import generated_files, main

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "crds", ROOT / "charts" / "kvquota" / "crds"]


def schema_of(resource: Resource) -> dict[str, Any]:
    schema: dict[str, Any] = custom_resource_definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def fields_in(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields_in(child, f"{path}.{name}")
    if "items" in schema:
        yield from fields_in(schema["items"], f"{path}[]")


@pytest.mark.parametrize("folder", FOLDERS, ids=["crds", "chart"])
def test_the_files_are_what_the_models_say(folder: Path) -> None:
    present = {path.name: path.read_text("utf-8") for path in folder.glob("*.yaml")}

    assert present == generated_files()


def test_a_file_is_the_definition_and_has_no_anchors() -> None:
    for resource, content in zip(RESOURCES, generated_files().values(), strict=True):
        assert yaml.safe_load(content) == custom_resource_definition(resource)
        assert not re.search(r"[:-] [&*]id\d", content)


@pytest.mark.parametrize(
    ("resource", "short"), [(MODEL_POOLS, "kvmp"), (TENANT_QUOTAS, "tq")], ids=["ModelPool", "TenantQuota"]
)
def test_the_names_of_a_resource(resource: Resource, short: str) -> None:
    definition = custom_resource_definition(resource)

    assert definition["metadata"]["name"] == f"{resource.plural}.kvquota.dev"
    assert definition["spec"]["scope"] == "Namespaced"
    assert definition["spec"]["names"] == {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": f"{resource.kind.lower()}s",
        "singular": resource.kind.lower(),
        "shortNames": [short],
        "categories": ["kvquota"],
    }
    assert definition["spec"]["versions"][0]["subresources"] == {"status": {}}


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_every_field_of_the_spec_says_what_it_means(resource: Resource) -> None:
    undescribed = [
        path for path, field in fields_in(schema_of(resource)) if path != ".metadata" and not field.get("description")
    ]

    assert undescribed == []


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_every_column_shows_a_field_of_the_schema(resource: Resource) -> None:
    known = {path for path, _ in fields_in(schema_of(resource))} | {".metadata.creationTimestamp"}

    assert [column.path for column in resource.columns if column.path not in known] == []


def test_metadata_is_left_to_the_api_server() -> None:
    assert schema_of(TENANT_QUOTAS)["properties"]["metadata"] == {"type": "object"}


def test_writes_every_file_into_every_folder_and_finds_them_right(tmp_path: Path) -> None:
    folders = [str(tmp_path / "a"), str(tmp_path / "b" / "c")]

    assert main(folders) == 0
    assert main(["--check", *folders]) == 0
    assert {path.name for path in (tmp_path / "b" / "c").iterdir()} == set(generated_files())


def test_runs_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["crdgen", str(tmp_path)])
    monkeypatch.delitem(sys.modules, "kvquota_api.crdgen")

    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("kvquota_api.crdgen", run_name="__main__")

    assert {path.name for path in tmp_path.iterdir()} == set(generated_files())


@pytest.mark.parametrize("seed", ["0", "1"])
def test_writes_the_same_whatever_order_sets_have_in_a_process(tmp_path: Path, seed: str) -> None:
    argv = [sys.executable, "-m", "kvquota_api.crdgen", str(tmp_path)]

    subprocess.run(argv, check=True, env={**os.environ, "PYTHONHASHSEED": seed})

    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == generated_files()


def test_check_names_a_file_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(tmp_path)]) == 1

    assert capsys.readouterr().err == (
        f"{tmp_path}/kvquota.dev_modelpools.yaml is missing\n"
        f"{tmp_path}/kvquota.dev_tenantquotas.yaml is missing\n"
        "The CRDs are not what the models say: run `make crds`.\n"
    )


def test_check_shows_where_a_file_differs_and_leaves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    path = tmp_path / "kvquota.dev_tenantquotas.yaml"
    edited = path.read_text("utf-8").replace("maximum: 1000\n", "maximum: 9999\n", 1)
    path.write_text(edited, "utf-8")

    assert main(["--check", str(tmp_path)]) == 1

    said = capsys.readouterr().err
    assert re.search(r"^-\s+maximum: 9999$", said, re.MULTILINE)
    assert re.search(r"^\+\s+maximum: 1000$", said, re.MULTILINE)
    assert path.read_text("utf-8") == edited


def test_check_shows_the_beginning_of_a_long_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    (tmp_path / "kvquota.dev_modelpools.yaml").write_text("nothing of it\n", "utf-8")

    main(["--check", str(tmp_path)])

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 22
    assert re.fullmatch(r"… and \d+ lines more", said[20])
