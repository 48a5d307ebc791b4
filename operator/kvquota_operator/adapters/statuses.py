"""Statuses of pools and quotas, which only the operator writes.

A write is a merge patch of the difference to what is stored, with the resourceVersion of that: it removes what others
added, and is refused where the object has changed meanwhile. Server-side apply would leave in place what others add,
and a number that nobody measured must not stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvquota_api.meta import API_VERSION
from kvquota_operator.adapters.api import Api, Json, object_path
from kvquota_operator.adapters.objects import Objects, Stored
from kvquota_operator.ports import ConflictError
from kvquota_operator.reconcile.observed import Kind, PoolKey

KVQUOTA: Final = f"/apis/{API_VERSION}"
PLURALS: Final[Mapping[Kind, str]] = {"ModelPool": "modelpools", "TenantQuota": "tenantquotas"}


class Statuses:
    """Writes them, and puts the answer among the objects."""

    def __init__(self, api: Api, objects: Objects) -> None:
        self._api = api
        self._objects = objects

    async def write(self, kind: Kind, namespace: str, name: str, wanted: Mapping[str, Any]) -> None:
        """Nothing is sent where nothing differs, or where the object is gone. Raises ClusterError."""
        stored = self._stored(kind, namespace, name)
        if stored is None:
            return
        changes = difference(stored.status, wanted)
        if not changes:
            return
        path = object_path(KVQUOTA, namespace, PLURALS[kind], name)
        self._objects.expect(kind, stored.uid, wanted)
        patch: Json = {"metadata": {"resourceVersion": stored.version}, "status": changes}
        try:
            self._objects.put(kind, await self._api.merge(f"{path}/status", patch))
        except ConflictError:
            self._objects.put(kind, await self._api.get(path))
            raise

    def _stored(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        if kind == "ModelPool":
            return self._objects.pool(PoolKey(namespace, name))
        return self._objects.quota(namespace, name)


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
