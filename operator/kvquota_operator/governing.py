"""One pass over one pool: look, decide, carry out, tell.

The pool's Secret comes first, then the durable copies and the pods side by side, the statuses last, from what the pods
have just said. Nothing here waits for a slow pod or a slow write longer than the settings say: it goes on as an errand.

Of a pool that is not there, the quotas are told so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from kvquota_api.pod_config import PodConfig
from kvquota_operator.errands import Errands, Target
from kvquota_operator.ports import Channel, Clock, Cluster, ClusterError
from kvquota_operator.reconcile.observed import Kind, Observed, Orphans, PodSeen, PoolKey
from kvquota_operator.reconcile.orphans import orphaned
from kvquota_operator.reconcile.plan import EventWanted, Plan, SecretWanted
from kvquota_operator.reconcile.writes import differs, due
from kvquota_operator.syncing import Conversation, Documents, PodMemory

OBSERVE: Final = Target("Observe")
SECRET: Final = Target("Secret")

Decide = Callable[[Observed, float, datetime], Plan]


@dataclass(frozen=True, slots=True)
class GovernorSettings:
    """`sync_seconds`: between two questions to the same pod. `patience_seconds`: what a pass waits for its errands."""

    sync_seconds: float = 2.0
    patience_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class _Status:
    kind: Kind
    name: str
    stored: Mapping[str, Any]
    wanted: Mapping[str, Any]

    @property
    def target(self) -> Target:
        return Target("Status", f"{self.kind}/{self.name}")


class Governor:
    """Keeps one pool as its objects say. `errands` are this pool's own."""

    def __init__(
        self,
        pool: PoolKey,
        *,
        cluster: Cluster,
        channel: Channel,
        clock: Clock,
        errands: Errands,
        decide: Decide,
        settings: GovernorSettings,
    ) -> None:
        self._pool = pool
        self._cluster = cluster
        self._channel = channel
        self._clock = clock
        self._errands = errands
        self._decide = decide
        self._settings = settings
        self._pods: dict[str, PodMemory] = {}
        self._places: dict[str, tuple[str | None, bool]] = {}
        self._written: dict[Target, float] = {}
        self._decided: tuple[Observed, Plan] | None = None

    async def govern(self) -> bool:
        """One pass. False when the pool is gone and all its quotas say so."""
        try:
            found = await self._look()
        except ClusterError as error:
            self._errands.failed(OBSERVE, error)
            return True
        self._errands.succeeded(OBSERVE)
        if isinstance(found, Orphans):
            return await self._part_with(found)
        await self._govern(found)
        return True

    async def _look(self) -> Observed | Orphans:
        observed = await self._cluster.observe(self._pool)
        return await self._cluster.orphans(self._pool) if observed is None else observed

    async def _part_with(self, orphans: Orphans) -> bool:
        """Tell the quotas that their pool is not there; whether some did not say so yet."""
        plan = orphaned(orphans, self._clock.now())
        statuses = _quota_statuses(orphans, plan.quota_statuses)
        self._tell(statuses, plan.events)
        await self._errands.settle(self._settings.patience_seconds)
        return any(differs(status.stored, status.wanted) for status in statuses)

    async def _govern(self, observed: Observed) -> None:
        self._remember(observed.pods)
        plan = self._standing(observed) or self._plan(observed)
        await self._carry_out(observed, plan)
        observed = _as_carried_out(observed, plan)
        plan = self._plan(observed)
        self._decided = (observed, plan)
        pool = _Status("ModelPool", self._pool.name, observed.pool_status, plan.pool_status)
        self._tell([pool, *_quota_statuses(observed, plan.quota_statuses)], plan.events)
        await self._errands.settle(self._settings.patience_seconds)

    def _standing(self, observed: Observed) -> Plan | None:
        """The last decision, where nothing changed since but the time: to decide is what a pass spends most on."""
        return self._decided[1] if self._decided is not None and self._decided[0] == observed else None

    def _plan(self, observed: Observed) -> Plan:
        reports = {uid: memory.seen for uid, memory in self._pods.items() if memory.seen is not None}
        seen = replace(observed, reports=reports, sync_seconds=self._settings.sync_seconds)
        return self._decide(seen, self._clock.monotonic(), self._clock.now())

    def _remember(self, pods: tuple[PodSeen, ...]) -> None:
        """Forget the pods that are gone, and give those that moved or became ready another chance at once."""
        self._pods = {pod.uid: self._pods.get(pod.uid) or PodMemory() for pod in pods}
        places = {pod.uid: (pod.ip, pod.ready) for pod in pods}
        for uid in places.keys() & self._places.keys():
            if places[uid] != self._places[uid]:
                self._errands.release(Target("Sync", uid))
        self._places = places

    async def _carry_out(self, observed: Observed, plan: Plan) -> None:
        if plan.secret is not None:
            self._keep_secret(observed, plan.secret)
            await self._errands.settle(self._settings.patience_seconds)
        for config in plan.configs:
            if observed.configs.get(config.pod.uid) != config:
                work = partial(self._cluster.apply_config, config)
                self._errands.start(Target("Config", config.pod.uid), work)
        if plan.secret is not None:
            self._ask_pods(observed, plan, plan.secret)
        await self._errands.settle(self._settings.patience_seconds)

    def _keep_secret(self, observed: Observed, wanted: SecretWanted) -> None:
        stored = observed.secret
        if stored is None or (stored.token, stored.pepper, stored.identity) != (
            wanted.token,
            wanted.pepper,
            wanted.identity,
        ):
            self._errands.start(SECRET, partial(self._cluster.apply_secret, self._pool, wanted))

    def _ask_pods(self, observed: Observed, plan: Plan, secret: SecretWanted) -> None:
        configs = {config.pod.uid: config for config in plan.configs}
        now = self._clock.monotonic()
        for pod in observed.pods:
            if not _may_be_asked(pod, configs):
                continue
            documents = Documents(configs.get(pod.uid) or observed.configs.get(pod.uid), secret.identity)
            memory = self._pods[pod.uid]
            if memory.due(documents, now, self._settings.sync_seconds * 0.9):
                talk = Conversation(pod, secret.token, documents, memory)
                self._errands.start(Target("Sync", pod.uid), partial(talk.hold, self._channel, self._clock))

    def _tell(self, statuses: Sequence[_Status], events: Sequence[EventWanted]) -> None:
        targets = {status.target for status in statuses}
        self._written = {target: at for target, at in self._written.items() if target in targets}
        now = self._clock.monotonic()
        for status in statuses:
            if due(status.stored, status.wanted, self._written.get(status.target), now):
                news = tuple(each for each in events if (each.kind, each.name) == (status.kind, status.name))
                self._errands.start(status.target, partial(self._write_status, status, news))

    async def _write_status(self, status: _Status, news: tuple[EventWanted, ...]) -> None:
        """Write, then tell: an event is a change of a stored status, so what was not stored was no event yet."""
        if status.kind == "ModelPool":
            await self._cluster.write_pool_status(self._pool, status.wanted)
        else:
            await self._cluster.write_quota_status(self._pool.namespace, status.name, status.wanted)
        self._written[status.target] = self._clock.monotonic()
        if news:
            self._errands.start(Target("Event", status.target.name), partial(self._record, news))

    async def _record(self, news: tuple[EventWanted, ...]) -> None:
        for event in news:
            await self._cluster.record(self._pool.namespace, event)


def _quota_statuses(found: Observed | Orphans, wanted: Mapping[str, Mapping[str, Any]]) -> list[_Status]:
    stored = {seen.quota.metadata.name: seen.status for seen in found.quotas}
    stored |= {seen.name: seen.status for seen in found.invalid}
    return [_Status("TenantQuota", name, stored.get(name, {}), status) for name, status in wanted.items()]


def _may_be_asked(pod: PodSeen, configs: Mapping[str, PodConfig]) -> bool:
    """A pod that another pool claims too is asked only where the decision gave it to this one."""
    return pod.governed and pod.ip is not None and (not pod.other_pools or pod.uid in configs)


def _as_carried_out(observed: Observed, plan: Plan) -> Observed:
    """As it will be stored, so that deciding once more does not give the same content another generation."""
    configs = {**observed.configs, **{config.pod.uid: config for config in plan.configs}}
    return replace(observed, configs=configs)
