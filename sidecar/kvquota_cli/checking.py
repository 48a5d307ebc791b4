"""What is wrong with a set of manifests, without a cluster.

Decides by the same code that a cluster uses: each object is judged as an API server with our CRDs judges it, and then
every pool is reconciled with its quotas and keys before one pod that nobody has seen yet.

Invariants:

1. What is wrong with one object is said once, not again for everything that depends on it.
2. What may be elsewhere is a warning: a Secret, a ConfigMap with a model's config, and a pool where no other pool of
   that namespace is among the files. So is a soft that is scaled down, a model that the planner does not know, and a
   field that nothing acts upon yet: it can all be applied.

It does not know what is in the cluster already, nor what engines measure.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kvquota_api.conditions import PLAN_VALID, PODS_GOVERNED, QUOTA_WITHIN_CAPACITY, READY
from kvquota_api.inert import InertField, asked_of
from kvquota_api.model_pool import ModelPool
from kvquota_api.tenant_quota import TenantQuota
from kvquota_api.validation import KINDS, InvalidObjectError, parse_model_pool, parse_tenant_quota
from kvquota_cli.embedded.file_cluster import FileCluster
from kvquota_cli.embedded.identity import engine_pod, new_secret
from kvquota_cli.embedded.objects import Objects
from kvquota_cli.manifests.collection import Collection, Manifest, collect
from kvquota_cli.manifests.judging import CONFIG_MAP, SECRET, is_ours, steps_of
from kvquota_cli.manifests.last_good import InForce
from kvquota_cli.manifests.places import Finding, ObjectKey, Severity
from kvquota_operator.reconcile.observed import PoolKey
from kvquota_operator.reconcile.plan import Plan
from kvquota_operator.reconcile.reconcile import reconcile

_KINDS: Final = frozenset({*KINDS, SECRET, CONFIG_MAP})
_POOL_NAMES: Final = {
    "TenantQuota": "spec.modelPoolRef.name",
    "ModelPool": "spec.degradation.fallback.modelPoolRef.name",
}  # by kind, where an object names a pool
_Parse = Callable[[object], ModelPool | TenantQuota]
_PARSED: Final[Mapping[str, _Parse]] = {
    "ModelPool": parse_model_pool,
    "TenantQuota": parse_tenant_quota,
}
_CONFIG_NAME: Final = "spec.model.config.configMapRef.name"
_LIKE: Final = 0.5  # of 1: how alike the name of a pool and a slip of it are
_WARNED: Final = (PLAN_VALID, PODS_GOVERNED, QUOTA_WITHIN_CAPACITY, READY)
# Said already: at the object itself, or at the pool that it depends on.
_FOLLOWS: Final = frozenset({"InvalidSpec", "PoolInvalid", "NoPlan", "NoShare"})
# May be in the cluster, is in force all the same, or works once an engine has reported its blocks.
_MILD: Final = frozenset(
    ("APIKeyNotFound", "JWTKeysNotFound", "Oversubscribed", "HardAbovePool", "SoftAboveHard", "UnknownArchitecture")
)
_PATH: Final = re.compile(r"^(spec(?:\.[A-Za-z]+|\[[0-9]+\])+): (.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`checked`: objects by kind. `passed_over`: objects that mean nothing to kvquota, by kind."""

    findings: tuple[Finding, ...]
    checked: Mapping[str, int]
    passed_over: Mapping[str, int]

    @property
    def good(self) -> bool:
        """Whether nothing is wrong; warnings are not."""
        return all(each.severity != "error" for each in self.findings)


async def check(force: InForce, namespace: str, now: datetime) -> Verdict:
    """Judge documents; `namespace` is for objects that name none."""
    collection = collect(force.documents, namespace)
    objects = Objects(namespace, new_id=_numbered())
    alone = objects.take(force, now).told
    together = [each async for each in _together(objects, collection, now)]
    ours = [each for each in collection.manifests if is_ours(each)]
    others = [each for each in collection.manifests if not is_ours(each)]
    return Verdict(
        findings=tuple(sorted([*alone, *together], key=lambda each: (each.place, each.field))),
        checked=Counter(each.key.kind for each in ours if each.key.kind in _KINDS),
        passed_over=Counter(f"{each.key.kind} ({each.api_version})" for each in others),
    )


def _numbered() -> Callable[[], str]:
    numbers = iter(range(1, 2**31))
    return lambda: str(next(numbers))


