"""Pods under quota by a label alone, on a real node: a Deployment as users have it, applied together with its pool."""

import json

import pytest

from generated_workloads import NAMES as GENERATED
from generated_workloads import pool_spec, workload
from injected_pods import HOME, NAMESPACE, Installed, clients, failures, service
from node_path import POOL, TAG, Answer, Door, any_certificate, pool
from wholepath import BATCH, SEARCH, Tenant, api_key, eventually, quota, usage_columns

pytestmark = pytest.mark.node


def test_pods_of_a_plain_deployment_are_under_quota(installed: Installed) -> None:
    pods = installed.pods()
    assert [[each["name"] for each in pod["spec"]["initContainers"]] for pod in pods] == [["kvquota"]] * 2
    assert [pod["status"]["qosClass"] for pod in pods] == ["Guaranteed"] * 2
    wanted = {"PlanValid": "True Planned", "PartitionApplied": "True Applied", "PodsGoverned": "True AllGoverned"}
    eventually("every condition is as it should be", lambda: wanted.items() <= installed.conditions().items())


def test_they_serve_refuse_and_report(installed: Installed) -> None:
    eventually("the Service has both pods", lambda: len(installed.addresses()) == 2)
    for address in installed.addresses():
        for tenant in (SEARCH, BATCH):
            eventually(
                f"{tenant.name} is served",
                lambda address=address, tenant=tenant: installed.complete(address, tenant, prompt=4).status == 200,
            )
        refusal = installed.complete(address, BATCH, prompt=4000)
        assert (refusal.status, refusal.body["error"]["code"]) == (400, "request_exceeds_kv_quota")
        with pytest.raises(OSError, match="refused"):
            installed.node.connect(address, 18000)

    def reported() -> bool:
        return int(usage_columns(installed.node, NAMESPACE)[BATCH.name]["REJECTED-10M"] or 0) >= 2

    eventually("kubectl shows the refusals", reported)


def test_each_pod_has_a_durable_copy_that_it_mounts(installed: Installed) -> None:
    names = {
        volume["configMap"]["name"]: pod["metadata"]["name"]
        for pod in installed.pods()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "kvquota-config"
    }
    found = json.loads(installed.node.kubectl("get", "configmaps", "-n", NAMESPACE, "-o", "json"))["items"]
    owners = {each["metadata"]["name"]: each["metadata"].get("ownerReferences") for each in found}
    assert {name: owners[name][0]["name"] for name in names} == names


def test_the_sidecar_that_ships_is_the_compiled_one(installed: Installed) -> None:
    pod = installed.pods()[0]["metadata"]["name"]
    inside = ("exec", pod, "-n", NAMESPACE, "-c", "kvquota", "--", "python3", "-m", "kvquota_sidecar", "--version")
    assert installed.node.kubectl(*inside).rstrip().endswith("(compiled)")


def test_the_sidecar_has_no_credentials_of_kubernetes(installed: Installed) -> None:
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    pod = installed.pods()[0]["metadata"]["name"]
    inside = ("exec", pod, "-n", NAMESPACE, "-c", "kvquota", "--", "python3", "-c")
    assert installed.node.kubectl(*inside, f"import os; print(os.listdir({folder!r}))").strip() == "[]"


def test_a_rolling_restart_fails_no_request(installed: Installed) -> None:
    with installed.clients(3) as clients:
        installed.node.kubectl("rollout", "restart", f"deployment/{POOL}", "-n", NAMESPACE)
        installed.wait_for()
    assert failures(clients) == []
    assert sum(client.ended for client in clients) >= 10


def test_an_upgrade_keeps_what_the_operator_has_made(installed: Installed) -> None:
    def made() -> tuple[str, str]:
        secret = installed.node.kubectl("get", "secret", "injecting-webhook", "-n", HOME, "-o", "jsonpath={.data}")
        bundle = "jsonpath={.webhooks[0].clientConfig.caBundle}"
        of = ("get", "mutatingwebhookconfiguration", f"{HOME}-injecting-webhook", "-o", bundle)
        return secret, installed.node.kubectl(*of)

    before = made()
    assert "ca.key" in before[0]
    installed.upgrade(TAG)
    assert made() == before


REFUSED = {"vLLM": "request_exceeds_kv_quota", "LlamaCpp": "context_length_exceeded"}
"""What 5,000 tokens of batch meet: its hard of 2,048; in llama.cpp, where a request has a slot, the 4,096 of that."""

APPLIED = {"vLLM": "True Applied", "LlamaCpp": "Unknown NotMeasured"}
"""llama.cpp does not say how large its cache is."""


@pytest.mark.parametrize("name", GENERATED)
def test_what_other_projects_generate_starts_serves_refuses_reports_and_rolls(installed: Installed, name: str) -> None:
    node, spec = installed.node, pool_spec(name)
    model, port = spec["model"]["name"], spec["engine"].get("port", 8000)
    own = {**pool(name), "spec": spec}
    keys = [api_key(name, tenant) for tenant in (SEARCH, BATCH)]
    quotas = [quota(name, tenant, POOL) for tenant in (SEARCH, BATCH)]
    *beside, made = workload(name, name, f"kvquota/fakeengine:{TAG}")
    installed.apply(own, *keys, *quotas, *beside, made, service(name, made["spec"]["selector"]["matchLabels"]))
    deployed = f"deployment/{made['metadata']['name']}"
    node.kubectl("rollout", "status", deployed, "-n", name, "--timeout=120s")
    address = node.kubectl("get", "pods", "-n", name, "-o", "jsonpath={.items[0].status.podIP}")

    def door(address: str) -> Door:
        return Door(node, address, port, any_certificate() if name.endswith("-tls") else None)

    def asked(tenant: Tenant, prompt: int) -> Answer:
        body = {"model": model, "prompt": [7] * prompt, "max_tokens": 4}
        return door(address).send(tenant, "/v1/completions", body)

    eventually("the tenant is served", lambda: asked(SEARCH, 4).status == 200)
    refusal = asked(BATCH, 5000)
    assert refusal.status == 400, refusal.body
    assert refusal.body["error"]["code"] == REFUSED[spec["engine"]["type"]]
    with pytest.raises(OSError, match="refused"):
        node.connect(address, 18000)
    wanted = {"PartitionApplied": APPLIED[spec["engine"]["type"]], "PodsGoverned": "True AllGoverned"}
    eventually("the conditions say so", lambda: wanted.items() <= installed.conditions(name).items())
    eventually("kubectl shows it", lambda: int(usage_columns(node, name)[BATCH.name]["REJECTED-10M"] or 0) >= 1)
    with clients(node, name, 1, door, model=model, max_tokens=200) as streaming:
        node.kubectl("rollout", "restart", deployed, "-n", name)
        node.kubectl("rollout", "status", deployed, "-n", name, "--timeout=120s")
    assert failures(streaming) == []
    assert streaming[0].ended >= 2
    node.kubectl("delete", deployed, "-n", name, "--wait=false")
