"""What one pod would get, without a cluster.

Decides, by the code of the operator, the config of a pod from manifests: of a Pod among them, beside the other Pods, or
of one that is not there yet and would be the next of its pool.

Invariants:

1. Every failure names the file and the line that it comes from, where there is one, and says what to do.
2. Nothing is made up: no engine has come up, no pod has a config yet, and all objects are of the same age.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from kvquota_api.conditions import PLAN_VALID
from kvquota_api.meta import INJECT_LABEL
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_cli.embedded.file_cluster import FileCluster
from kvquota_cli.embedded.identity import engine_pod, new_secret
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.manifests.collection import Manifest, collect
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import ObjectKey, Place
from kvquota_operator.reading.objects import StoredPool, read_pool
from kvquota_operator.reading.pods import PodRecord, read_pod, selects
from kvquota_operator.reconcile.observed import PodSeen, PoolClaim, PoolKey
from kvquota_operator.reconcile.plan import Plan
from kvquota_operator.reconcile.pods import pool_claim
from kvquota_operator.reconcile.reconcile import reconcile

POD: Final = "Pod"
_NO_UIDS: Final = uuid.UUID("6f1c2d58-0d6a-4c53-9f0e-2f4b8a1c7d39")  # of pods that have none yet: made of their names


@dataclass(frozen=True, slots=True)
class Wish:
    """Which pod. `namespace` is also that of objects without one; `pool` may be None."""

    pod: str
    namespace: str
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """`config_map`: the name of the ConfigMap that the pod mounts, None where it does not say."""

    config: PodConfig
    config_map: str | None


@dataclass(frozen=True, slots=True)
class _Pod:
    record: PodRecord
    place: Place | None


async def render(force: InForce, wish: Wish, now: datetime) -> Rendered:
    """The config of the pod that was asked for. Raises CliError."""
    collection = collect(force.documents, wish.namespace)
    objects = Objects(wish.namespace, new_id=lambda: str(uuid.uuid4()))
    objects.take(force, now)
    pods = list(_pods(collection.manifests))
    places = {each.key: each.document.place for each in collection.manifests}
    pools = [read_pool(stored.whole()) for _, stored in objects.all_of("ModelPool", wish.namespace)]
    named = next((each for each in pods if _is(each, wish)), None)
    pool = _pool_of(named, pools, wish, places) if named is not None else _only(pools, wish)
    named = named or _next_pod(pool, wish)
    plan = await _plan(objects, pool.key, _beside(named, pods, pool, pools), now)
    config = _config(plan, named.record.seen, f"{_place(pool, places)}: ModelPool {pool.key.namespace}/{pool.key.name}")
    return Rendered(config, named.record.seen.config_map)


def _pods(manifests: Sequence[Manifest]) -> Iterator[_Pod]:
    for manifest in manifests:
        if (manifest.key.kind, manifest.api_version) != (POD, "v1"):
            continue
        try:
            record = read_pod(_identified(manifest.document.content, manifest.key))
        except (AttributeError, KeyError, TypeError) as error:
            problem = f"{manifest.key}: no API server takes this Pod: {error}; write it as `kubectl get -o yaml` does"
            raise CliError(f"{manifest.document.place}: {problem}") from error
        if record is not None:
            yield _Pod(record, manifest.document.place)


def _identified(content: Mapping[str, Any], key: ObjectKey) -> dict[str, Any]:
    """As an API server would have it: with a namespace and a uid."""
    known = {"namespace": key.namespace, "uid": str(uuid.uuid5(_NO_UIDS, f"{key.namespace}/{key.name}"))}
    return {**content, "metadata": {**known, **content["metadata"]}}


def _is(pod: _Pod, wish: Wish) -> bool:
    return (pod.record.seen.namespace, pod.record.seen.name) == (wish.namespace, wish.pod)


def _selecting(pod: _Pod, pools: Sequence[StoredPool]) -> list[StoredPool]:
    """The pools that select a pod, the one that has it first."""
    found = [
        each
        for each in pools
        if isinstance(each.pool, ModelPool)
        and each.key.namespace == pod.record.seen.namespace
        and selects(each.pool.spec.selector, pod.record.labels)
    ]
    return sorted(found, key=_claim)


def _claim(pool: StoredPool) -> PoolClaim:
    return pool_claim(pool.key, pool.pool)


def _pool_of(pod: _Pod, pools: Sequence[StoredPool], wish: Wish, places: Mapping[ObjectKey, Place]) -> StoredPool:
    found = _selecting(pod, pools)
    where = f"{pod.place}: {POD} {wish.namespace}/{wish.pod}"
    if not found:
        known = ", ".join(_said(each, places) for each in pools) or "there is none"
        raise CliError(f"{where}: no ModelPool selects it ({known}): give it the labels of spec.selector of one")
    if wish.pool not in (None, found[0].key.name):
        raise CliError(
            f"{where}: it belongs to ModelPool {_said(found[0], places)}, not to {wish.pool}: leave --pool out"
        )
    if not _is_governed(pod):
        raise CliError(
            f"{where}: it gets nothing, since it does not ask for the sidecar: label it {INJECT_LABEL}: true"
        )
    return found[0]


def _said(pool: StoredPool, places: Mapping[ObjectKey, Place]) -> str:
    return f"{pool.key.name} in {_place(pool, places)}"


def _place(pool: StoredPool, places: Mapping[ObjectKey, Place]) -> Place:
    return places[ObjectKey("ModelPool", pool.key.namespace, pool.key.name)]


def _is_governed(pod: _Pod) -> bool:
    return pod.record.seen.governed or pod.record.labels.get(INJECT_LABEL) == "true"


def _only(pools: Sequence[StoredPool], wish: Wish) -> StoredPool:
    """The pool of a pod that is not among the manifests."""
    named = [each for each in pools if wish.pool in (None, each.key.name)]
    if len(named) == 1:
        return named[0]
    missing = f"no Pod {wish.pod} of namespace {wish.namespace} is among the manifests"
    names = ", ".join(each.key.name for each in pools)
    if not names:
        raise CliError(f"{missing}, and no ModelPool either: give --namespace, or a folder that has one")
    raise CliError(f"{missing}: for one that is not there yet give --pool one of {names}")


def _next_pod(pool: StoredPool, wish: Wish) -> _Pod:
    uid = str(uuid.uuid5(_NO_UIDS, f"{wish.namespace}/{wish.pod}"))
    seen = replace(engine_pod(pool.key.namespace), name=wish.pod, uid=uid, ip=None, ready=False)
    return _Pod(PodRecord(seen, {}), None)


def _beside(named: _Pod, pods: Sequence[_Pod], pool: StoredPool, pools: Sequence[StoredPool]) -> tuple[PodSeen, ...]:
    """The pods of the pool as an operator sees them once they have the sidecar."""
    ours = [pod for pod in pods if _is_governed(pod) and _selecting(pod, pools)[:1] == [pool]]
    present = ours if named in ours else [*ours, named]
    return tuple(replace(pod.record.seen, governed=True) for pod in present)


async def _plan(objects: Objects, pool: PoolKey, pods: tuple[PodSeen, ...], now: datetime) -> Plan:
    observed = await FileCluster(objects, pods[0], new_secret(), tell=lambda _: None).observe(pool)
    if observed is None:
        raise LookupError(f"there is no ModelPool {pool.namespace}/{pool.name}")
    return reconcile(replace(observed, pods=pods), 0.0, now)


def _config(plan: Plan, pod: PodSeen, pool: str) -> PodConfig:
    config = next((each for each in plan.configs if each.pod.uid == pod.uid), None)
    if config is None:
        reasons = [each["message"] for each in plan.pool_status["conditions"] if each["type"] == PLAN_VALID]
        raise CliError(f"{pool}: {'; '.join(reasons)}", ExitCode.NO_PLAN)
    return config
