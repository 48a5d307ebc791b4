"""The port Cluster over a real API server.

Pools and quotas come from events and lists; pods and durable copies are watched per pool; Secrets are read by name.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig
from kvquota_operator.adapters.api import CORE, INACTIVITY_SECONDS, Api, Json, object_path
from kvquota_operator.adapters.events import Events
from kvquota_operator.adapters.inbox import Inbox
from kvquota_operator.adapters.keys import KeyReader, Keys
from kvquota_operator.adapters.mends import Mends
from kvquota_operator.adapters.metrics import OperatorMetrics
from kvquota_operator.adapters.objects import Objects
from kvquota_operator.adapters.pool_secrets import PoolSecrets
from kvquota_operator.adapters.reads import Reads
from kvquota_operator.adapters.statuses import KVQUOTA, PLURALS, Statuses
from kvquota_operator.adapters.surroundings import Surroundings
from kvquota_operator.adapters.watch import Mirror
from kvquota_operator.logs import told
from kvquota_operator.ports import (
    Clock,
    ClusterError,
    ForbiddenError,
    NotOursError,
    PutBackError,
    RefusedError,
    VanishedError,
)
from kvquota_operator.reading.objects import StoredPool, read_model_config
from kvquota_operator.reading.secrets import jwks_ref, read_key_set, secret_refs
from kvquota_operator.reconcile.manifests import MAX_CONFIG_BYTES, MAX_IDENTITY_BYTES, pool_secret_name
from kvquota_operator.reconcile.observed import (
    InvalidSeen,
    KeyFound,
    KeyProblem,
    Kind,
    Observed,
    Orphans,
    PoolKey,
    QuotaSeen,
    SecretSeen,
)
from kvquota_operator.reconcile.plan import EventWanted, SecretWanted

RESYNC_SECONDS: Final = 60.0  # how late, at worst, a change is seen whose event was lost; deletions are lost by kopf
FIRST_RETRY_SECONDS: Final = 1.0  # while the API server, the rights or the CRDs are not there
LONGEST_RETRY_SECONDS: Final = 15.0
PUT_BACK_SECONDS: Final = 2 * INACTIVITY_SECONDS  # until the last watch has noticed what the first one has

T = TypeVar("T")
Touch = Callable[[PoolKey], None]

log = logging.getLogger(__name__)


class KubeCluster:
    """One API server, and the namespaces of it that are served; none means all. Used within `run`."""

    def __init__(
        self, api: Api, clock: Clock, *, namespaces: tuple[str, ...], events: Events, metrics: OperatorMetrics
    ) -> None:
        self._api = api
        self._clock = clock
        self._namespaces = namespaces or ("",)
        self._events = events
        self._metrics = metrics
        self._keys = KeyReader(api, clock)
        self._secrets = PoolSecrets(api, clock, mended=metrics.mended)
        self._configs: Reads[Json] = Reads(api, clock, lambda body: {"data": body.get("data")})
        self._objects = Objects(self._changed, self._edited)
        self._statuses = Statuses(api, self._objects, Mends(clock), mended=self._mended)
        self._around: dict[PoolKey, Surroundings] = {}
        self._touch: Touch = lambda _: None
        self._tasks = asyncio.TaskGroup()
        self._heard: dict[str, float] = {}
        self._tried_at = clock.monotonic()
        self._doubt = asyncio.Event()
        self._put_back_at = -math.inf
        self._put_back: Callable[[], None] = lambda: None
        self.inbox = Inbox()
        self.listed = asyncio.Event()

    async def run(self, touch: Touch, put_back: Callable[[], None] = lambda: None) -> None:
        """Keep what is watched, until cancelled. `touch` is called for every pool that something changed about.

        `put_back` is called where the API server's store was put back to an earlier state: who watches pools and
        quotas from a version that is not there any more hears nothing.
        """
        self._touch, self._put_back = touch, put_back
        async with self._tasks as tasks:
            tasks.create_task(self.inbox.run(self._take), name="inbox")
            tasks.create_task(self._resync(), name="resync")

    def keys(self) -> Iterable[PoolKey]:
        """All pools that are there, or that a quota names."""
        return self._objects.keys()

    def follow(self, pool: PoolKey) -> None:
        """Watch what belongs to the pool, or do no longer where it is gone. Writes nothing."""
        stored = self._objects.pool(pool)
        if stored is None:
            self._leave(pool)
        else:
            self._surroundings(pool).follow(stored)

    def watch_ages(self) -> dict[str, float]:
        """Seconds since the API server last said something of what is watched, by plural: of the most silent watch.

        Pools and quotas are told by kopf and listed once a minute besides.
        """
        now = self._clock.monotonic()
        heard = {**self._heard}
        for what, mirror in self._mirrors():
            heard[what] = min(heard.get(what, now), mirror.heard_at)
        return {what: now - at for what, at in heard.items()}

    def longest_stillness(self) -> float:
        """Seconds since the longest idle watch, or the list of pools and quotas, heard something or was tried."""
        alive = [max(mirror.heard_at, mirror.tried_at) for _, mirror in self._mirrors()]
        return self._clock.monotonic() - min([self._tried_at, *alive])

    async def observe(self, pool: PoolKey) -> Observed | None:
        stored = self._objects.pool(pool)
        if stored is None:
            self._leave(pool)
            return None
        around = self._surroundings(pool)
        around.follow(stored)
        await around.listed()
        quotas = list(self._objects.quotas(pool))
        valid = tuple(each.quota for each in quotas if isinstance(each.quota, QuotaSeen))
        secret = await self._told(stored, self._secret(stored))
        keys = await self._keys.read(pool.namespace, secret_refs(stored.pool, (each.quota for each in valid)))
        return Observed(
            key=pool,
            pool=stored.pool,
            pool_status=stored.status,
            quotas=valid,
            invalid=tuple(each.quota for each in quotas if isinstance(each.quota, InvalidSeen)),
            keys=keys,
            pods=around.pods(stored, self._objects.pools(pool.namespace)),
            configs=around.configs(),
            secret=secret,
            jwks=await self._jwks(stored, keys),
            model_config=await self._model_config(stored),
            max_config_bytes=MAX_CONFIG_BYTES,
            max_identity_bytes=MAX_IDENTITY_BYTES,
        )

    async def orphans(self, pool: PoolKey) -> Orphans:
        quotas = [each.quota for each in self._objects.quotas(pool)]
        return Orphans(
            key=pool,
            quotas=tuple(each for each in quotas if isinstance(each, QuotaSeen)),
            invalid=tuple(each for each in quotas if isinstance(each, InvalidSeen)),
            pools=tuple(sorted(each.key.name for each in self._objects.pools(pool.namespace))),
        )

    async def apply_config(self, config: PodConfig) -> None:
        pool = PoolKey(config.pool.namespace, config.pool.name)
        around, stored = self._around.get(pool), self._objects.pool(pool)
        if around is not None and stored is not None:
            await self._told(stored, around.apply_config(config))

    async def apply_secret(self, pool: PoolKey, wanted: SecretWanted) -> None:
        stored = self._objects.pool(pool)
        if stored is not None:
            await self._secrets.apply(stored, wanted)

    async def write_pool_status(self, pool: PoolKey, status: Mapping[str, Any]) -> None:
        await self._statuses.write("ModelPool", pool.namespace, pool.name, status)

    async def write_quota_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        await self._statuses.write("TenantQuota", namespace, name, status)

    async def record(self, namespace: str, event: EventWanted) -> None:
        await self._events.record(namespace, event)

    async def _mended(self, kind: Kind, namespace: str, event: EventWanted | None) -> None:
        self._metrics.mended(kind)
        if event is not None:
            with suppress(ClusterError):
                await self._events.record(namespace, event)

    async def _told(self, pool: StoredPool, work: Awaitable[T]) -> T:
        """What stands in the way and only a person can remove is told as an event of the pool."""
        try:
            return await work
        except NotOursError as error:
            await self._warn(pool, error.reason, str(error))
            raise

    async def _warn(self, pool: StoredPool, reason: str, message: str) -> None:
        event = EventWanted("ModelPool", pool.key.name, pool.uid, "Warning", reason, message)
        with suppress(ClusterError):
            await self._events.record(pool.key.namespace, event)

    async def _secret(self, pool: StoredPool) -> SecretSeen:
        """The pool's Secret. Without it no pass comes to a status: what refuses it is told as an event of the pool."""
        try:
            return await self._secrets.get(pool)
        except (RefusedError, ForbiddenError) as error:
            message = (
                f"Secret {pool_secret_name(pool.key.name)} cannot be read or made, and without it no pod is told"
                f" anything: {error}. Change the policy, quota or right that stands in the way"
            )
            await self._warn(pool, "SecretRefused", message)
            raise

    def _surroundings(self, pool: PoolKey) -> Surroundings:
        if pool not in self._around:
            self._around[pool] = Surroundings(
                self._api,
                self._clock,
                self._tasks,
                changed=lambda: self._touch(pool),
                restarted=self._watch_restarted,
                mended=self._metrics.mended,
            )
        return self._around[pool]

    def _watch_restarted(self, watched: str, reason: str) -> None:
        self._metrics.watch_restarted(watched, reason)
        if reason == PutBackError.reason and self._clock.monotonic() - self._put_back_at > PUT_BACK_SECONDS:
            self._doubt.set()

    def _leave(self, pool: PoolKey) -> None:
        around = self._around.pop(pool, None)
        if around is not None:
            around.stop()

    async def _model_config(self, stored: StoredPool) -> Mapping[str, Any] | None:
        ref = stored.pool.spec.model.config.config_map_ref if isinstance(stored.pool, ModelPool) else None
        if ref is None:
            return None
        path = object_path(CORE, stored.key.namespace, "configmaps", ref.name)
        return read_model_config(await self._configs.get(path), ref.key)

    async def _jwks(self, stored: StoredPool, keys: Keys) -> KeyFound | KeyProblem | None:
        ref = jwks_ref(stored.pool)
        if ref is None:
            return None
        if ref.config_map is None:
            return None if ref.secret is None else keys[ref.secret.name, ref.secret.key]
        path = object_path(CORE, stored.key.namespace, "configmaps", ref.config_map.name)
        return read_key_set(await self._configs.get(path), ref.config_map)

    def _changed(self, pool: PoolKey) -> None:
        self._touch(pool)

    def _edited(self, namespace: str) -> None:
        self._keys.expire(namespace)
        self._configs.expire(object_path(CORE, namespace, "configmaps") + "/")

    def _mirrors(self) -> Iterator[tuple[str, Mirror[Any]]]:
        for around in self._around.values():
            yield from around.mirrors().items()

    def _take(self, kind: Kind, event: str | None, body: Json) -> None:
        self._heard[PLURALS[kind]] = self._clock.monotonic()
        if event == "DELETED":
            self._objects.remove(kind, body)
        else:
            self._objects.put(kind, body)

    async def _resync(self) -> None:
        pause, said = FIRST_RETRY_SECONDS, ""
        while True:
            self._tried_at = self._clock.monotonic()
            try:
                put_back = await self._list_all()
            except ClusterError as error:
                if _advice(error) != said:
                    said = _advice(error)
                    log.warning(
                        "pools and quotas cannot be listed: %s", said, extra=told("list_failed", reason=error.reason)
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            pause, said = FIRST_RETRY_SECONDS, ""
            if put_back or self._doubt.is_set():
                self._begin_anew()
            if not self.listed.is_set():
                self.listed.set()
                await self._name_missing_namespaces()
            self._sweep()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), RESYNC_SECONDS)

    def _begin_anew(self) -> None:
        """The store was put back: what is known is what was listed by now."""
        self._doubt.clear()
        self._put_back_at = self._clock.monotonic()
        log.warning(
            "the API server's versions are behind what it said before: its store was put back to an earlier state;"
            " that is taken as it is, and all watches are begun anew",
            extra=told("store_put_back"),
        )
        for namespace in {pool.namespace for pool in self.keys()}:
            self._edited(namespace)
        self._put_back()

    async def _name_missing_namespaces(self) -> None:
        """The API server lists a namespace that does not exist as an empty one. Without the right to ask: silence."""
        for namespace in filter(self._objects.is_empty, filter(None, self._namespaces)):
            try:
                await self._api.get(f"{CORE}/namespaces/{namespace}")
            except VanishedError:
                log.warning(
                    "namespace %s does not exist (yet): create it or correct --namespace; waiting for it",
                    namespace,
                    extra=told("namespace_missing", namespace=namespace),
                )
            except ClusterError as error:
                log.debug(
                    "whether namespace %s exists cannot be asked: %s",
                    namespace,
                    error,
                    extra=told("namespace_unknown", namespace=namespace),
                )

    def _sweep(self) -> None:
        for reads in (self._keys, self._secrets, self._configs):
            reads.sweep()

    async def _list_all(self) -> bool:
        """Take pools and quotas at once: a pass between the two would see a pool that has no tenants.

        Whether they show that the store was put back.
        """
        self._objects.ask()
        lists = {kind: await self._list(plural) for kind, plural in PLURALS.items()}
        before = self._objects.changes
        self._heard = dict.fromkeys(PLURALS.values(), self._clock.monotonic())
        put_back = [self._objects.replace(kind, bodies, version) for kind, (bodies, version) in lists.items()]
        if self.listed.is_set() and self._objects.changes != before:
            self._metrics.resync_found()
        return any(put_back)

    async def _list(self, plural: str) -> tuple[list[Json], str]:
        """Lists of several namespaces are one list: each has what was there at its own version."""
        lists = [await self._api.list(object_path(KVQUOTA, each, plural)) for each in self._namespaces]
        return [body for bodies, _ in lists for body in bodies], min((version for _, version in lists), key=int)


def _advice(error: ClusterError) -> str:
    if isinstance(error, VanishedError):
        return f"{error}: the resources of kvquota.dev are not installed; run `kubectl apply -f crds/`"
    return str(error)
