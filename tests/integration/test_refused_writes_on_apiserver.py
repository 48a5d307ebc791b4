"""What people see of quotas that pods do not enforce, and of objects that the cluster lets nobody store."""

from collections.abc import AsyncIterator

import pytest

from kvquota_operator.settings import Address
from operator_fakes import FakePod
from operator_world import (
    Object,
    Sidecar,
    World,
    key_secret,
    metrics,
    operator,
    pod,
    quota,
    until,
    until_true,
)
from testcluster.processes import free_port
from testcluster.programs import ProgramError

pytestmark = pytest.mark.apiserver

NOBODY = "127.77.200.250"
RULE = "every ConfigMap has to name its team"


@pytest.fixture
async def strict(world: World) -> AsyncIterator[World]:
    """A world in which a policy refuses the operator's ConfigMaps."""
    name = f"teams-{world.namespace}"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["configmaps"],
                    }
                ]
            },
            "validations": [
                {"expression": "has(object.metadata.labels) && 'team' in object.metadata.labels", "message": RULE}
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}}},
        },
    }
    await world.apply(policy, binding)
    await until(lambda: creating_is_refused(world), bool, what="the policy is in force")
    yield world
    await world.kubectl(
        "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name, "--ignore-not-found"
    )


async def creating_is_refused(world: World) -> bool:
    try:
        await world.kubectl("create", "configmap", "tried", "--dry-run=server")
    except ProgramError as error:
        return RULE in str(error)
    return False


async def is_ready(world: World, name: str) -> bool:
    """What `kubectl wait` makes of the quota, now."""
    try:
        await world.kubectl("wait", "--for=condition=Ready", f"tenantquota/{name}", "--timeout=0s")
    except ProgramError:
        return False
    return True


async def said(world: World, kind: str, name: str, of: str, reason: str, *words: str) -> Object:
    """The condition, as soon as it has this reason and its message these words."""

    async def read() -> Object:
        conditions = (await world.get(kind, name)).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == of), {})

    def holds(condition: Object) -> bool:
        return condition.get("reason") == reason and all(each in condition["message"] for each in words)

    return await until(read, holds, what=f"{of} of {name} is {reason} {words}")


async def events(world: World, reason: str) -> list[str]:
    found = await world.list("events.v1.events.k8s.io")
    return [each["note"] for each in found if each["reason"] == reason]


async def a_pod_that_nobody_reaches(world: World, name: str) -> None:
    await world.apply(pod(name))
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "podIP": NOBODY, "podIPs": [{"ip": NOBODY}], "conditions": [ready]}
    await world.patch("pod", name, {"status": status}, "--subresource=status")


async def test_a_quota_that_some_pods_do_not_take_is_not_ready_and_names_them(world: World) -> None:
    await world.add_pool()
    await world.apply(quota("search"))
    good = await world.add_pod("good")
    deaf = await world.add_pod("deaf", fake=FakePod(refuses=True))
    async with operator(world):
        await until_true(lambda: good.hard("search") is not None, what="the quota is in force on one pod")
        words = "(deaf: another config is in force there, or none)"
        assert (await said(world, "tenantquota", "search", "Ready", "NotInForce", words))["status"] == "False"
        assert (await world.get("tenantquota", "search"))["status"]["state"] == "NotReady"
        assert not await is_ready(world, "search")
        deaf.fake.refuses = False
        await said(world, "tenantquota", "search", "Ready", "InForce")
        assert await is_ready(world, "search")
        assert len(await events(world, "NotInForce")) == 1


async def test_a_quota_that_nobody_can_be_told_of_is_never_called_ready(world: World) -> None:
    await world.add_pool()
    await world.apply(quota("search"))
    await a_pod_that_nobody_reaches(world, "walled")
    async with operator(world):
        found = await said(world, "tenantquota", "search", "Ready", "NotInForce", "walled: nobody knows")
        assert found["status"] == "Unknown"
        assert not await is_ready(world, "search")
        assert await events(world, "InForce") == []


async def test_an_edit_says_nothing_of_not_being_in_force(world: World) -> None:
    await world.add_pool()
    await world.apply(quota("search"))
    there = await world.add_pod("good")
    async with operator(world):
        found = await said(world, "tenantquota", "search", "Ready", "InForce")
        for hard in (40, 30, 20):
            before = there.hard("search")
            await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": hard}}}})
            await until_true(lambda: there.hard("search") != before, what="the edit is in force")  # noqa: B023
        again = await said(world, "tenantquota", "search", "Ready", "InForce")
        assert again["lastTransitionTime"] == found["lastTransitionTime"]


async def test_a_policy_that_refuses_the_copies_is_told_with_its_own_words(strict: World) -> None:
    await strict.add_pool()
    await strict.apply(quota("mail"), quota("search", scope="Pool", kv={"hard": {"tokens": 64_000}}))
    there = await strict.add_pod("llama-0")
    listen = Address("127.0.0.1", free_port())
    async with operator(strict, listen=listen):
        found = await said(strict, "modelpool", "llama", "PodsGoverned", "CopyRefused", RULE, "llama-0")
        assert found["status"] == "False"
        for name in ("mail", "search"):
            await said(strict, "tenantquota", name, "Ready", "NotInForce")
        assert there.hard("mail") is None
        [note] = await events(strict, "CopyRefused")
        assert RULE in note
        counted = await metrics(listen)
        assert counted['kvquota_operator_errand_failures_total{kind="Config",reason="Refused"}'] > 3
        await strict.kubectl("delete", "validatingadmissionpolicybinding", f"teams-{strict.namespace}")
        await said(strict, "modelpool", "llama", "PodsGoverned", "AllGoverned")
        await said(strict, "tenantquota", "mail", "Ready", "InForce")


async def test_immutable_objects_of_the_operator_are_told_and_made_anew_when_deleted(world: World) -> None:
    await world.add_pool()
    await world.apply(quota("search"), key_secret("search-key"))
    there = await world.add_pod("llama-0")
    async with operator(world):
        await until_true(lambda: there.hard("search") is not None, what="the quota is in force")
        [copy] = await world.list("configmaps", "-l", "kvquota.dev/pool")
        await world.patch("configmap", copy["metadata"]["name"], {"immutable": True})
        await world.patch("secret", "kvquota-llama", {"immutable": True})
        before = await edited(world, there)
        names = ("Secret kvquota-llama", copy["metadata"]["name"])
        await said(world, "modelpool", "llama", "PodsGoverned", "CopyRefused", *names)
        await world.kubectl("delete", "secret/kvquota-llama", f"configmap/{copy['metadata']['name']}")
        await said(world, "modelpool", "llama", "PodsGoverned", "AllGoverned")
        assert (await world.config_maps())["llama-0"].tenants[0].hard_blocks == there.hard("search") != before


async def edited(world: World, there: Sidecar) -> int | None:
    """Lower the hard of search and give it a key; what it was before."""
    before = there.hard("search")
    identity = {"apiKeys": [{"secretRef": {"name": "search-key", "key": "key"}}]}
    await world.patch("tenantquota", "search", {"spec": {"kv": {"hard": {"percent": 20}}, "identity": identity}})
    await until_true(lambda: there.hard("search") not in (None, before), what="the edit is in force")
    return before
