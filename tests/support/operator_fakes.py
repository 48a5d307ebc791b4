"""A cluster and pods in memory for tests of the controller, and builders of what they hold.

`Journal.lines` says in order what the controller did; a test compares them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from kvquota_api.memory.blocks import LayerGroup
from kvquota_api.pod_config import (
    KvPlan,
    Ladder,
    PodConfig,
    PodRef,
    PoolIdentity,
    PoolRef,
    TenantShare,
    decode_config,
    decode_identity,
    sealed,
)
from kvquota_api.usage import EngineUsage, InForce, SyncRequest, UsageReport
from kvquota_operator.ports import UnreachableError
from kvquota_operator.reconcile.basis import PlanOf
from kvquota_operator.reconcile.observed import InvalidSeen, Kind, Observed, Orphans, PodSeen, PoolKey, SecretSeen
from kvquota_operator.reconcile.plan import EventWanted, Plan, SecretWanted

POOL = PoolKey("inference", "llama-8b")
TOKEN = "t" * 64
PEPPER = "p" * 64


def pod(name: str = "pod-0", *, ip: str | None = "10.0.0.1", ready: bool = True, governed: bool = True) -> PodSeen:
    return PodSeen(POOL.namespace, name, f"uid-{name}", ip, ready=ready, deleting=False, governed=governed)


def part(hard_blocks: int, whole: int) -> TenantShare:
    """What one pod has of a limit over all pods."""
    return TenantShare(
        id="inference/search",
        quota="search",
        priority=0,
        soft_blocks=0,
        hard_blocks=hard_blocks,
        whole_hard_blocks=whole,
    )


def config(
    name: str = "pod-0", *, generation: int = 1, cap: int = 100, tenants: tuple[TenantShare, ...] = ()
) -> PodConfig:
    return sealed(
        PodConfig(
            generation=generation,
            digest="",
            pod=PodRef(namespace=POOL.namespace, name=name, uid=f"uid-{name}"),
            pool=PoolRef(namespace=POOL.namespace, name=POOL.name),
            model="llama",
            engine_type="vLLM",
            kv=KvPlan(
                cap_blocks=cap,
                null_blocks=1,
                block_tokens=16,
                bytes_per_block=2**21,
                max_model_len=8192,
                groups=(LayerGroup(kind="Full", block_tokens=16),),
            ),
            ladder=Ladder(),
            tenants=tenants,
        )
    )


def identity(**keys: str) -> PoolIdentity:
    return sealed(PoolIdentity(digest="", pepper=PEPPER, api_keys={key.ljust(64, "0"): keys[key] for key in keys}))


def report(
    *, epoch: str = "e1", sequence: int = 1, started_at: float = 1.0, in_force: InForce | None = None
) -> UsageReport:
    return UsageReport(
        epoch=epoch, sequence=sequence, started_at=started_at, in_force=in_force or InForce(), engine=EngineUsage()
    )


def event(kind: Kind = "TenantQuota", name: str = "search", reason: str = "DuplicateTenant") -> EventWanted:
    return EventWanted(kind, name, f"uid-{name}", "Warning", reason, f"{reason} of {name}")


@dataclass
class Journal:
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def taken(self) -> list[str]:
        """The lines since the last call."""
        lines, self.lines = self.lines, []
        return lines


@dataclass
class FakeCluster:
    """What is written is observed from then on. `edition`: count it up where the pool is edited.

    `failures`: by method, raised once each, in order. `answers_lost`: how many statuses of quotas are stored without
    that anybody says so.
    """

    journal: Journal
    there: bool = True
    edition: int = 1
    pods: tuple[PodSeen, ...] = ()
    secret: SecretSeen | None = field(default_factory=lambda: SecretSeen(TOKEN, PEPPER, identity()))
    configs: dict[str, PodConfig] = field(default_factory=dict)
    pool_status: Mapping[str, Any] = field(default_factory=dict)
    quota_statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[str, list[BaseException]] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)
    answers_lost: int = 0

    async def observe(self, pool: PoolKey) -> Observed | None:
        await self._happens("observe", "observe")
        if not self.there:
            return None
        stored = InvalidSeen("ModelPool", pool.name, "uid-pool", self.edition, "not looked at", {})
        return Observed(
            key=pool,
            pool=stored,
            pool_status=self.pool_status,
            invalid=self._quotas(),
            pods=self.pods,
            configs=dict(self.configs),
            secret=self.secret,
        )

    async def orphans(self, pool: PoolKey) -> Orphans:
        return Orphans(key=pool, invalid=self._quotas())

    def _quotas(self) -> tuple[InvalidSeen, ...]:
        return tuple(
            InvalidSeen("TenantQuota", name, f"uid-{name}", 1, "", status)
            for name, status in self.quota_statuses.items()
        )

    async def apply_config(self, config: PodConfig) -> None:
        await self._happens("config", f"config {config.pod.name} generation {config.generation}")
        self.configs[config.pod.uid] = config

    async def apply_secret(self, pool: PoolKey, wanted: SecretWanted) -> None:
        await self._happens("secret", "secret")
        self.secret = SecretSeen(wanted.token, wanted.pepper, wanted.identity)

    async def write_pool_status(self, pool: PoolKey, status: Mapping[str, Any]) -> None:
        await self._happens("pool status", "pool status")
        self.pool_status = status

    async def write_quota_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        await self._happens("quota status", f"quota status {name}")
        self.quota_statuses[name] = status
        if self.answers_lost:
            self.answers_lost -= 1
            raise UnreachableError("the connection broke")

    async def record(self, namespace: str, event: EventWanted) -> None:
        await self._happens("event", f"event {event.reason} of {event.name}")

    async def _happens(self, method: str, line: str) -> None:
        self.journal(line)
        await asyncio.sleep(self.delays.get(method, 0.0))
        if self.failures.get(method):
            raise self.failures[method].pop(0)


@dataclass
class FakePod:
    """A sidecar. `refuses`: it keeps what it has; `failures`: raised once each, in order."""

    in_force: InForce = field(default_factory=InForce)
    refuses: bool = False
    delay: float = 0.0
    failures: list[BaseException] = field(default_factory=list)
    sequence: int = 0

    def answer(self, request: SyncRequest) -> UsageReport:
        self.sequence += 1
        if not self.refuses:
            self._take(request)
        return report(sequence=self.sequence, in_force=self.in_force)

    def _take(self, request: SyncRequest) -> None:
        if request.config:
            taken = decode_config(bytes(request.config))
            self.in_force = msgspec.structs.replace(
                self.in_force, generation=taken.generation, config_digest=taken.digest, source="Channel"
            )
        if request.identity:
            digest = decode_identity(bytes(request.identity)).digest
            self.in_force = msgspec.structs.replace(self.in_force, identity_digest=digest)


@dataclass
class FakeChannel:
    journal: Journal
    pods: dict[str, FakePod] = field(default_factory=dict)

    async def sync(self, pod: PodSeen, token: str, request: SyncRequest) -> UsageReport:
        carried = [name for name, part in (("config", request.config), ("identity", request.identity)) if part]
        self.journal(f"sync {pod.name}" + "".join(f" +{name}" for name in carried))
        there = self.pods[pod.name]
        await asyncio.sleep(there.delay)
        if there.failures:
            raise there.failures.pop(0)
        return there.answer(request)


@dataclass
class Script:
    """Decides what it is told to, and keeps what it was shown. Generations follow the durable copies."""

    caps: dict[str, int] = field(default_factory=dict)
    tenants: tuple[TenantShare, ...] = ()
    identity: PoolIdentity = field(default_factory=identity)
    pool_status: dict[str, Any] = field(default_factory=dict)
    quota_statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: tuple[EventWanted, ...] = ()
    shown: list[Observed] = field(default_factory=list)
    planners: list[PlanOf] = field(default_factory=list)
    also: Callable[[Observed], None] = lambda _: None

    def __call__(self, observed: Observed, now: float, wall: datetime, plan_of: PlanOf) -> Plan:
        self.shown.append(observed)
        self.planners.append(plan_of)
        self.also(observed)
        secret = observed.secret
        return Plan(
            configs=tuple(self._config(observed, name, cap) for name, cap in self.caps.items()),
            secret=None if secret is None else SecretWanted(secret.token, secret.pepper, self.identity),
            pool_status=self.pool_status,
            quota_statuses=self.quota_statuses,
            events=self.events,
        )

    def _config(self, observed: Observed, name: str, cap: int) -> PodConfig:
        stored = observed.configs.get(f"uid-{name}")
        wanted = config(name, cap=cap, tenants=self.tenants)
        if stored is not None and stored.digest == wanted.digest:
            return stored
        return msgspec.structs.replace(wanted, generation=1 + (stored.generation if stored else 0))


def moved(seen: PodSeen, **changes: Any) -> PodSeen:
    return replace(seen, **changes)
