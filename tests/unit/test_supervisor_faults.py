"""What the log says of a fault of the program itself."""

import io
import json
import re

import pytest

from kvquota_sidecar.__main__ import _tell
from kvquota_sidecar.faults import described
from kvquota_sidecar.telemetry.journal import Journal

SECRET = "what a client has said"


def failing(depth: int = 0) -> None:
    if depth:
        failing(depth - 1)
    raise ValueError(SECRET)


def failed(depth: int = 0) -> ValueError:
    with pytest.raises(ValueError, match=SECRET) as caught:
        failing(depth)
    return caught.value


def test_an_exception_is_told_by_its_kind_and_place_and_not_in_its_own_words() -> None:
    told = described(failed())
    places = r"test_supervisor_faults\.py:\d+ failing < test_supervisor_faults\.py:\d+ failed"
    assert re.match(f"ValueError at {places}", told)
    assert SECRET not in told


def test_of_a_long_way_the_inner_end_is_told() -> None:
    assert described(failed(depth=50)).count("failing") == 8


def test_of_a_group_every_exception_is_told() -> None:
    group = ExceptionGroup("many", [KeyError(SECRET), ExceptionGroup("more", [failed()])])
    kinds = [each.split(" at ")[0] for each in described(group).split("; ")]
    assert (kinds, SECRET in described(group)) == (["KeyError", "ValueError"], False)


def test_what_the_loop_could_not_deliver_is_one_line_of_the_log() -> None:
    log = io.StringIO()
    journal = Journal(log, lambda: 1.0)
    _tell(journal, {"message": "Fatal error on transport", "exception": failed(), "protocol": SECRET})
    _tell(journal, {"message": "no exception"})
    first, second = (json.loads(line) for line in log.getvalue().splitlines())
    assert (first["event"], first["where"]) == ("fault", "Fatal error on transport")
    assert first["error"].startswith("ValueError at ")
    assert SECRET not in log.getvalue()
    assert second == {"at": 1.0, "event": "fault", "where": "no exception", "error": ""}
