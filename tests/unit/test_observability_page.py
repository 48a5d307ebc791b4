"""The page of metrics and log lines says what the program has: every one, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

from kvquota_api.usage import Counts, EngineUsage, InForce, PoolUsage, TenantUsage, UsageReport
from kvquota_sidecar.estimate.ratio import EstimateError
from kvquota_sidecar.telemetry.metrics import Exposition, Vitals
from kvquota_sidecar.telemetry.tally import Outcome, Tally

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text().partition("# What the operator tells of itself")[0]
SOURCE = ROOT / "sidecar" / "kvquota_sidecar"


def everything() -> bytes:
    """What a sidecar says that has something to say of each metric."""
    tally = Tally()
    tally.requests["/v1/completions", "answered"] += 1
    tally.configs_rejected["WrongPod"] += 1
    vitals = Vitals(
        connections=1,
        connections_turned_away=1,
        connections_made_room=1,
        engine_connections=1,
        running=1,
        draining=False,
        configured=True,
        estimate_error=EstimateError(p50=0.1, p90=0.2, count=1),
        restarts={"hung": 1},
        handshakes_failed={"plaintext": 1},
        sync_age_seconds=1.0,
        unsaid=("running",),
    )
    counts = Counts(rejected={"draining": 1}, would_reject={"draining": 1})
    tenant = TenantUsage(id="a/b", reserved=1, used=1, over_soft=0, in_flight=1, total=counts, recent=counts)
    report = UsageReport(
        epoch="e",
        sequence=1,
        started_at=0,
        in_force=InForce(generation=1),
        engine=EngineUsage(state="Ready", blocks=9, used_blocks=1, age_seconds=1, aborts_lost=False),
        pool=PoolUsage(usable=9, free=9, reserved=0, used=0, unattributed=0, pressure_percent=0.0),
        tenants=(tenant,),
    )
    return Exposition(lambda **_: report, tally, lambda: vitals).render(with_tenants=True)


def metrics() -> Iterator[str]:
    """A row of the table for each metric."""
    text = everything().decode()
    for name, told in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        kind = re.findall(rf"^# TYPE {name} (\S+)$", text, re.MULTILINE)[0]
        sample = re.findall(rf"^{name}(?:{{(.*)}})? ", text, re.MULTILINE)[0]
        labels = ", ".join(f"`{each}`" for each in re.findall(r'(\w+)="', sample))
        yield f"| `{name}` | {kind} | {labels} | {told} |"


def rows(start: str) -> list[str]:
    return [line for line in PAGE.splitlines() if line.startswith(start)]


def test_the_table_of_metrics_is_that_of_the_program() -> None:
    assert rows("| `kvquota_") == list(metrics())


def test_the_table_of_events_is_that_of_the_program() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    written = re.findall(r"(?:journal\.write|self\._log|self\._again)\(\s*\"([a-z_]+)\"", text)
    told = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Log lines")[2], re.MULTILINE)
    assert sorted(told) == sorted({*written, *Outcome})
