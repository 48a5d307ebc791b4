"""What one pod would get, without a cluster.

Decides, by the code of the operator, the config of a pod from manifests: of a Pod among them, beside the other Pods, or
of one that is not there yet and would be the next of its pool.

Invariants:

1. Every failure names the file and the line that it comes from, where there is one, and says what to do.
2. Nothing is made up: no engine has come up, no pod has a config yet, and all objects are of the same age. A pod that
   was started by another plan than the manifests give is shown with theirs, and that is said.
3. A pod that the webhook would refuse gets nothing and has no part. What is wrong with another pod stops nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from kvquota_api.meta import INJECT_LABEL, PLAN_ANNOTATION
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_cli.embedded.file_cluster import FileCluster
from kvquota_cli.embedded.identity import engine_pod, new_secret
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.errors import CliError, ExitCode
from kvquota_cli.manifests.collection import collect
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import Finding, ObjectKey, Place
from kvquota_cli.manifests.pods import POD, PodManifest, PodsRead, made_uid, read_pods
from kvquota_operator.injection.asking import selecting
from kvquota_operator.injection.injecting import inject
from kvquota_operator.injection.outcomes import Refused, SidecarImage
from kvquota_operator.injection.planned import target_of
from kvquota_operator.reading.objects import StoredPool, read_pool
from kvquota_operator.reading.pods import PodRecord
from kvquota_operator.reconcile.observed import Observed, PoolKey
from kvquota_operator.reconcile.plan import Plan
from kvquota_operator.reconcile.reconcile import reconcile

_ANY_IMAGE: Final = SidecarImage("kvquota")  # no answer to whether a pod is refused depends on it
_ANY_CONFIG_MAP: Final = "kvq-" + "0" * 32  # likewise


@dataclass(frozen=True, slots=True)
class Wish:
    """Which pod. `namespace` is also that of objects without one; `pool` may be None."""

    pod: str
    namespace: str
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """`config_map`: the name of the ConfigMap that the pod mounts, None where it does not say.

    `findings`: what is wrong with other pods, and why the pod may have another config.
    """

    config: PodConfig
    config_map: str | None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Pools:
    """Those of the namespace, where each stands, and the namespaces that have some."""

    stored: tuple[StoredPool, ...]
    places: Mapping[ObjectKey, Place]
    namespaces: tuple[str, ...]

    @property
    def names(self) -> str:
        return ", ".join(each.key.name for each in self.stored)

    def place(self, pool: StoredPool) -> Place:
        return self.places[ObjectKey("ModelPool", pool.key.namespace, pool.key.name)]


async def render(force: InForce, wish: Wish, now: datetime) -> Rendered:
    """The config of the pod that was asked for. Raises CliError."""
    collection = collect(force.documents, wish.namespace)
    objects = Objects(wish.namespace, new_id=lambda: str(uuid.uuid4()))
    objects.take(force, now)
    pools = _pools(objects, wish, {each.key: each.document.place for each in collection.manifests})
    read = read_pods(collection.manifests)
    named = _named(read, wish)
    if wish.pool is not None and wish.pool not in [each.key.name for each in pools.stored]:
        raise CliError(_unknown_pool(pools, wish))
    pool = _pool_of(named, pools, wish) if named is not None else _only(pools, wish)
    named = named or _next_pod(pool, wish)
    observed = await _observed(objects, pool.key)
    beside = [each for each in read.pods if _is_governed(each) and _selecting(each, pools)[:1] == (pool,)]
    refused = _refused(beside, observed)
    if named.record.seen.uid in refused:
        raise CliError(f"{_where(named)}: the webhook refuses it: {refused[named.record.seen.uid]}")
    let_in = [each for each in beside if each.record.seen.uid not in refused]
    config = _config(_plan(observed, named, let_in, now), named, f"{pools.place(pool)}: ModelPool {_full(pool.key)}")
    findings = [*_all_broken(read), *_of_another_plan(named, config)]
    findings += [
        _finding(each, f"the webhook refuses it, so it has no part: {refused[each.record.seen.uid]}")
        for each in beside
        if each not in let_in
    ]
    return Rendered(config, named.record.seen.config_map, tuple(findings))


def _pools(objects: Objects, wish: Wish, places: Mapping[ObjectKey, Place]) -> _Pools:
    namespaces = sorted({key.namespace for key, _ in objects.all_of("ModelPool")})
    stored = tuple(read_pool(stored.whole()) for _, stored in objects.all_of("ModelPool", wish.namespace))
    return _Pools(stored, places, tuple(namespaces))


def _named(read: PodsRead, wish: Wish) -> PodManifest | None:
    wrong = read.broken.get(ObjectKey(POD, wish.namespace, wish.pod), ())
    if wrong:
        raise CliError(f"{wrong[0]}; no API server takes this Pod")
    of_namespace = [each for each in read.pods if each.record.seen.namespace == wish.namespace]
    return next((each for each in of_namespace if each.record.seen.name == wish.pod), None)


def _selecting(pod: PodManifest, pools: _Pools) -> tuple[StoredPool, ...]:
    """The pools that select a pod, the one that has it first."""
    namespace = pod.record.seen.namespace
    return selecting(pod.record.labels, [each for each in pools.stored if each.key.namespace == namespace])


def _pool_of(pod: PodManifest, pools: _Pools, wish: Wish) -> StoredPool:
    found, where = _selecting(pod, pools), _where(pod)
    if not found:
        known = ", ".join(_said(each, pools) for each in pools.stored) or "there is none"
        raise CliError(f"{where}: no ModelPool selects it ({known}): give it the labels of spec.selector of one")
    if wish.pool not in (None, found[0].key.name):
        raise CliError(
            f"{where}: it belongs to ModelPool {_said(found[0], pools)}, not to {wish.pool}: leave --pool out"
        )
    if not _is_governed(pod):
        raise CliError(
            f'{where}: it gets nothing, since it does not ask for the sidecar: label it {INJECT_LABEL}: "true", with'
            " the quotes"
        )
    return found[0]


def _where(pod: PodManifest) -> str:
    return f"{pod.place}: {POD} {pod.record.seen.namespace}/{pod.record.seen.name}"


def _said(pool: StoredPool, pools: _Pools) -> str:
    return f"{pool.key.name} in {pools.place(pool)}"


def _full(key: PoolKey) -> str:
    return f"{key.namespace}/{key.name}"


def _is_governed(pod: PodManifest) -> bool:
    return pod.record.seen.governed or pod.record.seen.asks


def _only(pools: _Pools, wish: Wish) -> StoredPool:
    """The pool of a pod that is not among the manifests."""
    named = [each for each in pools.stored if wish.pool in (None, each.key.name)]
    if len(named) == 1:
        return named[0]
    missing = f"no Pod {wish.pod} of namespace {wish.namespace} is among the manifests"
    if not pools.stored:
        raise CliError(f"{missing}, and no ModelPool of it either: {_where_pools_are(pools)}")
    raise CliError(f"{missing}: for one that is not there yet give --pool one of {pools.names}")


def _unknown_pool(pools: _Pools, wish: Wish) -> str:
    missing = f"there is no ModelPool {wish.pool} of namespace {wish.namespace} among the manifests"
    if pools.stored:
        return f"{missing}: give --pool one of {pools.names}"
    return f"{missing}: {_where_pools_are(pools)}"


def _where_pools_are(pools: _Pools) -> str:
    if pools.namespaces:
        return f"ModelPools are in {', '.join(pools.namespaces)}, so give --namespace one of these"
    return "give --manifests a folder that has one"


def _next_pod(pool: StoredPool, wish: Wish) -> PodManifest:
    uid = made_uid(wish.namespace, wish.pod)
    seen = replace(engine_pod(pool.key.namespace), name=wish.pod, uid=uid, ip=None, ready=False)
    return PodManifest(PodRecord(seen, {}), {}, None)


async def _observed(objects: Objects, pool: PoolKey) -> Observed:
    cluster = FileCluster(objects, engine_pod(pool.namespace), new_secret(), tell=lambda _: None)
    observed = await cluster.observe(pool)
    if observed is None:
        raise LookupError(f"there is no ModelPool {_full(pool)}")
    return observed


def _refused(pods: Sequence[PodManifest], observed: Observed) -> dict[str, str]:
    """By uid, why the webhook would not let a pod in that has no sidecar yet."""
    if not isinstance(observed.pool, ModelPool):
        return {}
    target = target_of(observed.pool, observed.model_config, ())
    outcomes = {
        each.record.seen.uid: inject(each.body, target, _ANY_IMAGE, _ANY_CONFIG_MAP)
        for each in pods
        if not each.record.seen.governed
    }
    return {uid: each.message for uid, each in outcomes.items() if isinstance(each, Refused)}


def _plan(observed: Observed, named: PodManifest, beside: Sequence[PodManifest], now: datetime) -> Plan:
    """With the pods of the pool as an operator sees them once they have the sidecar."""
    present = beside if named in beside else [*beside, named]
    pods = tuple(replace(each.record.seen, governed=True) for each in present)
    return reconcile(replace(observed, pods=pods), 0.0, now)


def _config(plan: Plan, pod: PodManifest, pool: str) -> PodConfig:
    config = next((each for each in plan.configs if each.pod.uid == pod.record.seen.uid), None)
    if config is None:
        raise CliError(f"{pool}: no pod gets anything until what is said of it above is mended", ExitCode.NO_PLAN)
    return config


def _all_broken(read: PodsRead) -> list[Finding]:
    return [each for findings in read.broken.values() for each in findings]


def _of_another_plan(pod: PodManifest, config: PodConfig) -> list[Finding]:
    plan = pod.record.seen.plan
    if plan in (None, config.plan):
        return []
    why = (
        f"the annotation {PLAN_ANNOTATION} names the plan {plan}, which the pod keeps; the pool of these manifests has"
        f" the plan {config.plan}, and shown is what a new pod would get"
    )
    return [_finding(pod, why)]


def _finding(pod: PodManifest, what: str) -> Finding:
    key = ObjectKey(POD, pod.record.seen.namespace, pod.record.seen.name)
    return Finding(pod.place or Place("", 1), what, str(key))
