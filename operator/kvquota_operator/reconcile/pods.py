"""Which pods count, and what is known of each.

Decides which pods a pool governs, which of them report, and how many blocks each can hand out. Pure.

Invariants:

1. A pod counts when it carries the sidecar, is not being deleted, and no older pool selects it too. One that is being
   deleted gets nothing new, and still holds what it has until it is gone (`kvquota_operator.reading.vanished`).
2. A report counts for as long as it is fresh; an old one still says how large the engine came up.
3. Nothing is concluded from the silence of a pod that the channel did not try yet. Such a pod that ran before is
   awaited: what its engine came up with will be known in a moment.

It does not know what is in a config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvquota_api.amounts import Blocks
from kvquota_api.model_pool import ModelPool
from kvquota_api.pod_config import KvPlan
from kvquota_api.usage import InForce, UsageReport
from kvquota_operator.planning.blocks import usable_blocks
from kvquota_operator.reconcile.observed import InvalidSeen, Observed, PodSeen, PoolClaim, PoolKey, ReportSeen

STALE_PERIODS: Final = 3  # of the channel: two may fail before anybody is told
STALE_SECONDS: Final = 10.0  # at least, so that a fast channel does not call a busy pod stale
_NEVER: Final = ReportSeen()
_NO_CONFIG: Final = InForce()


@dataclass(frozen=True, slots=True)
class LivePod:
    """A governed pod. `report`: the last good one however old; `fresh`: it is young enough for its gauges to count.

    `asked`: the channel tried it, since this operator runs. `awaited`: it ran before, and will be asked in a moment.
    `error`: why the channel got no report, if so.
    """

    pod: PodSeen
    report: UsageReport | None
    fresh: bool
    asked: bool
    awaited: bool
    error: str | None

    @property
    def in_force(self) -> InForce:
        """What the pod enforces, by its last report."""
        return _NO_CONFIG if self.report is None else self.report.in_force

    @property
    def has_run(self) -> bool:
        """Whether it is known to run, or to have run: it reported, or is ready, which outlives this operator."""
        return self.report is not None or self.pod.ready

    def usable(self, kv: KvPlan) -> Blocks:
        """U of this pod's engine: by its last report, until then as planned."""
        return usable_blocks(kv, None if self.report is None else self.report.engine.blocks)


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """`live` by name; `ungoverned`: selected and without the sidecar; `disputed`: selected by several pools.

    `leaving`: governed, and being deleted.
    """

    live: tuple[LivePod, ...]
    ungoverned: tuple[PodSeen, ...]
    disputed: tuple[PodSeen, ...]
    leaving: tuple[LivePod, ...] = ()

    @property
    def fresh(self) -> tuple[UsageReport, ...]:
        """The reports that count, in the order of the pods."""
        return tuple(each.report for each in self.live if each.fresh and each.report is not None)

    @property
    def stale(self) -> tuple[LivePod, ...]:
        """Pods that were asked, should report and do not: those that never did should once they are ready."""
        silent = [each for each in self.live if each.asked and not each.fresh]
        return tuple(each for each in silent if each.pod.ready or each.report is not None)


def pods_seen(observed: Observed, now: float) -> PodsSeen:
    """The pods of the pool, sorted out; `now` on the clock of the reports."""
    in_order = sorted(observed.pods, key=lambda pod: (pod.name, pod.uid))
    claim = pool_claim(observed.key, observed.pool)
    ours = [pod for pod in in_order if all(claim < other for other in pod.other_pools)]
    return PodsSeen(
        live=tuple(_live(pod, observed, now) for pod in ours if pod.governed and not pod.deleting),
        ungoverned=tuple(pod for pod in ours if not pod.governed and not pod.deleting),
        disputed=tuple(pod for pod in in_order if pod.other_pools and not pod.deleting),
        leaving=tuple(_live(pod, observed, now) for pod in ours if pod.governed and pod.deleting),
    )


def pool_claim(key: PoolKey, pool: ModelPool | InvalidSeen) -> PoolClaim:
    """A pool's own claim on a pod; a pool whose age is not known counts as the oldest."""
    created = None if isinstance(pool, InvalidSeen) else pool.metadata.creation_timestamp
    return PoolClaim(created.strftime("%Y-%m-%dT%H:%M:%SZ") if created else "", key.name)


def _live(pod: PodSeen, observed: Observed, now: float) -> LivePod:
    seen = observed.reports.get(pod.uid)
    last = seen or _NEVER
    limit = max(STALE_PERIODS * observed.sync_seconds, STALE_SECONDS)
    return LivePod(
        pod=pod,
        report=last.report,
        fresh=last.report is not None and last.received_at is not None and now - last.received_at < limit,
        asked=seen is not None,
        awaited=seen is None and pod.ready and pod.ip is not None and pod.uid in observed.configs,
        error=last.error,
    )
