"""How conditions are decided and kept."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

import reconcile_builders as make
from kvquota_api.conditions import Condition
from kvquota_operator.reconcile.verdicts import Verdict, conditions_of, decide, listed, stored_conditions

GOOD, BAD = Verdict("True", "Good", "good"), Verdict("False", "Bad", "bad")
MOMENT = datetime(2026, 11, 1, 12, 0, 0, 999_999, tzinfo=UTC)


def condition(**fields):
    plain = {
        "type": "Ready",
        "status": "True",
        "reason": "Good",
        "message": "good",
        "last_transition_time": make.WALL,
        "observed_generation": 1,
    }
    return Condition(**(plain | fields))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([], GOOD, id="without a rule what holds otherwise"),
        pytest.param([lambda _: None, lambda _: BAD], BAD, id="the first rule that says something"),
        pytest.param([lambda _: BAD, lambda _: 1 / 0], BAD, id="rules after it are not asked"),
        pytest.param([lambda _: None], GOOD, id="no rule says anything"),
    ],
)
def test_the_first_rule_decides(rules, expected):
    assert decide(rules, None, GOOD) == expected


@pytest.mark.parametrize(
    ("stored", "since"),
    [
        pytest.param({}, make.LATER, id="a new condition turned now"),
        pytest.param({"Ready": condition()}, make.WALL, id="the same status turned when it did"),
        pytest.param({"Ready": condition(reason="Other", message="x")}, make.WALL, id="a new reason is no turn"),
        pytest.param({"Ready": condition(status="Unknown")}, make.LATER, id="a new status is one"),
    ],
)
def test_when_a_condition_turned(stored, since):
    (found,) = conditions_of({"Ready": GOOD}, stored, 2, make.LATER)
    assert found == condition(last_transition_time=since, observed_generation=2)


def test_conditions_have_whole_seconds_and_bounded_texts():
    (found,) = conditions_of({"Ready": Verdict("True", "Good", "x" * 40_000)}, {}, -1, MOMENT)
    assert found == condition(message="x" * 32_768, last_transition_time=make.WALL, observed_generation=0)


@pytest.mark.parametrize(
    ("status", "types"),
    [
        pytest.param({}, [], id="no status yet"),
        pytest.param({"conditions": "none"}, [], id="no list"),
        pytest.param({"conditions": [1, {"type": "Ready"}, None]}, [], id="entries that are no conditions"),
        pytest.param({"conditions": [{"type": "X"}, condition().as_written()]}, ["Ready"], id="the rest counts"),
    ],
)
def test_which_stored_conditions_count(status, types):
    assert list(stored_conditions(status)) == types


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["b", "a"], "a, b", id="in order"),
        pytest.param("edcba", "a, b, c, d, e", id="five"),
        pytest.param("fedcba", "a, b, c, d, e and 1 more", id="six"),
    ],
)
def test_a_list_in_a_sentence(names, text):
    assert listed(names) == text


def test_what_somebody_wrote_into_a_status_is_gone():
    before = make.observed()
    stored = make.carried_out(before, make.reconcile(before, make.NOW, make.WALL))
    edited = replace(stored, pool_status={**stored.pool_status, "state": "Fine", "rung": "Evict", "mine": 1})
    assert make.reconcile(edited, make.NOW, make.LATER).pool_status == stored.pool_status
