"""What the demonstration puts into a cluster, and takes away again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from kvquota_api.crd import MODEL_POOLS, RESOURCES, TENANT_QUOTAS, Resource, custom_resource_definition
from kvquota_api.meta import CONTAINER_NAME
from kvquota_cli.demo.api_server import CRDS, NAMESPACES, ApiServer, RefusedRequestError, inside, ours
from kvquota_cli.demo.scenario import APP_LABEL
from kvquota_cli.demo.stage import until_found

POD: Final = "engine"
NOBODY: Final = "kvquota-demo"  # the pod's scheduler: there is none of this name, so that the pod is never started
IMAGE: Final = "kvquota-demo.invalid/none"  # never pulled
LOOPBACK: Final = "127.0.0.1"
_RESOURCES_BY_KIND: Final = {each.kind: each for each in RESOURCES}
_CORE_PLURALS: Final = ("pods", "secrets", "configmaps", "events", "serviceaccounts")

Json = dict[str, Any]


@asynccontextmanager
async def definitions(api: ApiServer) -> AsyncIterator[None]:
    """Both CRDs, established; those that were not there before are removed at the end."""
    async with AsyncExitStack() as stack:
        for resource in RESOURCES:
            await until_found(partial(_settled, api, resource), f"an earlier {resource.name} to be gone")
            if await api.find(f"{CRDS}/{resource.name}") is None:
                await api.create(CRDS, custom_resource_definition(resource))
                stack.push_async_callback(_remove, api, resource)
        for resource in RESOURCES:
            await _established(api, resource)
        yield


async def _settled(api: ApiServer, resource: Resource) -> bool | None:
    """True unless the definition is on its way out, as it is for a moment after an earlier demonstration."""
    found = await api.find(f"{CRDS}/{resource.name}")
    return True if found is None or "deletionTimestamp" not in found["metadata"] else None


async def _remove(api: ApiServer, resource: Resource) -> None:
    await api.delete(f"{CRDS}/{resource.name}")
    await until_found(partial(_settled, api, resource), f"{resource.name} to be gone")


async def _established(api: ApiServer, resource: Resource) -> None:
    async def established() -> Json | None:
        found = await api.get(f"{CRDS}/{resource.name}")
        conditions = found.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == "Established" and each["status"] == "True"), None)

    await until_found(established, f"the CustomResourceDefinition {resource.name}")


@asynccontextmanager
async def namespace(api: ApiServer, name: str) -> AsyncIterator[None]:
    """A namespace with the account that pods in it need; at the end it and all that is in it is deleted."""
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        await _account(api, name)
        yield
    finally:
        await _empty(api, name)


async def _account(api: ApiServer, name: str) -> None:
    """Usually a controller makes it; who comes second finds it there."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    try:
        await api.create(inside(name, "serviceaccounts"), account)
    except RefusedRequestError as error:
        if error.status != 409:
            raise


async def _empty(api: ApiServer, name: str) -> None:
    for resource in (TENANT_QUOTAS, MODEL_POOLS):
        await api.delete(ours(name, resource))
    for plural in _CORE_PLURALS:
        await api.delete(inside(name, plural))
    await api.delete(f"{NAMESPACES}/{name}")


async def create_all(api: ApiServer, objects: list[Json]) -> None:
    """Secrets, ModelPools and TenantQuotas."""
    for each in objects:
        where, resource = each["metadata"]["namespace"], _RESOURCES_BY_KIND.get(each["kind"])
        await api.create(inside(where, "secrets") if resource is None else ours(where, resource), each)


async def create_pod(api: ApiServer, where: str) -> None:
    """A pod that nothing starts, shown as running on loopback with a sidecar in it."""

    async def created() -> Json | None:
        try:
            return await api.create(inside(where, "pods"), _pod(where))
        except RefusedRequestError as error:
            if error.status == 403 and "service account" in str(error):
                return None
            raise

    await until_found(created, "the service account of the namespace")
    await api.merge(f"{inside(where, 'pods', POD)}/status", {"status": _RUNNING})


_RUNNING: Final[Json] = {
    "phase": "Running",
    "podIP": LOOPBACK,
    "podIPs": [{"ip": LOOPBACK}],
    "conditions": [{"type": "Ready", "status": "True"}],
}


def _pod(where: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": where, "labels": dict(APP_LABEL)},
        "spec": {
            "schedulerName": NOBODY,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": name, "image": IMAGE} for name in ("vllm", CONTAINER_NAME)],
        },
    }
