"""The page of what the operator tells of itself says what the program has: every metric and event, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from kvquota_operator.adapters.metrics import OperatorMetrics, Vitals

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text().partition("# What the operator tells of itself")[2]
SOURCE = ROOT / "operator" / "kvquota_operator"


def everything() -> str:
    """What an operator says that has something to say of each metric."""
    registry = CollectorRegistry()
    metrics = OperatorMetrics(registry)
    metrics.passed(0.1)
    metrics.done("Sync")
    metrics.failed("Sync", "PodTimeout")
    metrics.requested("GET", "pods", "Done")
    metrics.watch_restarted("pods", "Timeout")
    metrics.mended("TenantQuota")
    metrics.show(
        lambda: Vitals(leading=True, pools=1, oldest_report=1.0, watch_ages={"pods": 1.0}, certificate_until=1.0)
    )
    return generate_latest(registry).decode()


def metrics() -> Iterator[str]:
    """A row of the table for each metric."""
    text = everything()
    for name, told in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        if name.endswith("_created"):
            continue
        kind = re.findall(rf"^# TYPE {name} (\S+)$", text, re.MULTILINE)[0]
        sample = re.findall(rf"^{name}(?:_count)?(?:{{(.*)}})? ", text, re.MULTILINE)[0]
        labels = ", ".join(f"`{each}`" for each in re.findall(r'(\w+)="', sample))
        yield f"| `{name}` | {kind} | {labels} | {told} |"


def test_the_table_of_metrics_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| `kvquota_\w+` \| (?:counter|gauge|histogram) \|.*$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(metrics())


def test_the_table_of_events_is_that_of_the_program() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    written = set(re.findall(r"told\(\s*\"([a-z_]+)\"", text)) | {"library"}
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Log lines")[2], re.MULTILINE)
    assert sorted(rows) == sorted(written)


def test_a_gauge_without_a_value_is_left_out() -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry).show(lambda: Vitals(leading=False, pools=0))
    samples = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    gauges = [each for each in samples if each.startswith(("kvquota_operator_oldest", "kvquota_operator_watch_age"))]
    assert gauges == []
    assert "kvquota_operator_leader 0.0" in samples
