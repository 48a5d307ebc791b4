"""When a condition's time moves."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from kvquota_api.conditions import POOL_CONDITIONS, QUOTA_CONDITIONS, Condition, set_condition

BEFORE, NOW = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)


def condition(kind: str = "Ready", status: str = "True", reason: str = "Enforced", at: datetime = BEFORE) -> Condition:
    return Condition.model_validate({"type": kind, "status": status, "reason": reason, "lastTransitionTime": at})


def test_a_first_condition_is_added_last() -> None:
    first, second = condition("UsageObserved"), condition("Ready", at=NOW)

    assert set_condition([first], second) == (first, second)


def test_a_new_status_moves_the_time() -> None:
    assert set_condition([condition()], condition(status="False", at=NOW)) == (condition(status="False", at=NOW),)


def test_a_new_reason_keeps_the_time() -> None:
    assert set_condition([condition()], condition(reason="Other", at=NOW)) == (condition(reason="Other", at=BEFORE),)


def test_what_is_already_so_changes_nothing() -> None:
    present = (condition("UsageObserved"), condition("Ready"))

    assert set_condition(present, condition("Ready", at=NOW)) == present


def test_the_order_stays() -> None:
    present = (condition("A"), condition("B"), condition("C"))

    changed = set_condition(present, condition("B", status="Unknown", at=NOW))

    assert [each.type for each in changed] == ["A", "B", "C"]


def test_a_condition_is_written_as_kubernetes_writes_it() -> None:
    assert condition().as_written() == {
        "type": "Ready",
        "status": "True",
        "reason": "Enforced",
        "message": "",
        "lastTransitionTime": "2026-11-01T00:00:00Z",
        "observedGeneration": 0,
    }


@pytest.mark.parametrize("reason", ["", "not a word", "lower"])
def test_a_reason_is_one_word(reason: str) -> None:
    with pytest.raises(ValidationError, match="reason"):
        condition(reason=reason)


def test_no_type_is_named_twice() -> None:
    assert len(set(POOL_CONDITIONS)) == len(POOL_CONDITIONS) == 8
    assert len(set(QUOTA_CONDITIONS)) == len(QUOTA_CONDITIONS) == 5
