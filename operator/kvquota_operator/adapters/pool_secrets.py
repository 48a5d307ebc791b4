"""The Secret of a pool: its token and pepper are made here once, and stay.

A Secret of the pool's name that is of another type belongs to somebody else and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from kvquota_api.meta import POOL_SECRET_TYPE
from kvquota_api.pod_config import PoolIdentity, sealed
from kvquota_operator.adapters.api import CORE, Api, Json, object_path
from kvquota_operator.adapters.mends import Mends
from kvquota_operator.adapters.reads import Reads
from kvquota_operator.ports import Clock, ConflictError, NotOursError
from kvquota_operator.reading.objects import StoredPool
from kvquota_operator.reconcile.manifests import pool_secret, pool_secret_name, secret_from
from kvquota_operator.reconcile.observed import SecretSeen
from kvquota_operator.reconcile.plan import SecretWanted

_Content = tuple[str, str, str]
SECRET_BYTES: Final = 32  # 256 random bits in 64 hexadecimal digits, for the token and for the pepper


@dataclass(frozen=True, slots=True)
class _Stored:
    type: str
    seen: SecretSeen | None
    owners: frozenset[str]


class PoolSecrets:
    """Secrets of all pools. `mended` is called with "Secret" where one is put back that somebody else had changed."""

    def __init__(self, api: Api, clock: Clock, *, mended: Callable[[str], None]) -> None:
        self._api = api
        self._mends = Mends(clock)
        self._mended = mended
        self._reads: Reads[_Stored] = Reads(api, clock, _keep)

    async def get(self, pool: StoredPool) -> SecretSeen:
        """The pool's Secret, made where it is missing, mended where it is damaged. Raises ClusterError."""
        path = _path(pool)
        stored = await self._reads.get(path)
        if stored is None:
            return await self._make(pool)
        if stored.type != POOL_SECRET_TYPE:
            raise NotOursError(
                f"Secret {pool_secret_name(pool.key.name)} has type {stored.type} and is not the operator's:"
                " delete or rename it, the pool needs a Secret of this name"
            )
        if stored.seen is None:
            return await self._mend(pool)
        ours = pool.uid in stored.owners
        return stored.seen if ours else SecretSeen(stored.seen.token, stored.seen.pepper, None)

    async def apply(self, pool: StoredPool, wanted: SecretWanted) -> None:
        """Raises ClusterError."""
        foreign = self._is_foreign(pool)
        self._mends.tries(pool.uid, _content(wanted))
        self._put(pool, await self._api.apply(_path(pool), pool_secret(pool.key, pool.uid, wanted)))
        if foreign:
            self._mended("Secret")

    def sweep(self) -> None:
        """Forget Secrets of pools that are gone."""
        self._reads.sweep()

    async def _make(self, pool: StoredPool) -> SecretSeen:
        fresh, foreign = _fresh(), self._is_foreign(pool)
        self._mends.tries(pool.uid, _content(fresh))
        path = object_path(CORE, pool.key.namespace, "secrets")
        try:
            self._put(pool, await self._api.create(path, pool_secret(pool.key, pool.uid, fresh)))
        except ConflictError:
            self._reads.expire(_path(pool))
            raise
        if foreign:
            self._mended("Secret")
        return SecretSeen(fresh.token, fresh.pepper, fresh.identity)

    async def _mend(self, pool: StoredPool) -> SecretSeen:
        fresh = _fresh()
        await self.apply(pool, fresh)
        return SecretSeen(fresh.token, fresh.pepper, fresh.identity)

    def _is_foreign(self, pool: StoredPool) -> bool:
        """Whether the Secret was changed, or deleted, since it was written."""
        stored = self._reads.known(_path(pool))
        return self._mends.is_foreign(pool.uid, None if stored is None else _content(stored.seen))

    def _put(self, pool: StoredPool, body: Json) -> None:
        self._reads.put(_path(pool), body)
        self._mends.gave(pool.uid, _content(_keep(body).seen))


def _content(secret: SecretSeen | SecretWanted | None) -> _Content:
    """What tells whether two Secrets are the same."""
    if secret is None:
        return "", "", ""
    return secret.token, secret.pepper, "" if secret.identity is None else secret.identity.digest


def _fresh() -> SecretWanted:
    pepper = token_hex(SECRET_BYTES)
    identity = sealed(PoolIdentity(digest="", pepper=pepper, api_keys={}))
    return SecretWanted(token=token_hex(SECRET_BYTES), pepper=pepper, identity=identity)


def _path(pool: StoredPool) -> str:
    return object_path(CORE, pool.key.namespace, "secrets", pool_secret_name(pool.key.name))


def _keep(body: Json) -> _Stored:
    owners = body["metadata"].get("ownerReferences") or []
    seen = secret_from(body)
    return _Stored(
        type=str(body.get("type") or "Opaque"),
        seen=seen if isinstance(seen, SecretSeen) else None,
        owners=frozenset(each["uid"] for each in owners),
    )
