"""All metrics of the operator, by name. No label has a value that a tenant can choose."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperatorMetrics:
    """Telemetry of the controller, and what the adapters count, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._passes = Histogram(
            "kvquota_operator_pass_seconds",
            "Time from the start of one pass over one pool to its end.",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
        self._done = Counter(
            "kvquota_operator_errands",
            "Things done for pools, by kind: Observe, Secret, Config, Sync, Status, Event.",
            ["kind"],
            registry=registry,
        )
        self._failed = Counter(
            "kvquota_operator_errand_failures",
            "Things that failed and were tried again, by kind and reason.",
            ["kind", "reason"],
            registry=registry,
        )
        self._restarts = Counter(
            "kvquota_operator_watch_restarts",
            "Watches that broke and were begun again, by what is watched and reason.",
            ["watched", "reason"],
            registry=registry,
        )
        self._found = Counter(
            "kvquota_operator_resync_changes",
            "Changes that the periodic list found before the watch told of them.",
            registry=registry,
        )
        self._dropped = Counter(
            "kvquota_operator_events_dropped", "Events that were not written because of their rate.", registry=registry
        )
        self.pools = Gauge("kvquota_operator_pools", "Pools that the operator governs.", registry=registry)

    def passed(self, seconds: float) -> None:
        """One pass over one pool ended after `seconds`."""
        self._passes.observe(seconds)

    def done(self, kind: str) -> None:
        """One thing of this kind was done."""
        self._done.labels(kind).inc()

    def failed(self, kind: str, reason: str) -> None:
        """One thing of this kind failed."""
        self._failed.labels(kind, reason).inc()

    def watch_restarted(self, watched: str, reason: str) -> None:
        """A watch broke; `watched` is a plural of Kubernetes."""
        self._restarts.labels(watched, reason).inc()

    def resync_found(self) -> None:
        """The periodic list had news."""
        self._found.inc()

    def event_dropped(self) -> None:
        """An event was too much."""
        self._dropped.inc()
