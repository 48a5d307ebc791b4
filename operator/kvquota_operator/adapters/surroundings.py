"""What belongs to one pool and is watched for it alone: its pods and the durable copies of their configs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from kvquota_api.meta import ADMIN_PORT, CONFIG_VOLUME, POOL_LABEL
from kvquota_api.model_pool import ModelPool, PodSelector
from kvquota_api.pod_config import PodConfig, PodRef
from kvquota_operator.adapters.api import CORE, Api, Json, object_path
from kvquota_operator.adapters.mends import Mends
from kvquota_operator.adapters.watch import Collection, Mirror
from kvquota_operator.ports import Clock, ClusterTimeoutError, ConflictError, NotOursError
from kvquota_operator.reading.objects import StoredPool
from kvquota_operator.reading.pods import PodRecord, left_behind, query, read_pod, selects
from kvquota_operator.reading.sharing import Sharing
from kvquota_operator.reading.vanished import Vanished
from kvquota_operator.reconcile.configs import has_parts
from kvquota_operator.reconcile.manifests import config_from_configmap, config_map, is_ours, pool_label
from kvquota_operator.reconcile.observed import PodSeen, PoolClaim
from kvquota_operator.reconcile.pods import pool_claim

T = TypeVar("T")
FIRST_LIST_SECONDS: Final = 10.0  # longer than a list of 5,000 pods takes; then the pass fails and is tried again


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """A durable copy; `pod` is the uid of the pod that owns it, `config` is None where it cannot be read.

    `version` is its resourceVersion, which alone makes no difference.
    """

    pod: str
    name: str
    config: PodConfig | None
    version: str = field(compare=False, default="")


@dataclass(frozen=True, slots=True)
class _Claimants:
    """The other pools of the namespace, and the admin port of this one: what is not in a pod itself."""

    selectors: tuple[tuple[PodSelector, PoolClaim], ...] = ()
    port: int = ADMIN_PORT

    def seen(self, record: PodRecord) -> PodSeen:
        claims = sorted(claim for selector, claim in self.selectors if selects(selector, record.labels))
        return replace(record.seen, other_pools=tuple(claims), admin_port=self.port)


class Surroundings:
    """Mirrors of one pool, kept by tasks of `tasks` until `stop`.

    `mended` is called with "ConfigMap" where a durable copy was written over that somebody else had changed or deleted.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        *,
        changed: Callable[[], None],
        restarted: Callable[[str, str], None],
        mended: Callable[[str], None],
    ) -> None:
        self._api = api
        self._clock = clock
        self._tasks = tasks
        self._changed = changed
        self._restarted = restarted
        self._mended = mended
        self._mends = Mends(clock)
        self._pods: Mirror[PodRecord] | None = None
        self._claimants = _Claimants()
        self._seen: dict[str, tuple[PodRecord, PodSeen]] = {}
        self._configs: Mirror[StoredConfig] | None = None
        self._copies: dict[tuple[str, str], StoredConfig] = {}
        self._collected: dict[str, PodConfig] = {}  # copies that went before their pods
        self._vanished = Vanished()
        self._over: set[str] = set()  # pods that have ended before their copies were collected
        self._expected: dict[str, PodConfig] = {}
        self._sharing = Sharing()
        self._running: dict[str, asyncio.Task[None]] = {}

    def follow(self, stored: StoredPool) -> None:
        """Watch what `stored` selects."""
        namespace = stored.key.namespace
        pods = Collection(object_path(CORE, namespace, "pods"), _selector(stored))
        configs = Collection(object_path(CORE, namespace, "configmaps"), f"{POOL_LABEL}={pool_label(stored.key.name)}")
        if pods.selector and (self._pods is None or self._pods.collection != pods):
            self._pods = self._start("pods", pods, read_pod, self._pod_replaced, ended=self._pod_ended)
            self._collected.clear()
        if self._configs is None:
            self._configs = self._start("configmaps", configs, self._read_config, self._config_replaced)

    def stop(self) -> None:
        """End the watches."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    def pods(self, stored: StoredPool, pools: Iterable[StoredPool]) -> tuple[PodSeen, ...]:
        """The pods, each with the other pools of the namespace that select it too; also those that may work on though
        their objects are gone."""
        if self._pods is None:
            return ()
        others = [
            (each.key, each.pool) for each in pools if each.key != stored.key and isinstance(each.pool, ModelPool)
        ]
        port = stored.pool.spec.sidecar.admin_port if isinstance(stored.pool, ModelPool) else ADMIN_PORT
        claimants = _Claimants(tuple((pool.spec.selector, pool_claim(key, pool)) for key, pool in others), port)
        if claimants != self._claimants:
            self._claimants, self._seen = claimants, {}
        there = self._pods.items
        self._find_left(self._pods)
        self._vanished.sweep(self._clock.monotonic(), there)
        records = {**there, **self._vanished.records}
        self._seen = {uid: self._seen_again(uid, record) for uid, record in records.items()}
        return tuple(seen for _, seen in self._seen.values())

    def _find_left(self, pods: Mirror[PodRecord]) -> None:
        """As long as a pod is there, wherever its labels have taken it, the copy that it owns is too."""
        known = self._vanished.records
        for (uid, name), copy in self._copies.items():
            if not (pods.shelf.knows(uid) or uid in known or uid in self._over) and copy.config is not None:
                record = left_behind(copy.config, name)
                self._vanished.keep(record, copy.config, self._clock.monotonic(), stored=True)

    def _seen_again(self, uid: str, record: PodRecord) -> tuple[PodRecord, PodSeen]:
        """To ask every other pool about every pod in every pass would cost more than the rest of the look."""
        known = self._seen.get(uid)
        return known if known is not None and known[0] is record else (record, self._claimants.seen(record))

    def configs(self) -> dict[str, PodConfig]:
        """The durable copies that can be read, by the uid of their pod: of two, the one that the pod mounts."""
        stored = {
            pod: copy.config
            for (pod, name), copy in self._copies.items()
            if copy.config is not None and name == (self._mounted(pod) or name)
        }
        return {**{copy.pod.uid: copy for copy in self._vanished.copies()}, **stored}

    def _pod_replaced(self, before: PodRecord | None, after: PodRecord | None) -> None:
        if before is not None and after is None:
            self._mends.forget(before.seen.uid)
            self._collected.pop(before.seen.uid, None)
            if self._has_copy(before.seen.uid) and before.seen.uid not in self._vanished.records:
                self._over.add(before.seen.uid)
        if after is not None:
            self._over.discard(after.seen.uid)
        self._told(before, after)

    def _pod_ended(self, record: PodRecord) -> None:
        if record.may_run:
            uid, copies = record.seen.uid, {**self._collected, **self.configs()}
            self._vanished.keep(record, copies.get(uid), self._clock.monotonic(), stored=self._has_copy(uid))

    def _has_copy(self, pod: str) -> bool:
        return any(owner == pod for owner, _ in self._copies)

    async def apply_config(self, config: PodConfig) -> None:
        """Store a durable copy, unless somebody else has an object of its name. Raises ClusterError.

        It replaces the copy that is known and no other: a write that comes late never undoes a newer one.
        """
        body = config_map(config, self._mounted(config.pod.uid))
        name = body["metadata"]["name"]
        collection = object_path(CORE, config.pod.namespace, "configmaps")
        path = f"{collection}/{name}"
        known = self._copies.get((config.pod.uid, name))
        foreign = self._mends.is_foreign(config.pod.uid, None if known is None else known.config)
        self._expected[config.pod.uid] = config
        self._mends.tries(config.pod.uid, config)
        if known is None:
            answer = await self._create(collection, path, config, body)
        else:
            answer = await self._api.apply(path, _over(body, known.version))
        if self._configs is not None:
            self._configs.shelf.put(answer)
        self._mends.gave(config.pod.uid, config)
        if foreign:
            self._mended("ConfigMap")

    def _mounted(self, pod: str) -> str | None:
        record = None if self._pods is None else self._pods.items.get(pod)
        return None if record is None else record.seen.config_map

    async def _create(self, collection: str, path: str, config: PodConfig, body: Json) -> Json:
        try:
            return await self._api.create(collection, body)
        except ConflictError:
            there = await self._api.get(path)
            if not is_ours(there, config.pod):
                raise NotOursError(_in_the_way(there, config.pod)) from None
            return await self._api.apply(path, _over(body, there["metadata"]["resourceVersion"]))

    def _read_config(self, body: Json) -> StoredConfig | None:
        """A copy that is as it was written is that very config, and others have their parts in common."""
        copy = _copy_in(body)
        if copy is None or copy.config is None:
            return copy
        expected = self._expected.get(copy.pod)
        config = expected if copy.config == expected else self._sharing.shared(copy.config)
        return replace(copy, config=config)

    def _config_replaced(self, before: StoredConfig | None, after: StoredConfig | None) -> None:
        if before is not None:
            self._copies.pop((before.pod, before.name), None)
            if after is None:
                self._expected.pop(before.pod, None)
                self._over.discard(before.pod)
                self._vanished.collected(before.pod, self._clock.monotonic())
                if before.config is not None and self._pods is not None and before.pod in self._pods.items:
                    self._collected[before.pod] = before.config
        if after is not None:
            self._copies[after.pod, after.name] = after
            self._collected.pop(after.pod, None)
            if after.config is not None:
                self._vanished.follow(after.config)
        if after is None or not self._is_echo(after):
            self._told(before, after)

    def _is_echo(self, copy: StoredConfig) -> bool:
        """Whether it is as it was just written: no news, except of a part of a whole, which is waited for."""
        return copy.config is not None and copy.config == self._expected.get(copy.pod) and not has_parts(copy.config)

    def _told(self, before: object, after: object) -> None:
        """Two equal objects are no news, and nothing and nothing is the end of the first list."""
        if before != after or before is None:
            self._changed()

    def mirrors(self) -> Mapping[str, Mirror[Any]]:
        """What is watched, by its plural."""
        both = {"pods": self._pods, "configmaps": self._configs}
        return {what: mirror for what, mirror in both.items() if mirror is not None}

    async def listed(self) -> None:
        """Wait for the first lists of what is followed. Raises ClusterTimeoutError."""
        try:
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                for mirror in self.mirrors().values():
                    await mirror.listed.wait()
        except TimeoutError as error:
            raise ClusterTimeoutError("the first list of the pool's pods and configs is not there yet") from error

    def _start(
        self,
        what: str,
        collection: Collection,
        parse: Callable[[Json], T | None],
        replaced: Callable[[T | None, T | None], None],
        ended: Callable[[T], None] | None = None,
    ) -> Mirror[T]:
        if what in self._running:
            self._running.pop(what).cancel()
        mirror = Mirror(
            self._api,
            self._clock,
            collection,
            parse=parse,
            replaced=replaced,
            restarted=lambda reason: self._restarted(what, reason),
            ended=ended,
        )
        self._running[what] = self._tasks.create_task(mirror.run(), name=f"watch {collection.path}")
        return mirror


def _copy_in(body: Json) -> StoredConfig | None:
    """None where the object is not the durable copy of the pod that owns it, whatever its label says."""
    meta = body["metadata"]
    for owner in meta.get("ownerReferences") or []:
        pod = PodRef(namespace=meta["namespace"], name=owner["name"], uid=owner["uid"])
        if owner["kind"] == "Pod" and is_ours(body, pod):
            config = config_from_configmap(body)
            read = config if isinstance(config, PodConfig) else None
            return StoredConfig(pod.uid, meta["name"], read, meta["resourceVersion"])
    return None


def _in_the_way(there: Json, pod: PodRef) -> str:
    """What to do about a ConfigMap of the wanted name: the config of a pod that runs is nothing to delete."""
    name = there["metadata"]["name"]
    owners = there["metadata"].get("ownerReferences") or []
    other = next((each["name"] for each in owners if each["kind"] == "Pod" and each["name"] != pod.name), None)
    if other is None:
        return f"ConfigMap {name} exists and is not owned by pod {pod.name}: delete it"
    return (
        f"ConfigMap {name} has the config of pod {other}, and pod {pod.name} mounts it too, as a copy of that pod's"
        f" manifest does: leave the ConfigMap, and make pod {pod.name} anew without the volume {CONFIG_VOLUME}"
    )


def _over(body: Json, version: str) -> Json:
    """`body`, to be stored only where the object still is at `version`."""
    return {**body, "metadata": {**body["metadata"], "resourceVersion": version}}


def _selector(stored: StoredPool) -> str:
    """Of a pool that does not parse, what can be made out of it; empty where that is nothing."""
    if isinstance(stored.pool, ModelPool):
        return query(stored.pool.spec.selector)
    return ",".join(f"{key}={value}" for key, value in sorted(stored.labels.items()))
