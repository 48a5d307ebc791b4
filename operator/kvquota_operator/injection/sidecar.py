"""The container of the sidecar and its volumes, as a pod gets them.

Decides their names, flags and rights. Pure. Invariants:

1. The container asks for what it may use, no more and no less: a pod that was Guaranteed stays so.
2. It passes the Pod Security Standard `restricted`, and declares no port of the engine: names of ports stay unique.
3. Its files are optional: neither a missing operator nor a missing config holds a pod back.
4. Its start waits for nothing but itself: the engine starts after it.
5. It gets no credentials of Kubernetes: the API server leaves a container alone that has something at their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.meta import CONFIG_KEY, CONFIG_VOLUME, CONTAINER_NAME
from kvquota_api.model_pool import ModelPool
from kvquota_operator.injection.outcomes import SidecarImage
from kvquota_operator.injection.tls import TlsFiles
from kvquota_operator.reconcile.manifests import pool_secret_name

IDENTITY_VOLUME: Final = "kvquota-identity"
NOTHING_VOLUME: Final = "kvquota-no-credentials"
CONFIG_FOLDER: Final = "/etc/kvquota/config"
IDENTITY_FOLDER: Final = "/etc/kvquota/identity"
CREDENTIALS_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # where Kubernetes puts a pod's token
USER: Final = 65532  # any that is not root: the image says nothing that a namespace could rely on
START_SECONDS: Final = 60  # until the sidecar answers; it takes one or two
AFTER_DRAIN_SECONDS: Final = 5  # of the grace period: the engine's own end, and that of the sidecar
LAME_DUCK_SECONDS: Final = 3  # longer than it takes until no client sees the pod in a Service any more


@dataclass(frozen=True, slots=True)
class Ports:
    """`listen`: of the sidecar for clients, `engine`: where the engine is behind it, `admin`: of the sidecar."""

    listen: int
    engine: int
    admin: int


def container(
    pool: ModelPool,
    image: SidecarImage,
    ports: Ports,
    *,
    host: str,
    tls: TlsFiles | None,
    grace_seconds: int,
    own_readiness: bool,
) -> dict[str, Any]:
    """`host`: the addresses that it listens on. `own_readiness`: the pod has no other probe that passes through it."""
    return {
        "name": CONTAINER_NAME,
        "image": image.image,
        "imagePullPolicy": image.pull_policy,
        "restartPolicy": "Always",
        "args": [*_arguments(pool, ports, host, grace_seconds), *_tls_arguments(tls)],
        "env": [
            _field_of_pod("KVQUOTA_POD_UID", "metadata.uid"),
            _field_of_pod("KVQUOTA_NODE_ADDRESS", "status.hostIP"),
        ],
        "ports": [{"name": CONTAINER_NAME, "containerPort": ports.admin, "protocol": "TCP"}],
        "lifecycle": {"preStop": _get("/drain", ports.admin)},
        **_probes(ports.admin, own_readiness=own_readiness),
        "resources": {which: {"cpu": image.cpu, "memory": image.memory} for which in ("requests", "limits")},
        "securityContext": _rights(),
        "volumeMounts": _mounts(tls),
    }


def _field_of_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probes(admin: int, *, own_readiness: bool) -> dict[str, Any]:
    startup = {**_get("/healthz", admin), "periodSeconds": 1, "failureThreshold": START_SECONDS}
    readiness = {"readinessProbe": {**_get("/readyz", admin), "periodSeconds": 5}} if own_readiness else {}
    return {"startupProbe": startup, **readiness}


def _get(path: str, port: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port}}


def _rights() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _mounts(tls: TlsFiles | None) -> list[Mapping[str, Any]]:
    folders = {
        CONFIG_VOLUME: CONFIG_FOLDER,
        IDENTITY_VOLUME: IDENTITY_FOLDER,
        NOTHING_VOLUME: CREDENTIALS_FOLDER,
    }
    own = [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in folders.items()]
    return [*own, *(tls.mounts if tls else ())]


def _arguments(pool: ModelPool, ports: Ports, host: str, grace_seconds: int) -> list[str]:
    drain = max(1, grace_seconds - AFTER_DRAIN_SECONDS)
    return [
        *("--listen", f"{host}:{ports.listen}", "--engine", f"http://127.0.0.1:{ports.engine}"),
        *("--admin", f"{host}:{ports.admin}", "--failure-policy", pool.spec.sidecar.failure_policy),
        *("--config", f"{CONFIG_FOLDER}/{CONFIG_KEY}", "--identity", IDENTITY_FOLDER),
        *("--drain-seconds", str(drain), "--lame-duck-seconds", str(min(LAME_DUCK_SECONDS, drain))),
    ]


def _tls_arguments(tls: TlsFiles | None) -> list[str]:
    return ["--tls-cert", tls.certificate, "--tls-key", tls.key] if tls else []


def volumes(pool: ModelPool, config_map: str) -> list[dict[str, Any]]:
    """The durable copy of the pod's config, and the pool's Secret. `config_map`: the name that only this pod mounts."""
    secret = pool_secret_name(pool.metadata.name)
    return [
        {"name": CONFIG_VOLUME, "configMap": {"name": config_map, "optional": True}},
        {"name": IDENTITY_VOLUME, "secret": {"secretName": secret, "optional": True}},
        {"name": NOTHING_VOLUME, "emptyDir": {}},
    ]
