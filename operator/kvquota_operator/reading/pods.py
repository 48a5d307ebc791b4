"""What the operator keeps of a pod, and which pools' selectors match it.

Decides when a pod counts as governed, ready and finished, and reads selectors as the API server does. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvquota_api.meta import CONFIG_VOLUME, CONTAINER_NAME, INJECT_LABEL, PLAN_ANNOTATION
from kvquota_api.model_pool import LabelRequirement, PodSelector
from kvquota_api.pod_config import PodConfig
from kvquota_operator.reconcile.manifests import is_config_map_name
from kvquota_operator.reconcile.observed import PodSeen

GRACE_SECONDS: Final = 30  # where a pod does not say how long its containers have to end, by Kubernetes
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodRecord:
    """`grace_seconds`: how long it may work on once it is deleted. `may_run`: it has a node, and not all of its
    containers have ended."""

    seen: PodSeen
    labels: Mapping[str, str]
    grace_seconds: float = GRACE_SECONDS
    may_run: bool = False


def read_pod(body: Mapping[str, Any]) -> PodRecord | None:
    """A pod as the operator sees it; None where it has finished."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    if status.get("phase") in _FINISHED:
        return None
    labels = meta.get("labels") or {}
    seen = PodSeen(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        ip=status.get("podIP") or None,
        ready=_is_ready(status),
        deleting="deletionTimestamp" in meta,
        governed=has_sidecar(spec),
        config_map=mounted_config(spec),
        asks=labels.get(INJECT_LABEL) == "true",
        plan=(meta.get("annotations") or {}).get(PLAN_ANNOTATION) or None,
    )
    return PodRecord(seen, labels, grace_seconds=_grace_seconds(meta, spec), may_run=_may_run(spec, status))


def left_behind(copy: PodConfig, name: str) -> PodRecord:
    """What a durable copy tells of a pod that nobody sees: it may run. `name`: of the ConfigMap."""
    seen = PodSeen(
        namespace=copy.pod.namespace,
        name=copy.pod.name,
        uid=copy.pod.uid,
        ip=None,
        ready=False,
        deleting=True,
        governed=True,
        config_map=name,
        plan=copy.plan or None,
    )
    return PodRecord(seen, {}, may_run=True)


def has_sidecar(spec: Mapping[str, Any]) -> bool:
    """Whether a pod has a container with the sidecar's name."""
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return any(each["name"] == CONTAINER_NAME for each in containers)


def mounted_config(spec: Mapping[str, Any]) -> str | None:
    """The ConfigMap in the volume of our config; None where there is none, or one whose name is not of our form."""
    volumes: list[dict[str, Any]] = spec.get("volumes") or []
    names = [(each.get("configMap") or {}).get("name") or "" for each in volumes if each.get("name") == CONFIG_VOLUME]
    return next((name for name in names if is_config_map_name(name)), None)


def _grace_seconds(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> float:
    """The longest that was said: an object deleted by force says 0, and its node takes what the spec says."""
    usual = spec.get("terminationGracePeriodSeconds")
    return max(GRACE_SECONDS if usual is None else usual, meta.get("deletionGracePeriodSeconds") or 0)


def _may_run(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    states = [each.get("state") or {} for each in status.get("containerStatuses") or []]
    ended = bool(states) and all("terminated" in state for state in states)
    return bool(spec.get("nodeName")) and not ended


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions: list[dict[str, Any]] = status.get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def selects(selector: PodSelector, labels: Mapping[str, str]) -> bool:
    """Whether the selector matches a pod with these labels, as the API server decides it."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _meets(requirement, labels) for requirement in selector.match_expressions
    )


def _meets(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    present = requirement.key in labels
    if requirement.operator == "Exists":
        return present
    if requirement.operator == "DoesNotExist":
        return not present
    within = present and labels[requirement.key] in requirement.values
    return within if requirement.operator == "In" else not within


def query(selector: PodSelector) -> str:
    """The selector as the API server's labelSelector parameter."""
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    return ",".join(parts + [_term(requirement) for requirement in selector.match_expressions])


def _term(requirement: LabelRequirement) -> str:
    if requirement.operator == "Exists":
        return requirement.key
    if requirement.operator == "DoesNotExist":
        return f"!{requirement.key}"
    word = "in" if requirement.operator == "In" else "notin"
    return f"{requirement.key} {word} ({','.join(requirement.values)})"
