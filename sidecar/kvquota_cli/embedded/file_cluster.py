"""The port Cluster over the objects of files: no API server, one pod that stands for the engine.

What the operator would store (the pool's Secret, the pod's config, statuses) is kept in memory for as long as the
process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_cli.embedded.objects import Objects, Stored
from kvquota_cli.manifests.judging import CONFIG_MAP, SECRET
from kvquota_cli.manifests.places import ObjectKey
from kvquota_operator.ports import VanishedError
from kvquota_operator.reading.objects import StoredPool, StoredQuota, read_model_config, read_pool, read_quota
from kvquota_operator.reading.secrets import jwks_ref, keep_key_secret, read_key, read_key_set, secret_refs
from kvquota_operator.reconcile.engines import ENGINE_DOWN
from kvquota_operator.reconcile.observed import (
    InvalidSeen,
    KeyFound,
    KeyProblem,
    Observed,
    Orphans,
    PodSeen,
    PoolKey,
    QuotaSeen,
    SecretSeen,
)
from kvquota_operator.reconcile.orphans import POOL_NOT_FOUND
from kvquota_operator.reconcile.plan import EventWanted, SecretWanted

T = TypeVar("T")
Tell = Callable[[str], None]

_WITHOUT_PODS: Final = {
    ENGINE_DOWN: "the engine has not answered for ten seconds or more, and clients get 502 engine_error: start it, look"
    " at its log, or correct --engine"
}  # by reason, where the operator's sentence speaks of what only a cluster has


class FileCluster:
    """`pod` stands for the engine of every pool that is asked for. `tell` gets what a cluster would have as events."""

    def __init__(self, objects: Objects, pod: PodSeen, secret: SecretSeen, tell: Tell) -> None:
        self._objects = objects
        self._pod = pod
        self._secret = secret
        self._tell = tell
        self._configs: dict[str, PodConfig] = {}
        self._pools = _Parsed(read_pool)
        self._quotas = _Parsed(read_quota)
        self._there: set[PoolKey] = set()

    async def observe(self, pool: PoolKey) -> Observed | None:
        """The pool as the files have it; None when they have it no more."""
        found = self._objects.find(ObjectKey("ModelPool", pool.namespace, pool.name))
        if found is None:
            self._tell_end(pool)
            return None
        self._there.add(pool)
        stored = self._pools.of(ObjectKey("ModelPool", pool.namespace, pool.name), found)
        quotas = self._quotas_of(pool)
        keys = self._keys(stored, quotas)
        return Observed(
            key=pool,
            pool=stored.pool,
            pool_status=stored.status,
            quotas=tuple(each.quota for each in quotas if isinstance(each.quota, QuotaSeen)),
            invalid=tuple(each.quota for each in quotas if isinstance(each.quota, InvalidSeen)),
            keys=keys,
            pods=(self._pod,),
            configs=dict(self._configs),
            secret=self._secret,
            jwks=self._jwks(stored, keys),
            model_config=self._model_config(stored),
        )

    async def orphans(self, pool: PoolKey) -> Orphans:
        """The quotas that name a pool that no file has."""
        quotas = self._quotas_of(pool)
        return Orphans(
            key=pool,
            quotas=tuple(each.quota for each in quotas if isinstance(each.quota, QuotaSeen)),
            invalid=tuple(each.quota for each in quotas if isinstance(each.quota, InvalidSeen)),
            pools=tuple(key.name for key, _ in self._objects.all_of("ModelPool", pool.namespace)),
        )

    async def apply_config(self, config: PodConfig) -> None:
        """Keep the config, so that its generation goes on."""
        self._configs = {config.pod.uid: config}

    async def apply_secret(self, pool: PoolKey, wanted: SecretWanted) -> None:
        """Keep the identity."""
        del pool
        self._secret = SecretSeen(wanted.token, wanted.pepper, wanted.identity)

    async def write_pool_status(self, pool: PoolKey, status: Mapping[str, Any]) -> None:
        """Keep the status. Raises VanishedError."""
        self._write(ObjectKey("ModelPool", pool.namespace, pool.name), status)

    async def write_quota_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Keep the status. Raises VanishedError."""
        self._write(ObjectKey("TenantQuota", namespace, name), status)

    async def record(self, namespace: str, event: EventWanted) -> None:
        """Tell it, but not of every quota that its pool is gone: that was told of the pool."""
        if event.reason == POOL_NOT_FOUND:
            return
        message = _WITHOUT_PODS.get(event.reason, event.message)
        self._tell(f"{event.kind} {namespace}/{event.name}: {event.reason}: {message}")

    def _tell_end(self, pool: PoolKey) -> None:
        if pool in self._there:
            self._there.discard(pool)
            self._tell(
                f"ModelPool {pool.namespace}/{pool.name} is gone from the manifests: its quotas stay in force on the"
                " sidecar until it is back or this process ends"
            )

    def _write(self, key: ObjectKey, status: Mapping[str, Any]) -> None:
        if not self._objects.write_status(key, status):
            raise VanishedError(f"{key} is not in the files any more")

    def _quotas_of(self, pool: PoolKey) -> list[StoredQuota]:
        found = dict(self._objects.all_of("TenantQuota", pool.namespace))
        parsed = [self._quotas.of(key, stored) for key, stored in found.items()]
        self._quotas.keep(found)
        return [each for each in parsed if each.pool == pool]

    def _keys(self, pool: StoredPool, quotas: Iterable[StoredQuota]) -> dict[tuple[str, str], KeyFound | KeyProblem]:
        valid = [each.quota.quota for each in quotas if isinstance(each.quota, QuotaSeen)]
        keys: dict[tuple[str, str], KeyFound | KeyProblem] = {}
        for name, key in secret_refs(pool.pool, valid):
            stored = self._objects.find(ObjectKey(SECRET, pool.key.namespace, name))
            keys[name, key] = read_key(None if stored is None else keep_key_secret(stored.body), name, key)
        return keys

    def _jwks(
        self, pool: StoredPool, keys: Mapping[tuple[str, str], KeyFound | KeyProblem]
    ) -> KeyFound | KeyProblem | None:
        ref = jwks_ref(pool.pool)
        if ref is None:
            return None
        if ref.config_map is None:
            return None if ref.secret is None else keys[ref.secret.name, ref.secret.key]
        stored = self._objects.find(ObjectKey(CONFIG_MAP, pool.key.namespace, ref.config_map.name))
        return read_key_set(None if stored is None else stored.body, ref.config_map)

    def _model_config(self, stored: StoredPool) -> Mapping[str, Any] | None:
        ref = stored.pool.spec.model.config.config_map_ref if isinstance(stored.pool, ModelPool) else None
        if ref is None:
            return None
        found = self._objects.find(ObjectKey(CONFIG_MAP, stored.key.namespace, ref.name))
        return read_model_config(None if found is None else found.body, ref.key)


class _Parsed(Generic[T]):
    """Objects of one kind as they were parsed, each until it changes."""

    def __init__(self, parse: Callable[[Mapping[str, Any]], T]) -> None:
        self._parse = parse
        self._known: dict[ObjectKey, tuple[Stored, T]] = {}

    def of(self, key: ObjectKey, stored: Stored) -> T:
        known = self._known.get(key)
        if known is None or known[0].body is not stored.body or known[0].status is not stored.status:
            known = self._known[key] = (stored, self._parse(stored.whole()))
        return known[1]

    def keep(self, present: Iterable[ObjectKey]) -> None:
        """Forget all others."""
        keys = set(present)
        self._known = {key: known for key, known in self._known.items() if key in keys}
