"""The chain of rules on its own: exact borders, and what each retryable refusal waits for."""

from __future__ import annotations

import pytest

from admission_cases import case
from kvquota_sidecar.admission.case import Case
from kvquota_sidecar.admission.rules import Grant, decide
from kvquota_sidecar.admission.wording import grown_past_hard
from kvquota_sidecar.refusals import Code, Refusal


def decided(decision: Grant | Refusal) -> Code | None:
    return decision.code if isinstance(decision, Refusal) else None


BORDERS = [
    pytest.param(case(full=100, reserve=10), None, id="as large as the pool at its limits"),
    pytest.param(case(full=101, reserve=10), Code.REQUEST_EXCEEDS_KV_QUOTA, id="one block larger"),
    pytest.param(case(reserve=90, soft=90), None, id="as large as its soft, whatever the pool would lend"),
    pytest.param(case(reserve=90, soft=89), Code.REQUEST_EXCEEDS_KV_QUOTA, id="one block beyond its soft"),
    pytest.param(case(reserve=84), None, id="just below the shed threshold of an idle pool"),
    pytest.param(case(reserve=85), Code.REQUEST_EXCEEDS_KV_QUOTA, id="at the shed threshold of an idle pool"),
    pytest.param(case(reserve=70, kept=30, other_softs=40), None, id="an idle pool keeps the reserve"),
    pytest.param(case(reserve=71, kept=30, other_softs=40), Code.REQUEST_EXCEEDS_KV_QUOTA, id="and not a block less"),
    pytest.param(case(reserve=70, kept=40, other_softs=30), None, id="or the other softs where those are less"),
    pytest.param(case(reserve=71, kept=40, other_softs=30), Code.REQUEST_EXCEEDS_KV_QUOTA, id="and not less of those"),
    pytest.param(case(free=26, reserve=10), None, id="below the shed threshold afterwards"),
    pytest.param(case(free=25, reserve=10), Code.KV_POOL_CONTENDED, id="at the shed threshold afterwards"),
    pytest.param(case(usable=0, soft=0, reserve=0), None, id="nothing fits into a pool of nothing"),
    pytest.param(case(usable=0, soft=1, reserve=1), Code.REQUEST_EXCEEDS_KV_QUOTA, id="but nothing else does"),
]


@pytest.mark.parametrize(("asked", "expected"), BORDERS)
def test_borders(asked: Case, expected: Code | None) -> None:
    assert decided(decide(asked)) == expected


WAITS = [
    pytest.param(case(reserve=10, held=95, hard_blocks=100), 10, id="hard: at least what the request takes"),
    pytest.param(case(reserve=10, held=120, hard_blocks=100), 30, id="hard: what is missing, where that is more"),
    pytest.param(case(reserve=10, held=50, hard_blocks=100, pressed=True), 10, id="grown past hard: what it takes"),
    pytest.param(
        case(sequences=3, running=7, max_concurrent_requests=8), 2, id="concurrency: the sequences that are too many"
    ),
    pytest.param(case(reserve=10, soft=10, free=3), 7, id="exhausted: what is missing"),
    pytest.param(case(reserve=10, soft=10, free=-5), 15, id="exhausted: also of what is held beyond the pool"),
    pytest.param(case(reserve=10, free=20, kept=40, claimed=40), 30, id="contended: what the reserve misses"),
    pytest.param(case(reserve=10, free=20), 6, id="contended: what it takes to be below the shed threshold"),
    pytest.param(case(reserve=10, free=20, kept=12, claimed=40), 6, id="contended: the larger of the two"),
]


@pytest.mark.parametrize(("asked", "seconds"), WAITS)
def test_a_retryable_refusal_waits_for_what_is_missing(asked: Case, seconds: int) -> None:
    told = decide(asked)
    assert isinstance(told, Refusal)
    assert told.retry_after == seconds


def test_an_ended_request_is_told_when_to_come_back() -> None:
    assert grown_past_hard("inference/search", 640, 320, 7.0).retry_after == 7.0
