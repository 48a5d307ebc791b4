"""When the bench may call an aim met: by three quiet rounds, and where two figures count by the worse of them."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"

CHUNK = "CPU per streamed chunk, of nginx's"
REFUSAL = "CPU per refusal on a kept connection, us"
RISE = "what another tenant's refused flood adds to a p99, ms"
TAIL = "p99 of a chunk's delay, 1,024 streams x 50/s, ms"
CORES = "... cores that these take"
GONE = "from the client's end to the engine's, last of 64, ms"


@pytest.fixture
def aims(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which lies beside the programs that use it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCH)])
    return import_module("aims")


def row(test: str, quiet: int, **figures: float) -> dict[str, Any]:
    return {"proxy": "sidecar", "test": test, "medians": figures, "ratios": figures, "quiet": quiet}


def chunks(ratio: float, quiet: int) -> dict[str, Any]:
    return {"compare": {"rows": [row("S20x256", quiet, cpu_chunk=ratio)]}}


def refusals(**cost_and_quiet: tuple[float, int]) -> dict[str, Any]:
    return {
        part.replace("_", "-"): {"refuse": {"cpu_us_per_answer": cost, "quiet": quiet}}
        for part, (cost, quiet) in cost_and_quiet.items()
    }


def tail(p99_us: float, cores: float) -> dict[str, Any]:
    own = {**row("S20x1024", 3, p99=p99_us), "cpu": cores}
    return {"tail": {"rows": [{**own, "proxy": "nginx", "cpu": 9.0}, own]}}


def gone(*closed_of_64: int) -> dict[str, Any]:
    one = {"proxy": "sidecar", "streams": 64, "last_ms": 20.0}
    return {"disconnect": {"disconnect": [{**one, "closed": n, "round": at} for at, n in enumerate(closed_of_64)]}}


@pytest.mark.parametrize(
    ("found", "aim", "figure", "verdict"),
    [
        pytest.param({}, CHUNK, None, "", id="what was not measured is not judged"),
        pytest.param(chunks(1.35, 3), CHUNK, 1.35, "met", id="three quiet rounds at the bound meet it"),
        pytest.param(chunks(1.36, 3), CHUNK, 1.36, "MISSED", id="three quiet rounds above it miss it"),
        pytest.param(chunks(1.0, 2), CHUNK, 1.0, "hint: met", id="two quiet rounds are a hint"),
        pytest.param(chunks(2.0, 0), CHUNK, 2.0, "hint: missed", id="noisy rounds are a hint"),
        pytest.param(
            refusals(refuse=(20, 3), refuse_new=(31, 3)), REFUSAL, 31, "MISSED", id="the dearer refusal counts"
        ),
        pytest.param(
            refusals(refuse=(20, 3), refuse_new=(25, 2)), REFUSAL, 25, "hint: met", id="of the fewer quiet rounds"
        ),
        pytest.param(refusals(refuse=(20, 3)), REFUSAL, 20, "hint: met", id="one kind of refusal alone is a hint"),
        pytest.param(refusals(refuse=(99, 3)), "... of a body that comes again", 99, "", id="a figure without a bound"),
        pytest.param({"neighbour": {"neighbour": {"rise_ms": 0.4, "quiet": 3}}}, RISE, 0.4, "met", id="a neighbour"),
        pytest.param({"neighbour": {"neighbour": None}}, RISE, None, "", id="a flood that failed"),
        pytest.param(tail(12_000, 0.8), TAIL, 12.0, "MISSED", id="a tail in milliseconds"),
        pytest.param(tail(12_000, 0.8), CORES, 0.8, "met", id="the sidecar's own cores"),
        pytest.param(gone(64, 64, 64), GONE, 20.0, "met", id="all streams are closed"),
        pytest.param(gone(64, 64, 63), GONE, 5000.0, "MISSED", id="one stream never is"),
    ],
)
def test_verdict(aims: Any, found: dict[str, Any], aim: str, figure: float | None, verdict: str) -> None:
    (said,) = [row for row in aims.judged(found) if row["aim"] == aim]
    assert (said["figure"], said["verdict"]) == (figure, verdict)
    assert aims.table([said]).endswith(verdict)


def test_ahead_of_a_peer_needs_quiet_rounds_of_both(aims: Any) -> None:
    own, peer = row("T64", 3, reqs_core=0.5), {**row("T64", 2, reqs_core=0.4), "proxy": "envoy"}
    (said,) = [row for row in aims.judged({"compare": {"rows": [own, peer]}}) if row["aim"] == "... of Envoy's"]
    assert (said["figure"], said["quiet"], said["verdict"]) == (1.25, 2, "hint: met")
