"""What the benchmark asks of the operator: which pods there are, and what their sidecars say at which moment.

Pure. Both the process that plays the sidecars and the one that judges the statuses reckon with it, on one clock.

Invariants:

1. The number in flight of a tenant on a pod is a marker: it grows by MARKER_STEP, on all pods at once, every
   STEP_SECONDS of a moving course, so that a status says of which moment it is. A step is far beyond any dead band.
2. The other numbers of every tenant change every second of a moving course, and none of them while it stands still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvquota_api.usage import Counts, Refusal, TenantUsage

STEP_SECONDS: Final = 20.0  # between two steps of one marker: longer than a status is allowed to be late
FIRST_MARKER: Final = 20
MARKER_STEP: Final = 10
REFUSED: Final = "tenant_kv_quota_exceeded"


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many there are of what. Pods and quotas are spread over the pools evenly.

    `scope_pool`: the percent of the quotas whose limits hold over all pods of their pool together.
    """

    pods: int
    quotas: int
    pools: int
    scope_pool: int = 0

    def pods_of(self, pool: int) -> range:
        """Numbers of the pods of one pool."""
        return _part(self.pods, self.pools, pool)

    def quotas_of(self, pool: int) -> range:
        """Numbers of the quotas of one pool."""
        return _part(self.quotas, self.pools, pool)

    def is_of_pool(self, quota: int) -> bool:
        """Whether the limits of this quota hold over all pods together: those are spread evenly over the quotas."""
        return len(_part(self.scope_pool, 100, quota % 100)) > 0

    def first_quota(self, pool: int, *, of_pool: bool) -> int | None:
        """The first quota of a pool whose limits hold over all pods, or on each of them; None where there is none."""
        return next((each for each in self.quotas_of(pool) if self.is_of_pool(each) == of_pool), None)


def _part(count: int, parts: int, part: int) -> range:
    return range(count * part // parts, count * (part + 1) // parts)


def address(pod: int) -> str:
    """The pod's own address of this machine: 127.16.0.1 and up, which nothing else is likely to use."""
    return f"127.{16 + (pod >> 16)}.{pod >> 8 & 255}.{pod & 255}"


def pod_of(ip: str) -> int:
    """The number of the pod at an address."""
    _, high, middle, low = (int(part) for part in ip.split("."))
    return (high - 16 << 16) + (middle << 8) + low


def pod_name(pod: int) -> str:
    return f"engine-{pod:05}"


def pool_name(pool: int) -> str:
    return f"pool-{pool:02}"


def tenant_name(quota: int) -> str:
    """Of the tenant and of its quota."""
    return f"tenant-{quota:03}"


@dataclass(frozen=True, slots=True)
class Course:
    """How far the numbers have come: `passed` seconds at `since` (monotonic), and moving from there, or None: still."""

    passed: float = 0.0
    since: float | None = None

    def at(self, now: float) -> float:
        """Seconds of movement up to `now`."""
        return self.passed if self.since is None else self.passed + max(0.0, now - self.since)

    def started(self, now: float) -> Course:
        return Course(self.at(now), now)

    def stopped(self, now: float) -> Course:
        return Course(self.at(now))


def marker(phase: float, passed: float) -> int:
    """The number in flight on one pod; `phase` from 0 to 1 is the quota's own, so that they do not step together."""
    return FIRST_MARKER + MARKER_STEP * math.floor(passed / STEP_SECONDS + phase)


def steps(phase: float, course: Course, start: float, end: float) -> list[tuple[float, int]]:
    """The moments between `start` and `end` at which the marker steps on a moving course, and what it is then."""
    if course.since is None:
        return []
    origin = course.since - course.passed - phase * STEP_SECONDS
    first, last = (math.ceil((each - origin) / STEP_SECONDS) for each in (start, end))
    return [(origin + step * STEP_SECONDS, FIRST_MARKER + MARKER_STEP * step) for step in range(first, last)]


def usage_of(tenant: str, phase: float, passed: float, wall: float) -> TenantUsage:
    """What every pod says of one tenant; `wall`: Unix seconds of the start of the course."""
    second = int(passed)
    reserved = 200 + 16 * ((second * 7 + int(phase * 16)) % 16)
    recent = Counts(admitted=1000 + 40 * second, rejected={REFUSED: 100 + 5 * second}, would_reject={})
    return TenantUsage(
        id=tenant,
        reserved=reserved,
        used=reserved * 3 // 4,
        over_soft=reserved // 8,
        in_flight=marker(phase, passed),
        total=recent,
        recent=recent,
        last_refusal=Refusal(
            code=REFUSED,
            message=f"Tenant {tenant} holds {reserved} of its {reserved} blocks; retry when a request has ended.",
            at=wall + second,
        ),
    )
