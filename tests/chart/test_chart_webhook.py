"""The webhook in the chart: whom it is asked about, who may change what, and whose certificates it has."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_operator.injection.outcomes import SidecarImage
from kvquota_operator.settings import Address, parse_settings
from kvquota_operator.webhook_settings import ServiceName, WebhookSettings
from testcluster.helm import Helm
from testcluster.programs import ProgramError

CHART = Path(__file__).parents[2] / "charts" / "kvquota"
HOME = "kvquota-system"
CERT_MANAGER = "webhook.certManager.enabled=true"

Manifest = dict[str, Any]


def rendered(helm: Helm, *values: str) -> list[Manifest]:
    sets = [part for value in values for part in ("--set", value)]
    text = helm("template", "kvquota", CHART, "--namespace", HOME, *sets)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def container(manifests: list[Manifest]) -> Manifest:
    [deployment] = of_kind(manifests, "Deployment")
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def hook(manifests: list[Manifest]) -> Manifest:
    [configuration] = of_kind(manifests, "MutatingWebhookConfiguration")
    [found] = configuration["webhooks"]
    return dict(found)


def named(manifests: list[Manifest], name: str) -> list[str]:
    return sorted(each["kind"] for each in manifests if each["metadata"]["name"] == name)


def test_without_it_nothing_of_it_is_there(helm: Helm) -> None:
    manifests = rendered(helm, "webhook.enabled=false")
    assert [each["kind"] for each in manifests if "webhook" in yaml.safe_dump(each)] == []
    assert parse_settings(container(manifests)["args"]).webhook is None


def test_it_is_asked_about_new_pods_with_the_label_and_fails_closed_for_these(helm: Helm) -> None:
    assert hook(rendered(helm, "namespaces={a,b}")) == {
        "name": "inject.kvquota.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"name": "kvquota-webhook", "namespace": HOME, "path": "/inject", "port": 443},
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "objectSelector": {"matchLabels": {"kvquota.dev/inject": "true"}},
        "namespaceSelector": {
            "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}]
        },
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": 5,
    }


def test_of_all_namespaces_those_of_the_cluster_and_its_own_are_left_out(helm: Helm) -> None:
    [places] = hook(rendered(helm, "allNamespaces=true"))["namespaceSelector"]["matchExpressions"]
    assert (places["operator"], places["values"]) == (
        "NotIn",
        ["kube-system", "kube-public", "kube-node-lease", HOME],
    )


def test_the_service_reaches_the_port_that_the_operator_listens_on(helm: Helm) -> None:
    manifests = rendered(helm)
    [service] = of_kind(manifests, "Service")
    [port] = [
        each for each in container(manifests)["ports"] if each["name"] == service["spec"]["ports"][0]["targetPort"]
    ]
    found = parse_settings(container(manifests)["args"]).webhook
    assert found is not None
    assert found.listen == Address("", port["containerPort"])
    assert (service["metadata"]["namespace"], service["metadata"]["name"]) == (HOME, found.service.name)
    [deployment] = of_kind(manifests, "Deployment")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_the_operator_may_change_its_own_secret_and_its_own_configuration(helm: Helm) -> None:
    manifests = rendered(helm, "namespaces={a}")
    roles = {
        (each["kind"], each["metadata"].get("namespace")): each["rules"]
        for each in manifests
        if each["kind"] in {"Role", "ClusterRole"} and "webhook" in each["metadata"]["name"]
    }
    assert roles == {
        ("Role", HOME): [
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": ["kvquota-webhook"],
                "verbs": ["get", "patch"],
            }
        ],
        ("ClusterRole", None): [
            {
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["mutatingwebhookconfigurations"],
                "resourceNames": ["kvquota-system-kvquota-webhook"],
                "verbs": ["get", "patch"],
            }
        ],
    }
    assert named(manifests, "kvquota-webhook") == ["Role", "RoleBinding", "Secret", "Service"]


def test_with_cert_manager_it_may_change_nothing(helm: Helm) -> None:
    manifests = rendered(helm, CERT_MANAGER)
    assert named(manifests, "kvquota-webhook") == ["Certificate", "Issuer", "Service"]
    assert of_kind(manifests, "ClusterRole") == []
    [configuration] = of_kind(manifests, "MutatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"{HOME}/kvquota-webhook"}
    [certificate] = of_kind(manifests, "Certificate")
    assert certificate["spec"] == {
        "secretName": "kvquota-webhook",
        "dnsNames": [f"kvquota-webhook.{HOME}.svc"],
        "issuerRef": {"kind": "Issuer", "name": "kvquota-webhook"},
    }
    [mount] = container(manifests)["volumeMounts"]
    found = parse_settings(container(manifests)["args"]).webhook
    assert found is not None
    assert str(found.certificates) == mount["mountPath"]


def test_an_issuer_of_the_cluster_is_used(helm: Helm) -> None:
    issuer = ("webhook.certManager.issuerRef.kind=ClusterIssuer", "webhook.certManager.issuerRef.name=corporate")
    manifests = rendered(helm, CERT_MANAGER, *issuer)
    assert named(manifests, "kvquota-webhook") == ["Certificate", "Service"]
    [certificate] = of_kind(manifests, "Certificate")
    assert certificate["spec"]["issuerRef"] == {"kind": "ClusterIssuer", "name": "corporate"}


def test_what_every_sidecar_is_started_from(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    values = (
        "image.repository=r/sidecar",
        f"image.digest={digest}",
        "image.pullPolicy=Always",
        "cpu=500m",
        "memory=1Gi",
    )
    manifests = rendered(helm, *(f"webhook.sidecar.{each}" for each in values))
    assert parse_settings(container(manifests)["args"]).webhook == WebhookSettings(
        listen=Address("", 9443),
        service=ServiceName(HOME, "kvquota-webhook"),
        image=SidecarImage(f"r/sidecar@{digest}", "Always", cpu="500m", memory="1Gi"),
    )


@pytest.mark.parametrize(
    ("values", "resources"),
    [
        pytest.param("sidecar: {cpu: 1, memory: 300000000}", ("1", "300000000"), id="whole numbers"),
        pytest.param("sidecar: {cpu: 0.5, memory: '1.5Gi'}", ("0.5", "1.5Gi"), id="half a core"),
        pytest.param("sidecar: {cpu: '2', memory: '67108865'}", ("2", "67108865"), id="numbers as text"),
    ],
)
@pytest.mark.parametrize("way", ["a file", "the command line"])
def test_resources_may_be_numbers(
    helm: Helm, values: str, resources: tuple[str, str], way: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(f"webhook: {{{values}}}\n" if way == "a file" else "{}\n")
    chosen = yaml.safe_load(values)["sidecar"] if way == "the command line" else {}
    sets = [part for name, value in chosen.items() for part in ("--set", f"webhook.sidecar.{name}={value}")]
    text = helm("template", "kvquota", CHART, "--namespace", HOME, "--values", file, *sets)
    found = parse_settings(container([each for each in yaml.safe_load_all(text) if each])["args"]).webhook
    assert found is not None
    assert (found.image.cpu, found.image.memory) == resources


TOO_LITTLE = "a sidecar alone takes up to 64Mi, choose more, as in 256Mi"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param("webhook.sidecar.memory=much", "'much' does not match pattern", id="no quantity"),
        pytest.param("webhook.sidecar.memory=1Mi", f"memory is 1Mi: {TOO_LITTLE}", id="1 MiB"),
        pytest.param("webhook.sidecar.memory=64Mi", f"memory is 64Mi: {TOO_LITTLE}", id="64 MiB"),
        pytest.param("webhook.sidecar.memory=67108864", f"memory is 67108864: {TOO_LITTLE}", id="64 MiB in bytes"),
        pytest.param("webhook.sidecar.memory=65000k", f"memory is 65000k: {TOO_LITTLE}", id="65 MB"),
        pytest.param("webhook.sidecar.cpu=0", "cpu is 0: a sidecar cannot run, choose more than 0", id="no CPU"),
        pytest.param("webhook.sidecar.cpu=0m", "cpu is 0m: a sidecar cannot run, choose more than 0", id="0m"),
        pytest.param("webhook.sidecar.cpu=-1", "minimum: got -1, want 0", id="less than no CPU"),
        pytest.param("webhook.sidecar.image.digest=latest", "does not match pattern", id="no digest"),
        pytest.param("webhook.sidecar.image.repository=a b", "'a b' does not match pattern", id="a space"),
        pytest.param("image.repository=a b", "'a b' does not match pattern", id="a space in the operator's image"),
        pytest.param("webhook.sidecar.image.tag=a b", "'a b' does not match pattern", id="a space in the tag"),
        pytest.param("webhook.failurePolicy=Ignore", "'failurePolicy' not allowed", id="what is not to be chosen"),
        pytest.param("webhook=null", "missing property 'webhook'", id="no webhook at all"),
        pytest.param("webhook.sidecar=null", "missing property 'sidecar'", id="no sidecar"),
        pytest.param("webhook.sidecar.image=null", "missing property 'image'", id="no image of the sidecar"),
        pytest.param("webhook.certManager=null", "missing property 'certManager'", id="no cert-manager"),
        pytest.param("image=null", "missing property 'image'", id="no image"),
        pytest.param("serviceAccount=null", "missing property 'serviceAccount'", id="no account"),
        pytest.param(
            f"{CERT_MANAGER},webhook.certManager.issuerRef.foo=bar", "'foo' not allowed", id="an issuer of no meaning"
        ),
        pytest.param(
            f"{CERT_MANAGER},webhook.certManager.issuerRef.kind=ClusterIssuer",
            "missing property 'name'",
            id="an issuer without a name",
        ),
        pytest.param(
            "webhook.certManager.issuerRef.name=foo",
            "issuerRef is for certificates of cert-manager: set webhook.certManager.enabled=true",
            id="an issuer that nobody asks",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(helm: Helm, values: str, says: str) -> None:
    with pytest.raises(ProgramError) as refused:
        rendered(helm, values)
    assert says in refused.value.output
    assert "nil pointer" not in refused.value.output
