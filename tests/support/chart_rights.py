"""What the chart lets the operator do, as the API server would decide."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[2] / "charts" / "kvquota"

Right = tuple[str, str, str, str]
"""Namespace (empty: of a ClusterRole), group, resource with its subresource, verb."""


def rights_of(manifests: Iterable[dict[str, Any]]) -> set[Right]:
    """The rights that the roles of a rendered chart give, whatever the names that they are narrowed down to."""
    return {
        (role["metadata"].get("namespace", ""), group, resource, verb)
        for role in manifests
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
