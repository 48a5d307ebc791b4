"""What the sidecar tells Prometheus, and its log lines."""

import io
import json
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from kvquota_api.usage import Counts, EngineUsage, InForce, PoolUsage, TenantUsage, UsageReport
from kvquota_sidecar.estimate.ratio import EstimateError
from kvquota_sidecar.telemetry.journal import LINES_PER_SECOND, RARE_LINES, Journal
from kvquota_sidecar.telemetry.metrics import MAX_TENANT_LABELS, Exposition, Vitals
from kvquota_sidecar.telemetry.tally import Outcome, Tally
from sidecar_rig import ManualClock

VITALS = Vitals(
    connections=4,
    connections_turned_away=1,
    connections_made_room=6,
    engine_connections=3,
    running=2,
    draining=False,
    configured=True,
)
POOL = PoolUsage(usable=1023, free=-2, reserved=7, used=5, unattributed=1, pressure_percent=12.5, rung="Shed")


def tenant(name: str, admitted: int = 0) -> TenantUsage:
    total = Counts(
        admitted=admitted,
        rejected={"kv_pool_contended": 2},
        would_reject={"draining": 1},
        evicted=3,
        ended=5,
        guarantee_missed=4,
    )
    return TenantUsage(id=name, reserved=7, used=5, over_soft=2, in_flight=1, total=total, recent=Counts())


def report(tenants: Iterable[TenantUsage] = (), *, measured: bool = True) -> UsageReport:
    engine = EngineUsage(state="Ready", blocks=1024, used_blocks=9, age_seconds=0.5) if measured else EngineUsage()
    return UsageReport(
        epoch="e",
        sequence=1,
        started_at=0,
        in_force=InForce(generation=3, unknown_fields=("config.tenants[].colour",)),
        engine=engine,
        pool=POOL if measured else None,
        tenants=tuple(tenants),
    )


