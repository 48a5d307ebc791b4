"""The chart's warnings of fields that nothing acts upon yet: the same ones as the operator tells, where it serves."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.inert import INERT
from testcluster.helm import Helm

CHART = Path(__file__).parents[2] / "charts" / "kvquota"
HOME = "kvquota-system"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
RESOURCES = {"ModelPool": "modelpools", "TenantQuota": "tenantquotas"}

Manifest = dict[str, Any]


def rendered(helm: Helm, *values: str) -> list[Manifest]:
    sets = [part for value in values for part in ("--set", value)]
    text = helm("template", "kvquota", CHART, "--namespace", HOME, *sets)
    found = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return [manifest for manifest in found if manifest["kind"] in (POLICY, BINDING)]


def by_name(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == kind}


def test_each_field_that_nothing_acts_upon_is_warned_of_in_the_operators_words(helm: Helm) -> None:
    policies = by_name(rendered(helm), POLICY)
    assert policies == {
        f"{HOME}-kvquota-not-enforced-yet-{RESOURCES[kind]}": {
            "failurePolicy": "Ignore",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["kvquota.dev"],
                        "apiVersions": ["v1alpha1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [RESOURCES[kind]],
                        "scope": "Namespaced",
                    }
                ]
            },
            "validations": [{"expression": f"!({field.asks})", "message": field.sentence} for field in fields],
        }
        for kind, fields in INERT.items()
    }


@pytest.mark.parametrize(
    ("values", "places"),
    [
        pytest.param((), [HOME], id="the release's own namespace"),
        pytest.param(("namespaces={a,b}",), ["a", "b"], id="the namespaces that are named"),
        pytest.param(("allNamespaces=true",), None, id="all namespaces"),
    ],
)
def test_it_warns_where_the_operator_serves_and_refuses_nothing(
    helm: Helm, values: tuple[str, ...], places: list[str] | None
) -> None:
    manifests = rendered(helm, *values)
    bindings = by_name(manifests, BINDING)
    assert {spec["policyName"] for spec in bindings.values()} == set(bindings) == set(by_name(manifests, POLICY))
    where = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": places}
    for spec in bindings.values():
        assert spec["validationActions"] == ["Warn"]
        assert spec.get("matchResources") == (
            None if places is None else {"namespaceSelector": {"matchExpressions": [where]}}
        )


def test_without_them_there_is_none(helm: Helm) -> None:
    assert rendered(helm, "warnings=false") == []
