"""The keys that pools and quotas name, read from their Secrets by name: the operator may not list Secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from kvquota_operator.adapters.api import CORE, Api, object_path
from kvquota_operator.adapters.reads import Reads
from kvquota_operator.ports import Clock
from kvquota_operator.reading.secrets import KeySecret, keep_key_secret, read_key
from kvquota_operator.reconcile.observed import KeyFound, KeyProblem

Keys = Mapping[tuple[str, str], KeyFound | KeyProblem]


class KeyReader:
    """Keys of all namespaces."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._secrets: Reads[KeySecret] = Reads(api, clock, keep_key_secret)

    async def read(self, namespace: str, wanted: Iterable[tuple[str, str]]) -> Keys:
        """By (Secret, key in it). Raises ClusterError where a Secret was never read and cannot be read now."""
        wanted = sorted(wanted)
        names = sorted({name for name, _ in wanted})
        found = await asyncio.gather(*(self._secrets.get(object_path(CORE, namespace, "secrets", n)) for n in names))
        secrets = dict(zip(names, found, strict=True))
        return {(name, key): read_key(secrets[name], name, key) for name, key in wanted}

    def expire(self, namespace: str) -> None:
        """A pool or a quota of the namespace was edited: read its keys anew."""
        self._secrets.expire(object_path(CORE, namespace, "secrets") + "/")

    def sweep(self) -> None:
        """Forget Secrets that nothing names any more."""
        self._secrets.sweep()