def samples(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def rendered(reported: UsageReport, *, with_tenants: bool = False, vitals: Vitals = VITALS) -> dict[str, float]:
    tally = Tally(passed_unconfigured=5, configs_adopted=6, underestimated_tokens=7, samples_taken=8, samples_failed=9)
    tally.drains_taken_back = 12
    tally.tokenizer_asked, tally.tokenizer_late, tally.guarantees_missed = 13, 14, 15
    tally.requests["/v1/completions", Outcome.ANSWERED] = 10
    tally.configs_rejected["WrongPod"] = 11
    return samples(Exposition(lambda **_: reported, tally, lambda: vitals).render(with_tenants))


WITHOUT_ENGINE = {
    'kvquota_requests_total{outcome="answered",route="/v1/completions"}': 10,
    "kvquota_requests_running": 2,
    "kvquota_log_lines_left_out_total": 0,
    "kvquota_client_connections": 4,
    "kvquota_client_connections_turned_away_total": 1,
    "kvquota_client_connections_made_room_total": 6,
    "kvquota_engine_connections": 3,
    "kvquota_draining": 0,
    "kvquota_configured": 1,
    "kvquota_drains_taken_back_total": 12,
    "kvquota_passed_unconfigured_total": 5,
    "kvquota_underestimated_tokens_total": 7,
    "kvquota_requests_waiting": 0,
    "kvquota_requests_counting": 0,
    "kvquota_tokenizer_asked_total": 13,
    "kvquota_tokenizer_late_total": 14,
    "kvquota_guarantees_missed_total": 15,
    "kvquota_config_generation": 3,
    "kvquota_unknown_fields": 1,
    "kvquota_configs_adopted_total": 6,
    'kvquota_documents_rejected_total{reason="WrongPod"}': 11,
    "kvquota_engine_up": 0,
    "kvquota_engine_samples_total": 8,
    "kvquota_engine_samples_failed_total": 9,
}


def test_what_nobody_measured_is_missing() -> None:
    assert rendered(report(measured=False)) == WITHOUT_ENGINE


def test_engine_and_pool_are_shown_to_everybody() -> None:
    assert rendered(report([tenant("shop/search")])) == WITHOUT_ENGINE | {
        "kvquota_engine_up": 1,
        "kvquota_engine_blocks": 1024,
        "kvquota_engine_used_blocks": 9,
        "kvquota_engine_sample_age_seconds": 0.5,
        "kvquota_pool_usable_blocks": 1023,
        "kvquota_pool_free_blocks": -2,
        "kvquota_pool_reserved_blocks": 7,
        "kvquota_pool_used_blocks": 5,
        "kvquota_pool_unattributed_blocks": 1,
        "kvquota_pool_pressure_ratio": 0.125,
        'kvquota_pool_rung{rung="Shed"}': 1,
    }


def test_what_only_some_sidecars_know_is_shown_where_they_know_it() -> None:
    vitals = replace(
        VITALS,
        waiting=5,
        counting=6,
        estimate_error=EstimateError(p50=0.04, p90=0.2, count=50),
        restarts={"hung": 2, "killed": 1},
        log_lines_left_out=16,
        handshakes_failed={"plaintext": 17},
        sync_age_seconds=3.5,
        unsaid=("running",),
    )
    lost = EngineUsage(aborts_lost=True)
    found = rendered(msgspec.structs.replace(report(measured=False), engine=lost), vitals=vitals)
    assert dict(found.items() - WITHOUT_ENGINE.items()) == {
        "kvquota_requests_waiting": 5,
        "kvquota_requests_counting": 6,
        'kvquota_estimate_error_ratio{quantile="0.5"}': 0.04,
        'kvquota_estimate_error_ratio{quantile="0.9"}': 0.2,
        'kvquota_child_restarts_total{cause="hung"}': 2,
        'kvquota_child_restarts_total{cause="killed"}': 1,
        "kvquota_sync_age_seconds": 3.5,
        "kvquota_log_lines_left_out_total": 16,
        'kvquota_tls_handshakes_failed_total{reason="plaintext"}': 17,
        'kvquota_engine_unsaid{field="running"}': 1,
        "kvquota_engine_aborts_lost": 1,
    }


def test_tenants_are_shown_to_those_who_may_know_them() -> None:
    found = rendered(report([tenant("shop/search", 4)]), with_tenants=True)
    assert {name: value for name, value in found.items() if "tenant" in name} == {
        'kvquota_tenant_reserved_blocks{tenant="shop/search"}': 7,
        'kvquota_tenant_used_blocks{tenant="shop/search"}': 5,
        'kvquota_tenant_over_soft_blocks{tenant="shop/search"}': 2,
        'kvquota_tenant_sequences{tenant="shop/search"}': 1,
        'kvquota_tenant_admitted_total{tenant="shop/search"}': 4,
        'kvquota_tenant_evicted_total{tenant="shop/search"}': 3,
        'kvquota_tenant_ended_total{tenant="shop/search"}': 5,
        'kvquota_tenant_guarantee_missed_total{tenant="shop/search"}': 4,
        'kvquota_tenant_rejected_total{code="kv_pool_contended",tenant="shop/search"}': 2,
        'kvquota_tenant_would_reject_total{code="draining",tenant="shop/search"}': 1,
    }


def test_labels_are_bounded_and_a_tenant_keeps_its_own() -> None:
    tenants = [tenant(f"shop/{at}", admitted=at) for at in range(MAX_TENANT_LABELS + 50)]
    seen: list[TenantUsage] = []
    exposition = Exposition(lambda **_: report(seen), Tally(), lambda: VITALS)

    def admitted() -> dict[str, float]:
        found = samples(exposition.render(with_tenants=True))
        return {name: value for name, value in found.items() if "tenant_admitted" in name}

    seen[:] = tenants
    first = admitted()
    assert len(first) == MAX_TENANT_LABELS + 1
    assert first['kvquota_tenant_admitted_total{tenant="other"}'] == sum(range(50))
    seen[:] = [tenant("shop/0", admitted=10_000), *tenants[1:]]
    second = admitted()
    assert second.keys() == first.keys()
    assert second['kvquota_tenant_admitted_total{tenant="other"}'] == sum(range(50)) + 10_000


def written(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_without_what_is_missing() -> None:
    stream = io.StringIO()
    Journal(stream, lambda: 12.34567).write("refused", tenant="a\nb", status=429, code=None)
    assert stream.getvalue().count("\n") == 1
    assert written(stream) == [{"at": 12.346, "event": "refused", "tenant": "a\nb", "status": 429}]


def test_a_line_that_was_asked_for_and_may_not_be_written_counts_as_left_out() -> None:
    stream, clock = io.StringIO(), ManualClock(now=100.0)
    journal = Journal(stream, clock)
    while journal.may_write():
        journal.write("refused")
    clock.now = 101.0
    journal.write("refused")
    assert written(stream)[-1] == {"at": 101.0, "event": "refused", "linesLeftOut": 1}


def test_a_flood_is_counted_and_not_written() -> None:
    stream, clock = io.StringIO(), ManualClock(now=100.0)
    journal = Journal(stream, clock)
    for _ in range(LINES_PER_SECOND + 30):
        if journal.may_write():
            journal.write("refused")
    assert len(written(stream)) == LINES_PER_SECOND
    clock.now = 101.0
    journal.write("refused")
    journal.write("refused")
    assert written(stream)[-2:] == [
        {"at": 101.0, "event": "refused", "linesLeftOut": 30},
        {"at": 101.0, "event": "refused"},
    ]


def test_beside_a_flood_there_is_room_for_a_few_other_lines() -> None:
    stream = io.StringIO()
    journal = Journal(stream, ManualClock(now=100.0))
    while journal.may_write():
        journal.write("refused")
    for _ in range(RARE_LINES + 5):
        journal.write("configured")
    assert [line["event"] for line in written(stream)].count("configured") == RARE_LINES
    assert journal.left_out == 1 + 5
