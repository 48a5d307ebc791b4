"""Statuses of pools and quotas, which only the operator writes.

A write is a merge patch of the difference to what is stored, with the resourceVersion of that: it removes what others
added, and is refused where the object has changed meanwhile. Server-side apply would leave in place what others add,
and a number that nobody measured must not stay.

Who else writes a status is written over each time, at the pace of all statuses. That is counted, and from the third
time within a minute on it is told as an event of the object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kvquota_api.meta import API_VERSION
from kvquota_operator.adapters.api import Api, Json, object_path
from kvquota_operator.adapters.mends import Mends
from kvquota_operator.adapters.objects import Objects, Stored
from kvquota_operator.ports import ConflictError
from kvquota_operator.reconcile.observed import Kind, PoolKey
from kvquota_operator.reconcile.plan import EventWanted

KVQUOTA: Final = f"/apis/{API_VERSION}"
Mended = Callable[[Kind, str, EventWanted | None], Awaitable[None]]
"""Called with the kind and the namespace of an object whose status was written over, and what is to be told of it."""

PLURALS: Final[Mapping[Kind, str]] = {"ModelPool": "modelpools", "TenantQuota": "tenantquotas"}


class Statuses:
    """Writes them, and puts the answer among the objects."""

    def __init__(self, api: Api, objects: Objects, mends: Mends, *, mended: Mended) -> None:
        self._api = api
        self._objects = objects
        self._mends = mends
        self._mended = mended

    async def write(self, kind: Kind, namespace: str, name: str, wanted: Mapping[str, Any]) -> None:
        """Nothing is sent where nothing differs, or where the object is gone. Raises ClusterError."""
        stored = self._stored(kind, namespace, name)
        if stored is None:
            return
        changes = difference(stored.status, wanted)
        if not changes:
            return
        path = object_path(KVQUOTA, namespace, PLURALS[kind], name)
        foreign = self._mends.is_foreign(stored.uid, stored.status)
        self._objects.expect(kind, stored.uid, wanted)
        patch: Json = {"metadata": {"resourceVersion": stored.version}, "status": changes}
        try:
            self._objects.put(kind, await self._api.merge(f"{path}/status", patch))
        except ConflictError:
            self._objects.put(kind, await self._api.get(path))
            raise
        self._mends.gave(stored.uid, wanted)
        if foreign:
            fights = self._mends.mended(stored.uid)
            await self._mended(kind, namespace, _fought(kind, name, stored.uid) if fights else None)

    def _stored(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        if kind == "ModelPool":
            return self._objects.pool(PoolKey(namespace, name))
        return self._objects.quota(namespace, name)


def _fought(kind: Kind, name: str, uid: str) -> EventWanted:
    return EventWanted(
        kind,
        name,
        uid,
        "Warning",
        "StatusFought",
        "somebody else writes the status of this object again and again, and what they write is written over: take the"
        f" right to patch {PLURALS[kind]}/status from them. kubectl get {PLURALS[kind]} {name} --show-managed-fields -o"
        " yaml says who it is",
    )


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that makes `wanted` out of `stored`; empty where they are the same."""
    changes: dict[str, Any] = {key: None for key in stored if key not in wanted}
    for key, value in wanted.items():
        before = stored.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            below = difference(before, value)
            if below:
                changes[key] = below
        elif key not in stored or before != value:
            changes[key] = value
    return changes
