"""When a status is written."""

import pytest

from contract_objects import ABSENT, changed
from kvquota_operator.reconcile.writes import NEVER, Written, due

QUOTA = {
    "observedGeneration": 1,
    "conditions": [{"type": "Ready", "status": "True", "reason": "InForce", "message": "m"}],
    "state": "Ready",
    "hard": {"blocks": 1_000, "tokens": 16_000},
    "used": {"blocks": 500, "tokens": 8_000},
    "inFlight": 200,
    "recent": {"admitted": 1_000, "rejectedTotal": 2, "rejected": {"a": 2}},
}
POOL = {
    "kv": {
        "cap": {"blocks": 100, "tokens": 1_600},
        "measured": {"blocks": 2_000, "tokens": 32_000},
        "used": {"blocks": 500, "tokens": 8_000},
    },
    "pressurePercent": 40,
}
UNMEASURED = changed(POOL, {"kv.measured": ABSENT})
FEW = changed(QUOTA, {"inFlight": 3})


def wants(stored, **changes):
    return changed(stored, {path.replace("__", "."): changes[path] for path in changes})


CASES = [
    pytest.param(QUOTA, {}, False, id="nothing differs"),
    pytest.param(QUOTA, {"used": {"blocks": 510, "tokens": 8_160}}, False, id="within 1 percent of hard"),
    pytest.param(QUOTA, {"used__blocks": 511}, True, id="beyond 1 percent of hard"),
    pytest.param(QUOTA, {"used__tokens": 8_161}, True, id="tokens against tokens"),
    pytest.param(QUOTA, {"used__blocks": 489}, True, id="below as above"),
    pytest.param(QUOTA, {"used": ABSENT}, True, id="a number that is gone"),
    pytest.param(FEW, {"inFlight": 4}, True, id="one more of few"),
    pytest.param(QUOTA, {"inFlight": 202}, False, id="two more of 200"),
    pytest.param(QUOTA, {"inFlight": 203}, True, id="three more of 200"),
    pytest.param(QUOTA, {"inFlight": 0}, True, id="none any more"),
    pytest.param(QUOTA, {"recent__admitted": 1_010}, False, id="a count within 1 percent of itself"),
    pytest.param(QUOTA, {"recent__rejectedTotal": 3}, True, id="one more refusal"),
    pytest.param(QUOTA, {"recent__rejected": {"a": 2, "b": 1}}, True, id="a refusal of a new kind"),
    pytest.param(QUOTA, {"hard": {"blocks": 1_001, "tokens": 16_000}}, True, id="what was decided is no gauge"),
    pytest.param(QUOTA, {"state": "OverSoft"}, True, id="another word"),
    pytest.param(POOL, {"kv__used__blocks": 520}, False, id="within 1 percent of the measured pool"),
    pytest.param(POOL, {"kv__used__blocks": 521}, True, id="beyond 1 percent of the measured pool"),
    pytest.param(
        UNMEASURED, {"kv__used__blocks": 501}, False, id="within 1 percent of the cap, where none is measured"
    ),
    pytest.param(UNMEASURED, {"kv__used__blocks": 502}, True, id="beyond 1 percent of the cap"),
    pytest.param(POOL, {"pressurePercent": 41}, False, id="one percent of pressure"),
    pytest.param(POOL, {"pressurePercent": 42}, True, id="two percent of pressure"),
    pytest.param(wants(POOL, pressurePercent=1), {"pressurePercent": 0}, True, id="no pressure any more"),
    pytest.param({"used": {"blocks": 5}}, {"used__blocks": 6}, True, id="without a capacity there is no band"),
    pytest.param(wants(QUOTA, used__blocks="x"), {"used__blocks": 500}, True, id="what somebody wrote is no number"),
]


@pytest.mark.parametrize(("stored", "changes", "expected"), CASES)
def test_what_is_worth_a_write(stored, changes, expected):
    assert due(stored, wants(stored, **changes), Written(0.0), 5.0) is expected


def conditions(**fields):
    return [{"type": "Ready", "status": "True", "reason": "InForce", "message": "m"} | fields]


@pytest.mark.parametrize(
    ("changes", "soon", "later"),
    [
        pytest.param({"conditions": conditions(status="False")}, True, True, id="a condition that turns at once"),
        pytest.param({"conditions": conditions(reason="Shadow")}, True, True, id="another reason at once"),
        pytest.param({"conditions": []}, True, True, id="a condition that is gone at once"),
        pytest.param({"observedGeneration": 2}, True, True, id="another generation at once"),
        pytest.param({"conditions": conditions(message="x")}, False, True, id="another message in its turn"),
        pytest.param({"used__blocks": 900}, False, True, id="a gauge in its turn"),
        pytest.param({}, False, False, id="nothing never"),
    ],
)
def test_how_soon(changes, soon, later):
    wanted, written = wants(QUOTA, **changes), NEVER.again(100.0)
    assert (due(QUOTA, wanted, written, 104.9), due(QUOTA, wanted, written, 105.0)) == (soon, later)


def test_what_was_never_written_is_written_now():
    assert (due({}, QUOTA, NEVER, 0.0), due(QUOTA, QUOTA, NEVER, 0.0)) == (True, False)


def test_of_conditions_that_flicker_one_write_comes_before_its_turn():
    turned = wants(QUOTA, conditions=conditions(status="False"))
    early = NEVER.again(100.0).again(101.0)
    assert early == Written(at=101.0, early_at=101.0)
    assert (due(QUOTA, turned, early, 105.9), due(QUOTA, turned, early, 106.0)) == (False, True)
    assert early.again(106.0) == Written(at=106.0, early_at=101.0)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({"conditions": "x"}, id="no list"),
        pytest.param({"conditions": [1, None]}, id="no conditions in it"),
    ],
)
def test_a_status_that_somebody_spoilt_is_mended(stored):
    assert due(stored, QUOTA, Written(0.0), 0.0) is True
