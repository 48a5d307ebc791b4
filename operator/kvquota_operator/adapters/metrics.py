"""All metrics of the operator, by name. No label has a value that a tenant can choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """How the operator is at the moment; None where there is nothing to say. Ages in seconds.

    `watch_ages`: by plural, since the API server last said something of the most silent watch. `thread_stillness`:
    since the thread that watches pools and quotas last ran. `certificate_until`: in Unix seconds.
    """

    leading: bool
    pools: int
    waiting: int = 0
    longest_pass: float = 0.0
    oldest_report: float | None = None
    watch_ages: Mapping[str, float] = field(default_factory=dict)
    thread_stillness: float = 0.0
    certificate_until: float | None = None


class OperatorMetrics:
    """Telemetry of the controller, and what the adapters count, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._passes = Histogram(
            "kvquota_operator_pass_seconds",
            "Time from the start of one pass over one pool to its end.",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
        self._done = self._counter(
            "kvquota_operator_errands",
            "Things done for pools, by kind: Observe, Secret, Config, Sync, Status, Event.",
            "kind",
        )
        self._failed = self._counter(
            "kvquota_operator_errand_failures",
            "Things that failed and were tried again, by kind and reason; a Pass fails by a Bug only.",
            "kind reason",
        )
        self._requests = self._counter(
            "kvquota_operator_api_requests",
            "Requests to the API server, by method, resource and outcome: Done, or the reason of the failure.",
            "method resource outcome",
        )
        self._count_what_breaks()

    def _count_what_breaks(self) -> None:
        self._restarts = self._counter(
            "kvquota_operator_watch_restarts",
            "Watches that broke and were begun again, by what is watched and reason.",
            "watched reason",
        )
        self._found = self._counter(
            "kvquota_operator_resync_changes",
            "Changes that the periodic list found before the watch told of them.",
        )
        self._mended = self._counter(
            "kvquota_operator_mends",
            "Objects that somebody else had changed and that were put back, by kind; a status counts as its object.",
            "kind",
        )
        self._dropped = self._counter(
            "kvquota_operator_events_dropped",
            "Events that were not written because of their rate.",
        )

    def _counter(self, name: str, told: str, labels: str = "") -> Counter:
        """`labels`: their names, with a blank between them."""
        return Counter(name, told, labels.split(), registry=self._registry)

    def passed(self, seconds: float) -> None:
        """One pass over one pool ended after `seconds`."""
        self._passes.observe(seconds)

    def done(self, kind: str) -> None:
        """One thing of this kind was done."""
        self._done.labels(kind).inc()

    def failed(self, kind: str, reason: str) -> None:
        """One thing of this kind failed."""
        self._failed.labels(kind, reason).inc()

    def requested(self, method: str, resource: str, outcome: str) -> None:
        """The API server was asked."""
        self._requests.labels(method, resource, outcome).inc()

    def watch_restarted(self, watched: str, reason: str) -> None:
        """A watch broke; `watched` is a plural of Kubernetes."""
        self._restarts.labels(watched, reason).inc()

    def resync_found(self) -> None:
        """The periodic list had news."""
        self._found.inc()

    def mended(self, kind: str) -> None:
        """What somebody else had changed of an object of this kind was written over."""
        self._mended.labels(kind).inc()

    def event_dropped(self) -> None:
        """An event was too much."""
        self._dropped.inc()

    def show(self, vitals: Callable[[], Vitals]) -> None:
        """Have the gauges say what `vitals` gives whenever they are asked."""
        self._registry.register(_Gauges(vitals))


class _Gauges(Collector):
    """What is the case when Prometheus asks; a gauge without a value is left out."""

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        self._vitals = vitals

    def collect(self) -> Iterator[Metric]:
        now = self._vitals()
        yield GaugeMetricFamily("kvquota_operator_leader", "1 on the replica that leads, 0 on others.", now.leading)
        yield GaugeMetricFamily("kvquota_operator_pools", "Pools that the operator governs.", now.pools)
        yield GaugeMetricFamily(
            "kvquota_operator_pools_waiting", "Pools about which something changed since their last pass.", now.waiting
        )
        yield GaugeMetricFamily(
            "kvquota_operator_longest_pass_seconds", "Age of the oldest pass that has not ended.", now.longest_pass
        )
        yield GaugeMetricFamily(
            "kvquota_operator_oldest_report_seconds",
            "Age of the report of the pod that was silent for longest, of those that ever reported.",
            now.oldest_report,
        )
        yield GaugeMetricFamily(
            "kvquota_operator_watch_thread_stillness_seconds",
            "Time since the thread that watches pools and quotas last ran: it does every second.",
            now.thread_stillness,
        )
        yield GaugeMetricFamily(
            "kvquota_operator_webhook_certificate_expiry_seconds",
            "Unix time at which the certificate that the webhook shows ends.",
            now.certificate_until,
        )
        ages = GaugeMetricFamily(
            "kvquota_operator_watch_age_seconds",
            "Time since the API server last said something of what is watched, if only that it is still there.",
            labels=["watched"],
        )
        for watched, age in sorted(now.watch_ages.items()):
            ages.add_metric([watched], age)
        yield ages

    def describe(self) -> Iterator[Metric]:
        """The same names: a registry asks to find two of one name."""
        yield from _Gauges(lambda: Vitals(leading=False, pools=0)).collect()
