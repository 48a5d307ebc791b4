"""The pools and quotas that the operator serves, in memory: fed by events, by answers to own writes and by lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvquota_operator.adapters.api import Json
from kvquota_operator.adapters.shelf import Shelf
from kvquota_operator.reading.objects import StoredPool, StoredQuota, read_pool, read_quota
from kvquota_operator.reconcile.observed import Kind, PoolKey, QuotaSeen, written

Stored = StoredPool | StoredQuota


class Objects:
    """`touch` is called for every pool that a change concerns, `edited` with a namespace where a spec in it changed."""

    def __init__(self, touch: Callable[[PoolKey], None], edited: Callable[[str], None]) -> None:
        self._touch = touch
        self._edited = edited
        self._pools: Shelf[StoredPool] = Shelf(read_pool, self._pool_replaced)
        self._quotas: Shelf[StoredQuota] = Shelf(read_quota, self._quota_replaced)
        self._by_key: dict[PoolKey, StoredPool] = {}
        self._quota_by_name: dict[tuple[str, str], StoredQuota] = {}
        self._names_by_pool: dict[PoolKey, set[str]] = {}
        self._awaited: dict[tuple[Kind, str], Mapping[str, Any]] = {}
        self.changes = 0

    def pool(self, key: PoolKey) -> StoredPool | None:
        return self._by_key.get(key)

    def keys(self) -> set[PoolKey]:
        """All pools that are there, or that a quota names."""
        return {*self._by_key, *self._names_by_pool}

    def pools(self, namespace: str) -> Iterable[StoredPool]:
        """All pools of a namespace."""
        return (pool for key, pool in self._by_key.items() if key.namespace == namespace)

    def is_empty(self, namespace: str) -> bool:
        """Whether the namespace has neither pools nor quotas."""
        return not any(key.namespace == namespace for key in (*self._by_key, *self._names_by_pool))

    def quota(self, namespace: str, name: str) -> StoredQuota | None:
        return self._quota_by_name.get((namespace, name))

    def quotas(self, pool: PoolKey) -> Iterable[StoredQuota]:
        """All quotas that name the pool, by name."""
        names = sorted(self._names_by_pool.get(pool, ()))
        return (self._quota_by_name[pool.namespace, name] for name in names)

    def put(self, kind: Kind, body: Json) -> None:
        """Take an object as it is in an answer or an event."""
        (self._pools if kind == "ModelPool" else self._quotas).put(body)

    def expect(self, kind: Kind, uid: str, status: Mapping[str, Any]) -> None:
        """The operator is about to give an object this status: that it then has it touches nothing."""
        self._awaited[kind, uid] = status

    def remove(self, kind: Kind, body: Json) -> None:
        """An event says that it is gone."""
        (self._pools if kind == "ModelPool" else self._quotas).remove(body)

    def ask(self) -> None:
        """Lists of pools and of quotas are about to be asked for."""
        self._pools.ask()
        self._quotas.ask()

    def replace(self, kind: Kind, bodies: Iterable[Json], version: str) -> bool:
        """Take a whole list. Whether it shows that the store was put back."""
        return (self._pools if kind == "ModelPool" else self._quotas).replace(bodies, version)

    def _pool_replaced(self, before: StoredPool | None, after: StoredPool | None) -> None:
        if before is not None and self._by_key.get(before.key) is before:
            del self._by_key[before.key]
        if after is not None:
            self._by_key[after.key] = after
        if before == after or self._is_echo("ModelPool", before, after):
            return
        self.changes += 1
        known = [each for each in (before, after) if each is not None]
        if _edited(known):
            self._edited(known[0].key.namespace)
        self._touch(known[0].key)
        if len(known) < 2:
            self._touch_orphans(known[0].key.namespace)

    def _is_echo(self, kind: Kind, before: Stored | None, after: Stored | None) -> bool:
        """Whether all that changed is that the object has the status that the operator gave it."""
        known = before or after
        if before is None or after is None:
            self._awaited.pop((kind, "" if known is None else known.uid), None)
            return False
        return self._awaited.get((kind, after.uid)) == after.status and _written(before) == _written(after)

    def _touch_orphans(self, namespace: str) -> None:
        """What is said of a quota without its pool names the pools that are there."""
        for pool in [key for key in self._names_by_pool if key.namespace == namespace and key not in self._by_key]:
            self._touch(pool)

    def _quota_replaced(self, before: StoredQuota | None, after: StoredQuota | None) -> None:
        if before is not None and self.quota(before.namespace, before.name) is before:
            self._unlist(before)
        if after is not None:
            self._list(after)
        if before == after or self._is_echo("TenantQuota", before, after):
            return
        self.changes += 1
        known = [each for each in (before, after) if each is not None]
        if _edited(known):
            self._edited(known[0].namespace)
        for pool in {each.pool for each in known if each.pool is not None}:
            self._touch(pool)

    def _list(self, quota: StoredQuota) -> None:
        """An older object of the same name may still be listed: its end is not known yet."""
        same_name = self.quota(quota.namespace, quota.name)
        if same_name is not None:
            self._unlist(same_name)
        self._quota_by_name[quota.namespace, quota.name] = quota
        if quota.pool is not None:
            self._names_by_pool.setdefault(quota.pool, set()).add(quota.name)

    def _unlist(self, quota: StoredQuota) -> None:
        del self._quota_by_name[quota.namespace, quota.name]
        if quota.pool is not None:
            names = self._names_by_pool[quota.pool]
            names.discard(quota.name)
            if not names:
                del self._names_by_pool[quota.pool]


def _written(stored: Stored) -> object:
    seen = stored.quota if isinstance(stored, StoredQuota) else stored.pool
    return written(seen.quota if isinstance(seen, QuotaSeen) else seen)


def _edited(known: Sequence[StoredPool] | Sequence[StoredQuota]) -> bool:
    """Whether what was and what is, as far as they are, differ in more than their status."""
    return len(known) < 2 or known[0].generation != known[1].generation
