"""The usage report: one sidecar's answer to a sync."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvquota_api.usage import EngineUsage, PoolUsage, UsageReport
from kvquota_sidecar.channel.standing import Standing
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.estimate.ratio import EstimateError
from kvquota_sidecar.ledger.books import Books


class Reporter:
    """Makes reports; `epoch` is new in every process, the sequence grows by one with every report. `estimate_error`: of
    prompts; None: nothing was learnt yet."""

    def __init__(
        self,
        books: Books,
        standing: Standing,
        engine: Callable[[], EngineUsage],
        estimate_error: Callable[[], EstimateError | None],
        *,
        epoch: str,
        clock: Clock,
        wall: Clock,
    ) -> None:
        self._books = books
        self._standing = standing
        self._engine = engine
        self._estimate_error = estimate_error
        self._epoch = epoch
        self._clock = clock
        self._wall = wall
        self._started_at = wall()
        self._sequence = 0

    def report(self, *, with_tenants: bool = True) -> UsageReport:
        """The next report; `with_tenants` False: it names none, and costs the same however many there are."""
        self._sequence += 1
        now, documents = self._clock(), self._standing.documents
        return UsageReport(
            epoch=self._epoch,
            sequence=self._sequence,
            started_at=self._started_at,
            in_force=documents.in_force(),
            rejected=documents.rejected,
            engine=self._engine(),
            pool=self._pool(now),
            tenants=self._books.tenant_usage(now, self._wall()) if with_tenants else (),
        )

    def _pool(self, now: float) -> PoolUsage | None:
        pool, error = self._books.pool_usage(now), self._estimate_error()
        if pool is None or error is None:
            return pool
        return msgspec.structs.replace(pool, estimate_error_percent=round(100 * error.p50, 2))
