"""The usage report: one sidecar's answer to a sync."""

from __future__ import annotations

from collections.abc import Callable

from kvquota_api.usage import EngineUsage, UsageReport
from kvquota_sidecar.channel.standing import Standing
from kvquota_sidecar.clock import Clock
from kvquota_sidecar.ledger.books import Books


class Reporter:
    """Makes reports; `epoch` is new in every process, the sequence grows by one with every report."""

    def __init__(
        self,
        books: Books,
        standing: Standing,
        engine: Callable[[], EngineUsage],
        *,
        epoch: str,
        clock: Clock,
        wall: Clock,
    ) -> None:
        self._books = books
        self._standing = standing
        self._engine = engine
        self._epoch = epoch
        self._clock = clock
        self._wall = wall
        self._started_at = wall()
        self._sequence = 0

    def report(self) -> UsageReport:
        """The next report."""
        self._sequence += 1
        now, documents = self._clock(), self._standing.documents
        return UsageReport(
            epoch=self._epoch,
            sequence=self._sequence,
            started_at=self._started_at,
            in_force=documents.in_force(),
            rejected=documents.rejected,
            engine=self._engine(),
            pool=self._books.pool_usage(now),
            tenants=self._books.tenant_usage(now, self._wall()),
        )
