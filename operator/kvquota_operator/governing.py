"""One pass over one pool: look, decide, carry out, tell.

The pool's Secret comes first, then the durable copies and the pods side by side, the statuses last, from what the pods
have just said. Nothing here waits for a slow pod or a slow write longer than the settings say: it goes on as an errand.

A config with a part of a limit over all pods is sent only once its durable copy is stored: an operator that starts
finds everything there that a pod may have been given.

Of a pool that is not there, the quotas are told so. A bug ends the pass in which it is met, and is told in an Event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import PodConfig, PoolIdentity
from kvquota_operator.errands import Errands, Target
from kvquota_operator.pacing import Pacing
from kvquota_operator.planner import Planner
from kvquota_operator.ports import Channel, Clock, Cluster, ClusterError, ClusterTimeoutError, UnreachableError
from kvquota_operator.reconcile.basis import PlanOf
from kvquota_operator.reconcile.configs import has_parts
from kvquota_operator.reconcile.observed import InvalidSeen, Kind, Observed, Orphans, PodSeen, PoolKey, written
from kvquota_operator.reconcile.orphans import orphaned
from kvquota_operator.reconcile.plan import EventWanted, Plan, SecretWanted
from kvquota_operator.reconcile.writes import NEVER, Written, differs, due
from kvquota_operator.syncing import Conversation, Documents, PodMemory

OBSERVE: Final = Target("Observe")
SECRET: Final = Target("Secret")
PASS: Final = Target("Pass")

Decide = Callable[[Observed, float, datetime, PlanOf], Plan]


@dataclass(frozen=True, slots=True)
class _Status:
    kind: Kind
    name: str
    stored: Mapping[str, Any]
    wanted: Mapping[str, Any]

    @property
    def target(self) -> Target:
        return Target("Status", f"{self.kind}/{self.name}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    status: _Status
    news: tuple[EventWanted, ...]


@dataclass(frozen=True, slots=True)
class _Untold:
    """What is to be told of an object, once `given` is the status that it has; `was_given`: whether it had it."""

    given: Mapping[str, Any]
    news: tuple[EventWanted, ...]
    was_given: bool


class Governor:
    """Keeps one pool as its objects say. `errands` are this pool's own; a pass waits `patience_seconds` for them."""

    def __init__(
        self,
        pool: PoolKey,
        *,
        cluster: Cluster,
        channel: Channel,
        clock: Clock,
        errands: Errands,
        decide: Decide,
        pacing: Pacing,
        patience_seconds: float,
    ) -> None:
        self._pool = pool
        self._cluster = cluster
        self._channel = channel
        self._clock = clock
        self._errands = errands
        self._decide = decide
        self._planner = Planner()
        self._pacing = pacing
        self._patience_seconds = patience_seconds
        self._pods: dict[str, PodMemory] = {}
        self._places: dict[str, tuple[str | None, bool]] = {}
        self._attempts: dict[str, PodConfig] = {}
        self._stored: dict[str, PodConfig] = {}
        self._written: dict[Target, Written] = {}
        self._wanted: dict[Target, _Wanted] = {}
        self._untold: dict[Target, _Untold] = {}
        self._decided: tuple[Observed, Plan] | None = None
        self._uid: str | None = None
        self._deciding_seconds = 0.0

    @property
    def deciding_seconds(self) -> float:
        """How long the decisions of the last pass took, during which nothing else ran."""
        return self._deciding_seconds

    def oldest_report(self) -> float | None:
        """When the pod that has been silent for longest was last heard; None where no pod ever was."""
        heard = (memory.seen.received_at for memory in self._pods.values() if memory.seen is not None)
        return min((at for at in heard if at is not None), default=None)

    async def govern(self) -> bool:
        """One pass. False when the pool is gone and all its quotas say so. A bug holds the target PASS back."""
        try:
            there = await self._pass()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and holds back this pool only
            self._errands.died(PASS, error)
            self._tell_of_a_bug(error)
            self._begin_anew()
            return True
        self._errands.recovered(PASS)
        return there

    def _begin_anew(self) -> None:
        """As after a start: what a pod said once is asked for again, since it may be what the bug was about."""
        self._pods, self._decided = {}, None

    def _tell_of_a_bug(self, error: Exception) -> None:
        if self._uid is not None:
            message = (
                f"a pass over this pool ended with {type(error).__name__}: its pods keep what they have, and no edit"
                " comes into force until it works again. This is a bug of the operator: report it with the traceback"
                " in its log"
            )
            news = (EventWanted("ModelPool", self._pool.name, self._uid, "Warning", "OperatorBug", message),)
            self._errands.start(Target("Event", PASS.kind), partial(self._record, news))

    async def _pass(self) -> bool:
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
        await self._errands.settle(self._patience_seconds)
        return any(differs(status.stored, status.wanted) for status in statuses)

    async def _govern(self, observed: Observed) -> None:
        self._uid = _uid(observed.pool)
        self._remember(observed.pods)
        self._deciding_seconds = 0.0
        plan = self._standing(observed) or await self._plan_in_turn(observed)
        await self._carry_out(observed, plan)
        observed = _as_carried_out(self._with_refusals(observed, plan), plan)
        plan = await self._plan_in_turn(observed)
        self._decided = (observed, plan)
        self._pacing.counts(self._pool, len(observed.pods), 1 + len(plan.quota_statuses))
        pool = _Status("ModelPool", self._pool.name, observed.pool_status, plan.pool_status)
        self._tell([pool, *_quota_statuses(observed, plan.quota_statuses)], plan.events)
        await self._errands.settle(self._patience_seconds)

    def _with_refusals(self, observed: Observed, plan: Plan) -> Observed:
        """`observed`, and what cannot be stored of `plan`."""
        refusals = {each.pod.uid: self._errands.refusal(_copy_of(each)) for each in self._unstored(observed, plan)}
        is_stored = plan.secret is None or plan.secret.is_stored_in(observed.secret)
        return replace(
            observed,
            refused={uid: why for uid, why in refusals.items() if why is not None},
            secret_refused=None if is_stored else self._errands.refusal(SECRET),
        )

    def _unstored(self, observed: Observed, plan: Plan) -> list[PodConfig]:
        """The configs of which no copy is known to be stored."""
        copies, attempts = observed.configs, self._attempts
        return [each for each in plan.configs if copies.get(each.pod.uid) != each or each.pod.uid in attempts]

    def _standing(self, observed: Observed) -> Plan | None:
        """The last decision, where nothing changed since but the time: to decide is what a pass spends most on."""
        if self._attempts or self._decided is None or not _alike(self._decided[0], observed):
            return None
        return self._decided[1]

    async def _plan_in_turn(self, observed: Observed) -> Plan:
        """One pool after the other, and what came in is read in between: to decide on many pods takes long."""
        async with self._pacing.deciding:
            await asyncio.sleep(0)
            return self._plan(observed)

    def _plan(self, observed: Observed) -> Plan:
        reports = {uid: memory.seen for uid, memory in self._pods.items() if memory.seen is not None}
        behind = {uid: memory.behind_since for uid, memory in self._pods.items()}
        seen = replace(
            observed,
            reports=reports,
            attempts=dict(self._attempts),
            behind={uid: since for uid, since in behind.items() if since is not None},
            sync_seconds=self._pacing.sync_seconds,
        )
        start = self._clock.monotonic()
        plan = self._decide(seen, start, self._clock.now(), self._planner)
        self._deciding_seconds += self._clock.monotonic() - start
        return plan

    def _remember(self, pods: tuple[PodSeen, ...]) -> None:
        """Forget the pods that are gone, and give those that moved or became ready another chance at once."""
        self._pods = {pod.uid: self._pods.get(pod.uid) or PodMemory() for pod in pods}
        places = {pod.uid: (pod.ip, pod.ready) for pod in pods}
        for uid in places.keys() & self._places.keys():
            if places[uid] != self._places[uid]:
                self._errands.release(Target("Sync", uid))
        self._places = places
        for copies in (self._attempts, self._stored):
            for uid in copies.keys() - places.keys():
                del copies[uid]

    async def _carry_out(self, observed: Observed, plan: Plan) -> None:
        if plan.secret is not None:
            self._keep_secret(observed, plan.secret)
            await self._errands.settle(self._patience_seconds)
        for config in self._unstored(observed, plan):
            self._errands.start(_copy_of(config), partial(self._store, config))
        if not all(self._may_be_sent(observed, config) for config in plan.configs):
            await self._errands.settle(self._patience_seconds)
        if plan.secret is not None:
            self._ask_pods(observed, plan, plan.secret)
        await self._errands.settle(self._patience_seconds)
        now = self._clock.monotonic()
        for config in plan.configs:
            self._pods[config.pod.uid].should_have(config, now)

    async def _store(self, config: PodConfig) -> None:
        """Store a durable copy. Until somebody says how that ended, it may be stored or not."""
        uid = config.pod.uid
        self._attempts[uid] = config
        try:
            await self._cluster.apply_config(config)
        except (UnreachableError, ClusterTimeoutError):
            raise
        except ClusterError:
            self._attempts.pop(uid, None)
            raise
        self._attempts.pop(uid, None)
        self._stored[uid] = config

    def _may_be_sent(self, observed: Observed, config: PodConfig) -> bool:
        """Whether the copy is stored, or need not be: neither it nor the one before has a part of a whole."""
        copy = observed.configs.get(config.pod.uid)
        if config in (copy, self._stored.get(config.pod.uid)):
            return True
        return not has_parts(config) and (copy is None or not has_parts(copy))

    def _documents(self, observed: Observed, config: PodConfig | None, identity: PoolIdentity) -> Documents:
        if config is not None and not self._may_be_sent(observed, config):
            config = None
        return Documents(config, identity)

    def _keep_secret(self, observed: Observed, wanted: SecretWanted) -> None:
        if not wanted.is_stored_in(observed.secret):
            self._errands.start(SECRET, partial(self._cluster.apply_secret, self._pool, wanted))

    def _ask_pods(self, observed: Observed, plan: Plan, secret: SecretWanted) -> None:
        configs = {config.pod.uid: config for config in plan.configs}
        now = self._clock.monotonic()
        for pod in observed.pods:
            if not _may_be_asked(pod, configs):
                continue
            config = configs.get(pod.uid) or observed.configs.get(pod.uid)
            documents = self._documents(observed, config, secret.identity)
            memory = self._pods[pod.uid]
            if memory.due(documents, now, self._pacing.sync_seconds * 0.9):
                talk = Conversation(pod, secret.token, documents, memory)
                self._errands.start(Target("Sync", pod.uid), partial(talk.hold, self._channel, self._clock))

    def _tell(self, statuses: Sequence[_Status], events: Sequence[EventWanted]) -> None:
        targets = {status.target for status in statuses}
        self._written = {target: at for target, at in self._written.items() if target in targets}
        self._untold = {target: each for target, each in self._untold.items() if target in targets}
        self._wanted = {status.target: _Wanted(status, _about(status, events)) for status in statuses}
        now, seconds = self._clock.monotonic(), self._pacing.write_seconds
        for status in statuses:
            if due(status.stored, status.wanted, self._written.get(status.target, NEVER), now, seconds):
                self._errands.start(status.target, partial(self._write_status, status.target))
            untold = self._untold.get(status.target)
            if untold is not None and (untold.was_given or not differs(status.stored, untold.given)):
                self._untold[status.target] = replace(untold, was_given=True)
                self._start_telling(status.target)

    async def _write_status(self, target: Target) -> None:
        """Write what is wanted by now, then tell: an event is a change of a stored status, so there was none before.

        Where nobody says how the write ended, a later pass sees whether the object has that status, and tells then.
        """
        if target not in self._wanted:
            return
        status, news = self._wanted[target].status, self._wanted[target].news
        try:
            if status.kind == "ModelPool":
                await self._cluster.write_pool_status(self._pool, status.wanted)
            else:
                await self._cluster.write_quota_status(self._pool.namespace, status.name, status.wanted)
        except (UnreachableError, ClusterTimeoutError):
            self._expect(target, status.wanted, news, was_given=False)
            raise
        self._written[status.target] = self._written.get(status.target, NEVER).again(self._clock.monotonic())
        self._expect(target, status.wanted, news, was_given=True)
        self._start_telling(target)

    def _expect(
        self, target: Target, given: Mapping[str, Any], news: tuple[EventWanted, ...], *, was_given: bool
    ) -> None:
        """Without news, those of a status that the object had are still to be told."""
        before = self._untold.pop(target, None)
        if news:
            self._untold[target] = _Untold(given, news, was_given)
        elif before is not None and before.was_given:
            self._untold[target] = before

    def _start_telling(self, target: Target) -> None:
        if target in self._untold:
            self._errands.start(Target("Event", target.name), partial(self._tell_of, target))

    async def _tell_of(self, target: Target) -> None:
        """One sentence after the other: what was told is not told again where the next one fails."""
        while (untold := self._untold.get(target)) is not None and untold.was_given:
            await self._cluster.record(self._pool.namespace, untold.news[0])
            now = self._untold.get(target)
            if now is None or now.news is not untold.news:
                continue
            if len(now.news) > 1:
                self._untold[target] = replace(now, news=now.news[1:])
            else:
                del self._untold[target]

    async def _record(self, news: tuple[EventWanted, ...]) -> None:
        for event in news:
            await self._cluster.record(self._pool.namespace, event)


def _about(status: _Status, events: Sequence[EventWanted]) -> tuple[EventWanted, ...]:
    return tuple(each for each in events if (each.kind, each.name) == (status.kind, status.name))


def _copy_of(config: PodConfig) -> Target:
    return Target("Config", config.pod.uid)


def _uid(pool: ModelPool | InvalidSeen) -> str:
    return pool.uid if isinstance(pool, InvalidSeen) else pool.metadata.uid


def _alike(one: Observed, other: Observed) -> bool:
    """Whether they differ in statuses at most. Of what pods enforce, these decide only which plan was the last valid
    one, as this pool's own decision said."""
    rest = replace(one, pool=other.pool, pool_status=other.pool_status, quotas=other.quotas, invalid=other.invalid)
    return rest == other and _written(one) == _written(other)


def _written(observed: Observed) -> list[object]:
    """What people write of the pool and its quotas: all but the statuses."""
    return [written(each) for each in (observed.pool, *observed.invalid, *(each.quota for each in observed.quotas))]


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
