"""The rights that the chart gives are what the operator uses: no more, and no less."""

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvquota_api.memory.presets import load_preset
from kvquota_operator.reconcile.manifests import config_map_name
from kvquota_operator.settings import Address, LeaseSettings
from operator_world import World, install_crds, key_secret, metrics, operator, quota, until, until_true
from testcluster.access import write_kubeconfig
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm
from testcluster.processes import free_port

pytestmark = pytest.mark.apiserver

CHART = Path(__file__).parents[2] / "charts" / "kvquota"
SERVED, HOME = "inference", "kvquota-system"
ACCOUNT = f"system:serviceaccount:{HOME}:kvquota-operator"
LEASE = "kvquota-operator"
AFTER_A_CONFLICT = {
    (SERVED, "kvquota.dev", "modelpools", "get"),
    (SERVED, "kvquota.dev", "tenantquotas", "get"),
}
"""Asked only where a status was edited in the moment before it is written, which no test can bring about for sure."""

ASKED_WITHOUT_THE_RIGHT = {(SERVED, "", "namespaces", "get")}
"""Asked of a namespace without pools and quotas, to name a mistyped one; the answer "forbidden" changes nothing. A Role
cannot be in a namespace that does not exist, so the right would never tell more."""

Right = tuple[str, str, str, str]
"""Namespace, group, resource, verb."""


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata", "users": [ACCOUNT]}]}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    return folder


@pytest.fixture(scope="module")
def server(audit: Path, helm: Helm) -> Iterator[ApiServer]:
    """An API server of its own, which writes down all that the operator's account asks for."""
    flags = [f"--audit-policy-file={audit / 'policy.yaml'}", f"--audit-log-path={audit / 'log'}"]
    with ApiServer(flags=flags) as server:
        install_crds(server)
        for namespace in (SERVED, HOME):
            server.create_namespace(namespace)
        for manifest in rendered(helm):
            if manifest["kind"] in {"ServiceAccount", "Role", "RoleBinding"}:
                server.kubectl("apply", "-f", "-", input=yaml.safe_dump(manifest))
        yield server


def rendered(helm: Helm) -> list[dict[str, Any]]:
    """Without the webhook: its rights have a test of their own."""
    values = ("--set", f"namespaces={{{SERVED}}}", "--set", "webhook.enabled=false")
    text = helm("template", "kvquota", CHART, "--namespace", HOME, *values)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    world = World(server, SERVED, network=200)
    yield world
    await world.close()


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    token = server.kubectl("create", "token", "kvquota-operator", "--namespace", HOME).strip()
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, url=server.url, ca=server.ca, token=token)
    return path


def granted(helm: Helm) -> set[Right]:
    roles = [each for each in rendered(helm) if each["kind"] == "Role"]
    return {
        (role["metadata"]["namespace"], group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(audit: Path) -> set[Right]:
    lines = (audit / "log").read_text().splitlines()
    asked = [
        json.loads(line)["objectRef"] | {"verb": json.loads(line)["verb"]} for line in lines if "objectRef" in line
    ]
    return {
        (ref.get("namespace", ""), ref.get("apiGroup", ""), _resource(ref), ref["verb"])
        for ref in asked
        if "resource" in ref
    }


def _resource(ref: dict[str, str]) -> str:
    return "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)


async def everything(world: World) -> None:
    """Bring about all that the operator ever asks of an API server, and wait until it has."""
    sidecar = await world.add_pod("llama-0")
    taken = await world.add_pod("llama-1")
    uid = (await world.get("pod", "llama-1"))["metadata"]["uid"]
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": config_map_name(world.namespace, uid)}}
    data = {"config.json": json.dumps(load_preset("llama-3.2-1b"))}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "model"}, "data": data}
    model = {"name": "own", "config": {"configMapRef": {"name": "model", "key": "config.json"}}, "maxModelLen": 8192}
    await world.apply(foreign, config, key_secret("search-key"))
    await world.add_pool(model=model)
    identity = {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}
    await world.apply(quota("search", identity=identity))
    await until_true(lambda: bool(sidecar.keys and taken.keys), what="both pods have the tenant's key")
    await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": 20}}}})
    await until_true(lambda: bool(sidecar.config and sidecar.config.generation > 1), what="the new quota is in force")
    await until(world.config_maps, lambda each: each["llama-0"].generation > 1, what="and stored")
    for kind, name, of in (("tenantquota", "search", "Ready"), ("modelpool", "llama", "PlanValid")):
        await until(
            partial(world.condition, kind, name, of),
            lambda each: each[0] == "True",
            what=f"{of} of {kind} {name}",
        )
    await until(lambda: world.list("events", "--field-selector=reason=NotOurs"), bool, what="the event")


async def test_the_chart_grants_what_the_operator_uses(world: World, helm: Helm, kubeconfig: Path, audit: Path) -> None:
    address = Address("127.0.0.1", free_port())
    async with operator(world, kubeconfig=kubeconfig, listen=address, lease=LeaseSettings(LEASE, HOME)):
        await everything(world)
        counted = await metrics(address)
    assert [name for name in counted if "Forbidden" in name and 'resource="namespaces"' not in name] == []
    assert (used(audit) | AFTER_A_CONFLICT) - ASKED_WITHOUT_THE_RIGHT == granted(helm)


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(["list", "secrets", "-n", SERVED], id="it cannot list the Secrets that it may read by name"),
        pytest.param(["watch", "secrets", "-n", SERVED], id="it cannot watch Secrets"),
        pytest.param(["get", "secrets", "-n", "default"], id="it cannot read Secrets of other namespaces"),
        pytest.param(["create", "pods/exec", "-n", SERVED], id="it cannot run anything in pods"),
        pytest.param(["update", "tenantquotas", "-n", SERVED], id="it cannot change a quota"),
        pytest.param(["patch", "modelpools", "-n", SERVED], id="it cannot change a pool"),
        pytest.param(["delete", "configmaps", "-n", SERVED], id="it cannot delete ConfigMaps"),
        pytest.param(["list", "namespaces"], id="it cannot list namespaces"),
        pytest.param(["update", "leases", "-n", HOME, "other"], id="it cannot take the Lease of somebody else"),
        pytest.param(["get", "leases", "-n", SERVED, LEASE], id="it has no Lease in a namespace that it serves"),
    ],
)
async def test_what_the_operator_may_not(server: ApiServer, question: list[str]) -> None:
    answer = server.kubectl(
        "create",
        "-f",
        "-",
        "-o",
        "jsonpath={.status.allowed}",
        input=yaml.safe_dump(_review(question)),
    )
    assert answer == "false"


GROUPS = {"tenantquotas": "kvquota.dev", "modelpools": "kvquota.dev", "leases": "coordination.k8s.io"}


def _review(question: list[str]) -> dict[str, Any]:
    verb, resource, *rest = question
    plural, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "resource": plural,
        "subresource": subresource,
        "group": GROUPS.get(plural, ""),
        "namespace": rest[1] if rest else "",
        "name": rest[2] if len(rest) > 2 else "",
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }
