"""The rights that the chart gives are what the operator uses: no more, and no less."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_rights import CHART, Right, rights_of
from kvquota_api.memory.presets import load_preset
from kvquota_api.meta import INJECT_LABEL
from kvquota_operator.reconcile.manifests import config_map_name
from kvquota_operator.settings import Address
from operator_world import World, install_crds, key_secret, metrics, pod, quota, until, until_true
from testcluster.access import write_kubeconfig
from testcluster.apiserver import ApiServer
from testcluster.helm import Helm
from testcluster.processes import free_port, tail

pytestmark = pytest.mark.apiserver

SERVED, HOME = "inference", "kvquota-system"
ACCOUNT = f"system:serviceaccount:{HOME}:kvquota-operator"
LEASE = "kvquota-operator"
RIGHTS = frozenset({"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
AFTER_A_CONFLICT = {
    (SERVED, "kvquota.dev", "modelpools", "get"),
    (SERVED, "kvquota.dev", "tenantquotas", "get"),
}
"""Asked only where a status was edited in the moment before it is written, which no test can bring about for sure."""

ASKED_WITHOUT_THE_RIGHT = {(SERVED, "", "namespaces", "get")}
"""Asked of a namespace without pools and quotas, to name a mistyped one; the answer "forbidden" changes nothing. A Role
cannot be in a namespace that does not exist, so the right would never tell more."""


@dataclass(frozen=True)
class Install:
    """The chart in an API server that writes down all that the operator's account asks for. `values`: as for helm.

    `served`: the namespace of the rights in what is served, empty where a ClusterRole gives them everywhere.
    """

    server: ApiServer
    manifests: list[dict[str, Any]]
    served: str
    log: Path
    webhook_port: int

    @property
    def granted(self) -> set[Right]:
        return rights_of(self.manifests)

    @property
    def used(self) -> set[Right]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        asked = [
            line["objectRef"] | {"verb": line["verb"]} for line in lines if "resource" in line.get("objectRef", {})
        ]
        return {
            (self.place(ref.get("namespace", "")), ref.get("apiGroup", ""), _resource(ref), ref["verb"])
            for ref in asked
        }

    def place(self, namespace: str) -> str:
        """Where a right that was used in `namespace` is given."""
        return self.served if namespace == SERVED else namespace

    def placed(self, rights: set[Right]) -> set[Right]:
        return {(self.place(namespace), *rest) for namespace, *rest in rights}  # type: ignore[misc]  # the length of what is unpacked

    @property
    def arguments(self) -> list[str]:
        """What the chart starts the operator with."""
        [deployment] = [each for each in self.manifests if each["kind"] == "Deployment"]
        arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return arguments


def _resource(ref: dict[str, str]) -> str:
    return "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)


INSTALLS = [
    pytest.param((f"namespaces={{{SERVED}}}", SERVED), id="one namespace"),
    pytest.param(("allNamespaces=true", ""), id="all namespaces"),
]


@pytest.fixture(scope="module", params=INSTALLS)
def install(request: pytest.FixtureRequest, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Install]:
    value, served = request.param
    folder = tmp_path_factory.mktemp("audit")
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata", "users": [ACCOUNT]}]}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    flags = [f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={folder / 'log'}"]
    text = helm("template", "kvquota", CHART, "--namespace", HOME, "--set", value)
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    with ApiServer(flags=flags) as server:
        made = Install(server, manifests, served, folder / "log", free_port())
        _put_in(made)
        yield made


def _put_in(install: Install) -> None:
    """What helm would, but for the Deployment, which nothing here would run: its webhook is asked at an address."""
    install_crds(install.server)
    for namespace in (SERVED, HOME):
        install.server.create_namespace(namespace)
    for manifest in install.manifests:
        if manifest["kind"] == "MutatingWebhookConfiguration":
            url = f"https://127.0.0.1:{install.webhook_port}/inject"
            manifest["webhooks"][0]["clientConfig"] = {"url": url}
        if manifest["kind"] in RIGHTS | {"Secret", "MutatingWebhookConfiguration"}:
            install.server.kubectl("apply", "-f", "-", input=yaml.safe_dump(manifest))


@pytest.fixture
async def world(install: Install) -> AsyncIterator[World]:
    world = World(install.server, SERVED, network=200)
    yield world
    await world.close()


@contextmanager
def started(install: Install, folder: Path) -> Iterator[Address]:
    """The operator as a process, as the chart starts it, at addresses of this machine; where its metrics are."""
    server, address = install.server, Address("127.0.0.1", free_port())
    token = server.kubectl("create", "token", "kvquota-operator", "--namespace", HOME).strip()
    write_kubeconfig(folder / "kubeconfig", url=server.url, ca=server.ca, token=token)
    here = [f"--kubeconfig={folder / 'kubeconfig'}", f"--lease-namespace={HOME}", "--sync-seconds=0.5"]
    ports = [f"--listen=127.0.0.1:{address.port}", f"--webhook-listen=127.0.0.1:{install.webhook_port}"]
    command = [sys.executable, "-m", "kvquota_operator", *install.arguments, *here, *ports]
    log = folder / "log"
    with log.open("wb") as output:
        running = subprocess.Popen(command, stderr=output, env={**os.environ, "PYTHONWARNINGS": "error"})
    try:
        yield address
        assert running.poll() is None, tail(log)
    finally:
        running.terminate()
        running.wait(60)


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


async def put_under_quota(world: World) -> None:
    """A pod that asks for the sidecar gets it, so the webhook was asked and has a certificate that is believed."""
    asking = pod("asking", sidecar=False)
    asking["metadata"]["labels"][INJECT_LABEL] = "true"
    asking["spec"]["containers"][0] |= {"args": ["--port", "8000"]}
    await world.apply(asking)
    stored = await world.get("pod", "asking")
    assert [each["name"] for each in stored["spec"]["initContainers"]] == ["kvquota"]


async def test_the_chart_grants_what_the_operator_uses(world: World, install: Install, tmp_path: Path) -> None:
    with started(install, tmp_path) as address:
        await everything(world)
        await put_under_quota(world)
        counted = await metrics(address)
    assert [name for name in counted if "Forbidden" in name and 'resource="namespaces"' not in name] == []
    seldom, without = install.placed(AFTER_A_CONFLICT), install.placed(ASKED_WITHOUT_THE_RIGHT)
    assert (install.used | seldom) - without == install.granted


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(["list", "secrets", "-n", SERVED], id="it cannot list the Secrets that it may read by name"),
        pytest.param(["watch", "secrets", "-n", SERVED], id="it cannot watch Secrets"),
        pytest.param(["create", "pods/exec", "-n", SERVED], id="it cannot run anything in pods"),
        pytest.param(["update", "tenantquotas", "-n", SERVED], id="it cannot change a quota"),
        pytest.param(["patch", "modelpools", "-n", SERVED], id="it cannot change a pool"),
        pytest.param(["delete", "configmaps", "-n", SERVED], id="it cannot delete ConfigMaps"),
        pytest.param(["list", "namespaces"], id="it cannot list namespaces"),
        pytest.param(["update", "leases", "-n", HOME, "other"], id="it cannot take the Lease of somebody else"),
        pytest.param(["get", "leases", "-n", SERVED, LEASE], id="it has no Lease in a namespace that it serves"),
    ],
)
def test_what_the_operator_may_not(install: Install, question: list[str]) -> None:
    assert not allowed(install, question)


def test_secrets_of_other_namespaces_are_read_only_where_all_are_served(install: Install) -> None:
    assert allowed(install, ["get", "secrets", "-n", "default"]) is (install.served == "")


def allowed(install: Install, question: list[str]) -> bool:
    review = yaml.safe_dump(_review(question))
    answer = install.server.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed}", input=review)
    return {"true": True, "false": False}[answer]


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