async def _together(objects: Objects, collection: Collection, now: datetime) -> AsyncIterator[Finding]:
    manifests = {each.key: each for each in collection.manifests}
    pools = [key for key, _ in objects.all_of("ModelPool")]
    for pool in pools:
        for finding in _said(await decide(objects, PoolKey(pool.namespace, pool.name), now), pool, manifests):
            yield finding
    for kind, field in _POOL_NAMES.items():
        for key, stored in objects.all_of(kind):
            if (lost := _without_pool(key, stored.body, field, manifests)) is not None:
                yield lost
    for finding in _inert(objects, manifests):
        yield finding


def _inert(objects: Objects, manifests: Mapping[ObjectKey, Manifest]) -> Iterator[Finding]:
    for kind, parse in _PARSED.items():
        for key, stored in objects.all_of(kind):
            for field in _asked(parse, stored.body):
                place = manifests[key].document.at(*steps_of(field.path))
                yield Finding(place, f"not acted upon yet: {field.meanwhile}", str(key), field.path, "warning")


def _asked(parse: _Parse, body: Mapping[str, Any]) -> Sequence[InertField]:
    try:
        return asked_of(parse(body).spec)
    except InvalidObjectError:
        return ()  # what is wrong with it is said by who judges it alone


async def decide(objects: Objects, pool: PoolKey, now: datetime) -> Plan:
    """What the operator would decide for a pool with one pod that nobody has seen yet. Raises LookupError."""
    cluster = FileCluster(objects, engine_pod(pool.namespace), new_secret(), tell=lambda _: None)
    observed = await cluster.observe(pool)
    if observed is None:
        raise LookupError(f"there is no ModelPool {pool.namespace}/{pool.name}")
    return reconcile(observed, 0.0, now)


def _said(plan: Plan, pool: ObjectKey, manifests: Mapping[ObjectKey, Manifest]) -> Iterator[Finding]:
    config = _text_at(manifests[pool].document.content, _CONFIG_NAME)
    elsewhere = config is not None and ObjectKey(CONFIG_MAP, pool.namespace, config) not in manifests
    yield from _conditions(plan.pool_status, manifests[pool], {"ModelConfigInvalid"} if elsewhere else set())
    for name, status in plan.quota_statuses.items():
        yield from _conditions(status, manifests[ObjectKey("TenantQuota", pool.namespace, name)], set())


def _conditions(status: Mapping[str, Any], manifest: Manifest, mild_here: Set[str]) -> Iterator[Finding]:
    for condition in status["conditions"]:
        wrong = condition["type"] in _WARNED and condition["status"] != "True"
        if wrong and condition["reason"] not in _FOLLOWS:
            mild = condition["reason"] in _MILD | mild_here or condition["status"] == "Unknown"
            yield _finding(manifest, condition["message"], "warning" if mild else "error")


def _finding(manifest: Manifest, message: str, severity: Severity) -> Finding:
    match = _PATH.match(message)
    field, sentence = (match[1], match[2]) if match else ("", message)
    return Finding(manifest.document.at(*steps_of(field)), sentence, str(manifest.key), field, severity)


def _text_at(body: Mapping[str, Any], field: str) -> str | None:
    value: Any = body
    for step in field.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else None


def _without_pool(
    key: ObjectKey, body: Mapping[str, Any], field: str, manifests: Mapping[ObjectKey, Manifest]
) -> Finding | None:
    name = _text_at(body, field)
    if name is None or ObjectKey("ModelPool", key.namespace, name) in manifests:
        return None
    pools = [each for each in manifests if (each.kind, each.namespace) == ("ModelPool", key.namespace)]
    others = [each.name for each in pools if each != key]
    message, severity = _lost(name, key.namespace, others)
    return Finding(manifests[key].document.at(*steps_of(field)), message, str(key), field, severity)


def _lost(name: str, namespace: str, others: Sequence[str]) -> tuple[str, Severity]:
    missing = f"no ModelPool {name} of namespace {namespace} is among these files"
    if not others:
        return f"{missing}: it must be in the cluster", "warning"
    near = difflib.get_close_matches(name, others, n=1, cutoff=_LIKE)
    meant = f"did you mean {near[0]}?" if near else f"there is {', '.join(sorted(others))}"
    return f"{missing}; {meant}", "error"
