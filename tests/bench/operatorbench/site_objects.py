"""The objects of the benchmark, as users and a Deployment would make them."""

from __future__ import annotations

import secrets
from typing import Any, Final

from workload import Fleet, address, pod_name, pool_name, tenant_name

from kvquota_api.memory.plan import PoolPlan, plan_pool
from kvquota_api.meta import API_KEY_SECRET_TYPE, API_VERSION, CONTAINER_NAME
from kvquota_api.validation import parse_model_pool

NAMESPACE: Final = "inference"
SEQUENCES: Final = 500_000  # at once, of a quota over all pods: more than there are
Object = dict[str, Any]


def model_pool(pool: int, admin_port: int) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "ModelPool",
        "metadata": {"name": pool_name(pool), "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": pool_name(pool)}},
            "model": {"name": "llama-3.1-8b", "config": {"preset": "llama-3.1-8b"}, "maxModelLen": 32768},
            "engine": {"type": "vLLM"},
            "gpu": {"memory": "80Gi", "count": 1},
            "memory": {"kvPool": {"percent": 50}},
            "sidecar": {"adminPort": admin_port},
        },
    }


def planned(admin_port: int) -> PoolPlan:
    """What the engines of every pool came up with."""
    return plan_pool(parse_model_pool(model_pool(0, admin_port)))


def quota(number: int, pool: int, *, of_pool: bool = False) -> Object:
    scope = {"scope": "Pool", "maxConcurrentRequests": SEQUENCES} if of_pool else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "TenantQuota",
        "metadata": {"name": tenant_name(number), "namespace": NAMESPACE},
        "spec": {
            "tenant": tenant_name(number),
            "modelPoolRef": {"name": pool_name(pool)},
            "kv": {"soft": {"percent": 5}, "hard": {"percent": 50}},
            **scope,
            "identity": {"apiKeys": [{"secretRef": {"name": tenant_name(number), "key": "key"}}]},
        },
    }


def api_key(number: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": API_KEY_SECRET_TYPE,
        "metadata": {"name": tenant_name(number), "namespace": NAMESPACE},
        "stringData": {"key": f"kvq-{secrets.token_hex(32)}"},
    }


def pod(number: int, pool: int) -> Object:
    """A pod with the containers, volumes and variables that an injected pod of a Deployment has, roughly."""
    variables = [{"name": f"ENGINE_SETTING_{each}", "value": "x" * 40} for each in range(12)]
    volumes = [{"name": f"volume-{each}", "emptyDir": {}} for each in range(4)]
    mounts = [{"name": each["name"], "mountPath": f"/mnt/{each['name']}"} for each in volumes]
    containers = [
        {"name": name, "image": f"registry.example/{name}:1", "env": variables, "volumeMounts": mounts}
        for name in ("vllm", CONTAINER_NAME)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name(number), "namespace": NAMESPACE, "labels": {"app": pool_name(pool)}},
        "spec": {"containers": containers, "volumes": volumes, "automountServiceAccountToken": False},
    }


def pod_status(number: int) -> Object:
    """Running and ready, at its address."""
    ip = address(number)
    conditions = [{"type": each, "status": "True"} for each in ("PodScheduled", "Initialized", "Ready")]
    return {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}}


def quotas(fleet: Fleet) -> list[Object]:
    numbers = [(pool, number) for pool in range(fleet.pools) for number in fleet.quotas_of(pool)]
    return [quota(number, pool, of_pool=fleet.is_of_pool(number)) for pool, number in numbers]


def pods(fleet: Fleet) -> list[tuple[int, Object]]:
    """Each with its number."""
    return [(number, pod(number, pool)) for pool in range(fleet.pools) for number in fleet.pods_of(pool)]
