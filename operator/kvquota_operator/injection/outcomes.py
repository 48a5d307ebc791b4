"""What can become of a pod at admission. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import KvPlan


@dataclass(frozen=True, slots=True)
class SidecarImage:
    """What every sidecar is started from, and what it gets: requests are limits, as quantities of Kubernetes."""

    image: str
    pull_policy: str = "IfNotPresent"
    cpu: str = "200m"
    memory: str = "256Mi"


@dataclass(frozen=True, slots=True)
class Target:
    """The pool that a pod belongs to, and the plan in force: `kv` is None and `plan_hash` empty where there is none;
    `kv` is None alone where the model is not known, and the plan is what engines report."""

    pool: ModelPool
    kv: KvPlan | None = None
    plan_hash: str = ""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The pod as it is to be. `warnings`: sentences for the one who created it."""

    pod: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod is not admitted; `message` says why and what to do. `retry_seconds`: when it will be, by itself; clients
    that know how to wait try again then. None: it has to be changed."""

    message: str
    retry_seconds: int | None = None


Outcome = Allowed | Refused
