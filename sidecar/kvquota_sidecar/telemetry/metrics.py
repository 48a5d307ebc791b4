"""Every metric that the sidecar has, and how it is written for Prometheus.

Names, units and labels stand here and nowhere else. Values are read when somebody asks: nothing is counted twice.

Invariants:

1. A value that nobody measured is missing, never 0.
2. Tenants are named only to those who may know them, and no more than MAX_TENANT_LABELS of them: the first to be seen
   keep their own label as long as the process lives, all others share `other`; so no counter ever falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvquota_api.usage import TenantUsage, UsageReport
from kvquota_sidecar.estimate.ratio import EstimateError
from kvquota_sidecar.telemetry.tally import Tally

MAX_TENANT_LABELS: Final = 100  # times about 12 series each: what one pod may cost a Prometheus
OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What neither the report nor the tally knows.

    `configured`: whether it can be told whose a request is. `waiting`: for room. `counting`: for their tokens to be
    counted. `estimate_error`: of prompts; None: nothing was learnt yet. `restarts`: by what had become of the process
    before. `sync_age_seconds`: since the operator was last heard; None: never. `unsaid`: what the engine does not say
    of itself. `handshakes_failed`: by what the client spoke.
    """

    connections: int
    connections_turned_away: int
    connections_made_room: int
    engine_connections: int
    running: int
    draining: bool
    configured: bool
    waiting: int = 0
    counting: int = 0
    estimate_error: EstimateError | None = None
    restarts: Mapping[str, int] = field(default_factory=dict)
    sync_age_seconds: float | None = None
    unsaid: tuple[str, ...] = ()
    log_lines_left_out: int = 0
    handshakes_failed: Mapping[str, int] = field(default_factory=dict)


class Report(Protocol):
    """Makes the next report."""

    def __call__(self, *, with_tenants: bool) -> UsageReport:
        """`with_tenants`: whether it says anything of them."""


class Exposition:
    """Writes the metrics of one sidecar from its next report, its tally and its vitals."""

    def __init__(self, report: Report, tally: Tally, vitals: Callable[[], Vitals]) -> None:
        self._report = report
        self._tally = tally
        self._vitals = vitals
        self._labelled: set[str] = set()

    def render(self, with_tenants: bool) -> bytes:  # noqa: FBT001 - the one thing that a caller may or may not know
        """The text format; `with_tenants`: whether the reader may know the tenants' names."""
        registry = CollectorRegistry()
        registry.register(_Families(lambda: self._families(with_tenants=with_tenants)))
        return generate_latest(registry)

    def _families(self, *, with_tenants: bool) -> Iterator[Metric]:
        report, vitals = self._report(with_tenants=with_tenants), self._vitals()
        yield from _process(self._tally, vitals)
        yield from _estimates(self._tally, vitals)
        yield from _channel(report, self._tally, vitals)
        yield from _engine(report, self._tally, vitals)
        yield from _pool(report, self._tally)
        if with_tenants:
            yield from _tenants(self._grouped(report.tenants))

    def _grouped(self, tenants: Iterable[TenantUsage]) -> dict[str, list[TenantUsage]]:
        groups: dict[str, list[TenantUsage]] = {}
        for tenant in sorted(tenants, key=lambda each: (-each.total.admitted, each.id)):
            if len(self._labelled) < MAX_TENANT_LABELS:
                self._labelled.add(tenant.id)
            groups.setdefault(tenant.id if tenant.id in self._labelled else OTHER, []).append(tenant)
        return groups


