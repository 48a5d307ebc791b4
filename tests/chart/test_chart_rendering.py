"""The chart: what it renders, what it refuses, and what a real API server thinks of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_operator.settings import Address, LeaseSettings, OperatorSettings, parse_settings
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm
from testcluster.programs import ProgramError

CHART = Path(__file__).parents[2] / "charts" / "kvquota"
HOME = "kvquota-system"

Manifest = dict[str, Any]


def rendered(helm: Helm, *values: str, release: str = "kvquota") -> list[Manifest]:
    """Without the webhook, which has tests of its own."""
    sets = [part for value in ("webhook.enabled=false", *values) for part in ("--set", value)]
    text = helm("template", release, CHART, "--namespace", HOME, *sets)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def operator_pod(manifests: list[Manifest]) -> Manifest:
    [deployment] = of_kind(manifests, "Deployment")
    template: Manifest = deployment["spec"]["template"]
    return template


def settings(manifests: list[Manifest]) -> OperatorSettings:
    """What the operator makes of the arguments that the chart gives it."""
    [container] = operator_pod(manifests)["spec"]["containers"]
    assert "command" not in container, "the image says what it runs"
    return parse_settings(container["args"])


def named(manifests: list[Manifest], kind: str, name: str) -> list[Manifest]:
    return [manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name]


def places(manifests: list[Manifest], kind: str, name: str = "kvquota-operator") -> list[str]:
    return [manifest["metadata"]["namespace"] for manifest in named(manifests, kind, name)]


def test_the_chart_passes_the_strict_linter(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


@pytest.mark.parametrize(
    ("values", "served", "role_places"),
    [
        pytest.param((), (HOME,), [HOME], id="without values the release's own namespace is served"),
        pytest.param(("namespaces={a}",), ("a",), ["a"], id="one namespace is served, and rights are given only there"),
        pytest.param(("namespaces={a,b}",), ("a", "b"), ["a", "b"], id="several namespaces are served"),
    ],
)
def test_which_namespaces_are_served(
    helm: Helm, values: tuple[str, ...], served: tuple[str, ...], role_places: list[str]
) -> None:
    manifests = rendered(helm, *values)
    assert settings(manifests).namespaces == served
    assert places(manifests, "Role") == places(manifests, "RoleBinding") == role_places
    assert of_kind(manifests, "ClusterRole") == []
    assert {each["namespace"] for each in subjects(manifests, "RoleBinding")} == {HOME}


def subjects(manifests: list[Manifest], kind: str) -> list[dict[str, str]]:
    return [subject for binding in of_kind(manifests, kind) for subject in binding["subjects"]]


def test_all_namespaces_are_served_with_the_same_rights_everywhere(helm: Helm) -> None:
    manifests = rendered(helm, "allNamespaces=true")
    assert settings(manifests).namespaces == ()
    assert places(manifests, "Role") == []
    [everywhere] = of_kind(manifests, "ClusterRole")
    [role] = named(rendered(helm), "Role", "kvquota-operator")
    assert everywhere["rules"] == role["rules"]
    assert [each["name"] for each in subjects(manifests, "ClusterRoleBinding")] == ["kvquota-operator"]


@pytest.mark.parametrize("where", ["namespaces={a}", "allNamespaces=true"])
def test_the_lease_is_in_the_releases_namespace_and_no_other_one_may_be_touched(helm: Helm, where: str) -> None:
    manifests = rendered(helm, where)
    assert places(manifests, "Role", "kvquota-operator-lease") == [HOME]
    assert places(manifests, "RoleBinding", "kvquota-operator-lease") == [HOME]
    [role] = named(manifests, "Role", "kvquota-operator-lease")
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert role["rules"] == [
        {**leases, "verbs": ["create"]},
        {**leases, "resourceNames": ["kvquota-operator"], "verbs": ["get", "update"]},
    ]
    assert settings(manifests).lease == LeaseSettings("kvquota-operator")


def test_no_right_is_a_wildcard(helm: Helm) -> None:
    assert "*" not in json.dumps([role["rules"] for role in of_kind(rendered(helm), "Role")])


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        pytest.param("namespaces={kube-system}", "namespaces", id="kube-system is not served"),
        pytest.param("namespaces={Upper}", "namespaces", id="a namespace that cannot exist is refused"),
        pytest.param("syncSeconds=0.1", "choose 0.2 to 60", id="a period below the operator's bound is refused"),
        pytest.param("syncSeconds=61", "choose 0.2 to 60", id="a period above the operator's bound is refused"),
        pytest.param("syncSeconds=soon", "syncSeconds", id="a period that is no number is refused"),
        pytest.param("image.digest=abc", "digest", id="a digest that is none is refused"),
        pytest.param("replica=2", "replica", id="a value that the chart does not know is refused"),
        pytest.param("replicas=0", "replicas", id="an installed operator runs"),
        pytest.param("logFormat=xml", "logFormat", id="a format that the operator does not have is refused"),
        pytest.param("serviceAccount.create=false", "serviceAccount.name", id="an account must be named or made"),
    ],
)
def test_what_is_refused(helm: Helm, value: str, complaint: str) -> None:
    with pytest.raises(ProgramError) as refused:
        rendered(helm, value)
    assert complaint in refused.value.output


def test_all_namespaces_beside_some_is_refused_with_the_way_out(helm: Helm) -> None:
    with pytest.raises(ProgramError) as refused:
        rendered(helm, "allNamespaces=true", "namespaces={a}")
    assert "leave namespaces empty, or set allNamespaces to false" in refused.value.output


def test_the_arguments_are_what_the_values_say(helm: Helm) -> None:
    assert settings(rendered(helm, "namespaces={a}", "syncSeconds=0.5")) == OperatorSettings(
        namespaces=("a",),
        kubeconfig=None,
        sync_seconds=0.5,
        listen=Address("", 8080),
        lease=LeaseSettings("kvquota-operator"),
        log_format="json",
    )


@pytest.mark.parametrize(
    ("values", "image"),
    [
        pytest.param((), "kvquota/operator:0.1.0", id="without values the image is that of the chart's version"),
        pytest.param(("image.tag=x",), "kvquota/operator:x", id="a tag is taken"),
        pytest.param(
            ("image.tag=x", f"image.digest=sha256:{'0' * 64}"),
            f"kvquota/operator@sha256:{'0' * 64}",
            id="a digest wins over a tag",
        ),
    ],
)
def test_the_image(helm: Helm, values: tuple[str, ...], image: str) -> None:
    [container] = operator_pod(rendered(helm, *values))["spec"]["containers"]
    assert container["image"] == image


def test_an_own_account_is_bound_and_used(helm: Helm) -> None:
    manifests = rendered(helm, "serviceAccount.create=false", "serviceAccount.name=mine")
    assert of_kind(manifests, "ServiceAccount") == []
    assert operator_pod(manifests)["spec"]["serviceAccountName"] == "mine"
    assert {each["name"] for each in subjects(manifests, "RoleBinding")} == {"mine"}


def test_two_releases_do_not_share_a_name(helm: Helm) -> None:
    both = [rendered(helm, "allNamespaces=true", release=name) for name in ("one", "two")]
    first, second = ({(each["kind"], each["metadata"]["name"]) for each in manifests} for manifests in both)
    assert first & second == set()


def test_an_operator_is_always_there(helm: Helm) -> None:
    """A new one is ready before an old one ends; nodes are drained one at a time; two are not on one node."""
    manifests = rendered(helm)
    [deployment], [budget] = of_kind(manifests, "Deployment"), of_kind(manifests, "PodDisruptionBudget")
    spread = operator_pod(manifests)["spec"]["topologySpreadConstraints"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert [(each["topologyKey"], each["whenUnsatisfiable"]) for each in spread] == [
        ("kubernetes.io/hostname", "ScheduleAnyway")
    ]


def test_one_replica_does_not_keep_its_node_from_being_drained(helm: Helm) -> None:
    manifests = rendered(helm, "replicas=1")
    assert of_kind(manifests, "PodDisruptionBudget") == []
    assert settings(manifests).lease is not None


@pytest.mark.apiserver
def test_the_pod_is_admitted_where_restricted_security_is_enforced(helm: Helm, apiserver: ApiServer) -> None:
    apiserver.create_namespace("chart-restricted")
    apiserver.kubectl("label", "namespace", "chart-restricted", "pod-security.kubernetes.io/enforce=restricted")
    apiserver.kubectl("create", "serviceaccount", "kvquota-operator", "-n", "chart-restricted")
    template = operator_pod(rendered(helm))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    create = ("create", "--dry-run=server", "-n", "chart-restricted", "-f", "-")
    assert "pod/operator created" in apiserver.kubectl(*create, input=json.dumps(pod))
    del pod["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(ProgramError) as refused:
        apiserver.kubectl(*create, input=json.dumps(pod))
    assert "violates PodSecurity" in refused.value.output


@pytest.fixture
def empty() -> Iterator[ApiServer]:
    """An API server of this test's own: helm installs no resource that kubectl has installed before."""
    with ApiServer() as server:
        yield server


@pytest.mark.apiserver
def test_the_chart_installs_with_its_resources(helm: Helm, empty: ApiServer) -> None:
    empty.create_namespace("chart-served")
    helm(
        *("install", "kvquota", CHART, "--namespace", "chart-home", "--create-namespace"),
        *("--set", "namespaces={chart-served}"),
        kubeconfig=empty.kubeconfig,
    )
    found = empty.kubectl("get", "deployment,role,serviceaccount,poddisruptionbudget", "-A", "-o", "name")
    helm("uninstall", "kvquota", "--namespace", "chart-home", kubeconfig=empty.kubeconfig)
    assert {line for line in found.split() if "/kvquota-operator" in line} == {
        "deployment.apps/kvquota-operator",
        "poddisruptionbudget.policy/kvquota-operator",
        "role.rbac.authorization.k8s.io/kvquota-operator",
        "role.rbac.authorization.k8s.io/kvquota-operator-lease",
        "serviceaccount/kvquota-operator",
    }
    assert "modelpools.kvquota.dev" in empty.kubectl("get", "crds", "-o", "name")
