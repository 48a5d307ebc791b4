"""The reference of the resources: what is in it, and that the one in the repository is up to date."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvquota_api.crd import RESOURCES, Resource, custom_resource_definition
from kvquota_api.crdgen import main
from kvquota_api.reference import reference

WRITTEN = Path(__file__).parents[2] / "docs" / "reference.md"
LINES = reference().splitlines()


def test_the_file_is_what_the_models_say() -> None:
    assert WRITTEN.read_text("utf-8") == reference()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            "| **`gpu.memory`** | number or text | Memory of one card in bytes, as a quantity: 80Gi. At least 0. |",
            id="a required amount",
        ),
        pytest.param(
            "| `engine.parallelism.tensor` | integer | GPUs that share each layer. From 1 to 1024. Default: 1. |",
            id="a number with its bounds and its default",
        ),
        pytest.param(
            "| `enforcement` | `Enforce` \\| `Shadow` | Enforce: refuse and end what passes quotas. Shadow: only count"
            " it, for a first roll-out. Default: Enforce. |",
            id="a choice of words",
        ),
        pytest.param("| `model.config.inline` | any object | The config.json itself. |", id="a free-form field"),
        pytest.param(
            "| `selector.matchLabels` | map of string | Labels that a pod must have. Default: none. At most 32"
            " entries. |",
            id="a map",
        ),
        pytest.param(
            "| `tiers` | list of object | Named values for TenantQuotas of this pool. Default: none. At most 32"
            " items. |",
            id="a list",
        ),
        pytest.param(
            "| `tiers[].priority` | integer | Higher is more important. Default: 0. From 0 to 1000. |",
            id="a field of the items of a list",
        ),
        pytest.param(
            "| **`conditions[].lastTransitionTime`** | date-time | When `status` last changed. |", id="a moment"
        ),
        pytest.param("| USED-BLOCKS | `status.used.blocks` | with `-o wide` |", id="a wide column"),
        pytest.param("| TENANT | `spec.tenant` |  |", id="a column"),
        pytest.param(
            "* `spec.tiers[].kv`: soft must not be more than hard: lower soft or raise hard", id="a rule of an item"
        ),
        pytest.param(
            "* `spec.degradation.fallback.modelPoolRef`: a pool cannot fall back to itself: name another ModelPool in"
            " degradation.fallback.modelPoolRef",
            id="a rule of the whole object",
        ),
    ],
)
def test_has_the_row(row: str) -> None:
    assert row in LINES


def messages_in(part: Any) -> Iterator[str]:
    """The messages of all rules of a manifest, wherever they stand."""
    if isinstance(part, dict):
        yield from (rule["message"] for rule in part.get("x-kubernetes-validations", ()))
    for item in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from messages_in(item)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_has_every_rule_and_no_other(resource: Resource) -> None:
    own = "\n".join(LINES).partition(f"### {resource.kind} rules")[2].partition("\n## ")[0]
    listed = {line.partition("`: ")[2] for line in own.splitlines() if line.startswith("* ")}

    assert listed == set(messages_in(custom_resource_definition(resource)))


def test_has_a_part_for_each_side_of_each_resource() -> None:
    headings = [line for line in LINES if line.startswith("#")]

    assert headings == [
        "# Reference of the resources",
        *(
            heading
            for resource in RESOURCES
            for heading in (
                f"## {resource.kind} (`{resource.short}`)",
                *(f"### {resource.kind} {part}" for part in ("spec", "status", "columns", "rules")),
            )
        ),
    ]


def test_is_written_and_checked_beside_the_crds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "docs" / "reference.md"
    arguments = ["--reference", str(file), str(tmp_path / "crds")]

    assert main(arguments) == 0
    assert main(["--check", *arguments]) == 0
    assert file.read_text("utf-8") == reference()

    file.write_text("older\n", "utf-8")
    assert main(["--check", *arguments]) == 1
    assert "-older" in capsys.readouterr().err