class _Families:
    """What a registry calls a collector."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _gauge(name: str, told: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"kvquota_{name}", told, value=value)


def _counter(name: str, told: str, value: float) -> Iterator[Metric]:
    yield CounterMetricFamily(f"kvquota_{name}", told, value=value)


def _by(name: str, told: str, label: str, values: Mapping[str, float]) -> Iterator[Metric]:
    """A counter with one label."""
    family = CounterMetricFamily(f"kvquota_{name}", told, labels=(label,))
    for each, value in sorted(values.items()):
        family.add_metric((each,), value)
    yield family


def _process(tally: Tally, vitals: Vitals) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "kvquota_requests", "Requests that are over, by outcome or refusal code.", labels=("route", "outcome")
    )
    for (route, outcome), count in sorted(tally.requests.items()):
        requests.add_metric((route, outcome), count)
    yield requests
    yield from _gauge("requests_running", "Requests that are with the engine.", vitals.running)
    yield from _gauge("requests_waiting", "Guaranteed requests that wait for room.", vitals.waiting)
    yield from _gauge("client_connections", "Open connections of clients.", vitals.connections)
    yield from _counter(
        "client_connections_turned_away", "Connections closed unread: too many.", vitals.connections_turned_away
    )
    yield from _counter(
        "client_connections_made_room",
        "Connections in no request, closed for others when all places were taken.",
        vitals.connections_made_room,
    )
    yield from _gauge("engine_connections", "Open connections to the engine.", vitals.engine_connections)
    yield from _gauge("draining", "1 while the pod is leaving.", int(vitals.draining))
    yield from _counter(
        "drains_taken_back", "Drains that a hook began and no signal followed in time.", tally.drains_taken_back
    )
    told = "1 where quotas apply; 0: config or identity never came, and failurePolicy decides about every request."
    yield from _gauge("configured", told, int(vitals.configured))
    yield from _counter(
        "passed_unconfigured",
        "Requests let through without a quota, for want of a config or an identity.",
        tally.passed_unconfigured,
    )
    told = "Times that the supervisor started the program anew, by what had become of the one before."
    yield from _by("child_restarts", told, "cause", vitals.restarts)
    told = "Connections to the TLS port that came to nothing, by what was wrong: plaintext or other."
    yield from _by("tls_handshakes_failed", told, "reason", vitals.handshakes_failed)
    yield from _counter(
        "log_lines_left_out", "Log lines that were too many, or that nobody read.", vitals.log_lines_left_out
    )


def _estimates(tally: Tally, vitals: Vitals) -> Iterator[Metric]:
    yield from _counter(
        "underestimated_tokens", "Tokens by which prompts were longer than estimated.", tally.underestimated_tokens
    )
    yield from _gauge("requests_counting", "Requests whose tokens the engine is counting.", vitals.counting)
    yield from _counter("tokenizer_asked", "Requests whose tokens the engine was to count.", tally.tokenizer_asked)
    yield from _counter("tokenizer_late", "Those of them that were not counted in time.", tally.tokenizer_late)
    if vitals.estimate_error is not None:
        told = "Error of the estimate of a prompt's tokens, as a share of them, by quantile of the last prompts."
        error = GaugeMetricFamily("kvquota_estimate_error_ratio", told, labels=("quantile",))
        error.add_metric(("0.5",), vitals.estimate_error.p50)
        error.add_metric(("0.9",), vitals.estimate_error.p90)
        yield error


def _channel(report: UsageReport, tally: Tally, vitals: Vitals) -> Iterator[Metric]:
    yield from _gauge("config_generation", "Generation of the config in force; 0: none.", report.in_force.generation)
    told = "Fields of the config and identity in force that this version does not know, and so does not enforce."
    yield from _gauge("unknown_fields", told, len(report.in_force.unknown_fields))
    yield from _counter("configs_adopted", "Configs that came into force.", tally.configs_adopted)
    yield from _by("documents_rejected", "Documents refused, by reason.", "reason", tally.configs_rejected)
    yield from _gauge(
        "sync_age_seconds", "Time since the operator was last heard; missing: never.", vitals.sync_age_seconds
    )


def _engine(report: UsageReport, tally: Tally, vitals: Vitals) -> Iterator[Metric]:
    engine = report.engine
    yield from _gauge(
        "engine_up", "1 where the engine answers and says what it said before.", int(engine.state == "Ready")
    )
    yield from _gauge("engine_blocks", "KV blocks that the engine says it has, null block included.", engine.blocks)
    yield from _gauge("engine_used_blocks", "KV blocks that the engine says are in use.", engine.used_blocks)
    yield from _gauge("engine_sample_age_seconds", "Age of what the engine said.", engine.age_seconds)
    yield from _gauge(
        "engine_aborts_lost", "1 where the engine goes on with requests whose clients have gone.", engine.aborts_lost
    )
    yield from _counter("engine_samples", "Times that the engine was asked and answered.", tally.samples_taken)
    yield from _counter("engine_samples_failed", "Times that the engine did not answer.", tally.samples_failed)
    unsaid = GaugeMetricFamily("kvquota_engine_unsaid", "1 for what the engine does not say.", labels=("field",))
    for name in vitals.unsaid:
        unsaid.add_metric((name,), 1)
    yield unsaid


def _pool(report: UsageReport, tally: Tally) -> Iterator[Metric]:
    yield from _counter(
        "guarantees_missed", "Guaranteed requests that waited and found no room.", tally.guarantees_missed
    )
    pool = report.pool
    if pool is None:
        return
    yield from _gauge("pool_usable_blocks", "KV blocks that tenants can hold together.", pool.usable)
    yield from _gauge("pool_free_blocks", "KV blocks that may still be promised; below 0: overbooked.", pool.free)
    yield from _gauge("pool_reserved_blocks", "KV blocks promised to running requests.", pool.reserved)
    yield from _gauge("pool_used_blocks", "KV blocks filled by running requests, by the books.", pool.used)
    yield from _gauge("pool_unattributed_blocks", "KV blocks in use by no known request.", pool.unattributed)
    yield from _gauge("pool_pressure_ratio", "Pressure of the pool, 1 is full.", pool.pressure_percent / 100)
    rung = GaugeMetricFamily("kvquota_pool_rung", "1 at the rung that the pool is on.", labels=("rung",))
    rung.add_metric((pool.rung,), 1)
    yield rung


def _tenants(groups: dict[str, list[TenantUsage]]) -> Iterator[Metric]:
    yield _per_tenant("reserved_blocks", "KV blocks promised.", groups, lambda each: each.reserved)
    yield _per_tenant("used_blocks", "KV blocks filled, by the books.", groups, lambda each: each.used)
    yield _per_tenant("over_soft_blocks", "KV blocks beyond the guaranteed share.", groups, lambda each: each.over_soft)
    yield _per_tenant("sequences", "Sequences that run.", groups, lambda each: each.in_flight)
    yield _counted("admitted", "Requests admitted.", groups, lambda each: each.total.admitted)
    yield _counted("evicted", "Requests ended for other tenants.", groups, lambda each: each.total.evicted)
    yield _counted("ended", "Requests ended past their own tenant's hard.", groups, lambda each: each.total.ended)
    yield _counted(
        "guarantee_missed", "Guaranteed requests that found no room.", groups, lambda each: each.total.guarantee_missed
    )
    yield _by_code("rejected", "Requests refused, by code.", groups, lambda each: each.total.rejected)
    yield _by_code(
        "would_reject", "Requests that would be refused if enforced.", groups, lambda each: each.total.would_reject
    )


_Groups = dict[str, list[TenantUsage]]


def _per_tenant(name: str, told: str, groups: _Groups, value: Callable[[TenantUsage], int]) -> Metric:
    family = GaugeMetricFamily(f"kvquota_tenant_{name}", told, labels=("tenant",))
    for tenant, members in groups.items():
        family.add_metric((tenant,), sum(map(value, members)))
    return family


def _counted(name: str, told: str, groups: _Groups, value: Callable[[TenantUsage], int]) -> Metric:
    family = CounterMetricFamily(f"kvquota_tenant_{name}", told, labels=("tenant",))
    for tenant, members in groups.items():
        family.add_metric((tenant,), sum(map(value, members)))
    return family


def _by_code(name: str, told: str, groups: _Groups, value: Callable[[TenantUsage], dict[str, int]]) -> Metric:
    family = CounterMetricFamily(f"kvquota_tenant_{name}", told, labels=("tenant", "code"))
    for tenant, members in groups.items():
        codes = sorted({code for member in members for code in value(member)})
        for code in codes:
            family.add_metric((tenant, code), sum(value(member).get(code, 0) for member in members))
    return family
