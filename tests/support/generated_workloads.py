"""Deployments of tests/data/manifests, so changed that they start on a node without GPU, registry and storage."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kvquota_operator.adapters.authority import Lifetimes, next_authority, sign

DATA = Path(__file__).parents[1] / "data" / "manifests"
STAND_IN = Path(__file__).parent / "engine_stand_in.py"
NAMES = ("plain-vllm", "production-stack", "kserve", "kserve-tls", "llmkube-vllm", "llmkube-llamacpp")
_LIGHT = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}}
_MOUNT = {"name": "stand-in", "mountPath": "/stand-in"}

Object = dict[str, Any]


def pool_spec(name: str) -> Object:
    """The spec of the ModelPool for one of NAMES."""
    found: Object = yaml.safe_load((DATA / "pools.yaml").read_text(encoding="utf-8"))[name]
    return found


def workload(name: str, namespace: str, image: str) -> list[Object]:
    """One of NAMES with what it mounts, the Deployment last; `image` has the fake engine."""
    found: Object = yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))
    found["metadata"]["namespace"], found["spec"]["replicas"] = namespace, 1
    spec = found["spec"]["template"]["spec"]
    for each in spec["containers"]:
        _stand_in(each, image, pool_spec(name)["model"]["name"])
    for each in spec.get("initContainers", []):
        each |= {"image": image, "command": ["python3", "-c", "pass"], "resources": _LIGHT}
    for volume in spec.get("volumes", []):
        if volume.pop("persistentVolumeClaim", None):
            volume["emptyDir"] = {}
    spec["volumes"] = [*spec.get("volumes", []), {"name": "stand-in", "configMap": {"name": "stand-in"}}]
    return [_program(namespace), _certificate(namespace), found]


def _stand_in(container: Object, image: str, model: str) -> None:
    container |= {"image": image, "imagePullPolicy": "IfNotPresent", "resources": _LIGHT}
    container["command"] = ["python3", "/stand-in/engine.py", *container.get("command", [])]
    kept = [each for each in container.get("env", []) if "secretKeyRef" not in each.get("valueFrom", {})]
    container["env"] = [*kept, {"name": "MODEL", "value": model}]
    container["volumeMounts"] = [*container.get("volumeMounts", []), _MOUNT]
    container.pop("envFrom", None)


def _program(namespace: str) -> Object:
    metadata = {"name": "stand-in", "namespace": namespace}
    data = {"engine.py": STAND_IN.read_text(encoding="utf-8")}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _certificate(namespace: str) -> Object:
    """The Secret that KServe makes beside the Deployment."""
    now = datetime.now(UTC)
    signed = sign(next_authority(None, "test", now, Lifetimes()), ["llama"], now, Lifetimes())
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "llama-8b-tls-kserve-self-signed-certs", "namespace": namespace},
        "stringData": {"tls.crt": signed.certificate.decode(), "tls.key": signed.key.decode()},
    }
